"""
The contents of the report as small tables: the `Digest`. `broker.pipeline.report.tables` makes them, the page shows
them.

All times are microseconds and all sizes bytes; a percentile that is not known is None. Every table is bounded
(`LISTED_MAX`, `BUCKETS_MAX`), whatever the history holds; where rows were left out, `Listing.total` says of how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

LISTED_MAX = 200  # rows of a table
NO_RECORD = "no record: "  # before the address at which frames reached an instance that has no record of them
BUCKETS_MAX = 96  # points of a line
INCIDENT_GAP = timedelta(minutes=10)  # without a frame that loops: the next one is of another incident

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """The first rows of a table. `total` is how many rows there are, None when only known to be more."""

    rows: tuple[Row, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class InputFacts:
    """
    The input from which the results were made.

    Attributes:
        flows: The directory of the files.
        samples: The fractions of dialogs that were followed, as the files state them.
        troubles: Sentences without a full stop, on what is missing: files left out and why, records shed, samples.
        period: The words for the part of the history that was asked for, empty for all of it.
        holes: As `Inventory.holes`.
    """

    flows: str = ""
    files: int = 0
    records: int = 0
    instances: int = 0
    samples: tuple[float, ...] = ()
    troubles: tuple[str, ...] = ()
    version: str = ""
    period: str = ""
    holes: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of how long it took, in microseconds; `measured` is how many frames they are of."""

    p50: int | None = None
    p95: int | None = None
    p99: int | None = None
    measured: int = 0


@dataclass(frozen=True, slots=True)
class StationRow:
    """
    An instance on the map.

    Attributes:
        position: Its average position on the paths through it, 0 the initiators' end, 1 the targets'.
        ends: How many of its frames began or ended there.
        lost: How many frames left it for instances with a journal and were not seen again.
    """

    instance: str
    frames: int
    bytes: int
    ends: int
    position: float
    dropped: int
    residence: Spread
    lost: int = 0

    @property
    def is_unknown(self) -> bool:
        """Whether no journal here has a record of what reached its address."""
        return self.instance.startswith(NO_RECORD)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """
    A link from one instance to the next, empty where unknown.

    Attributes:
        frames: Those that arrived, and `unrecorded`.
        lost: Those that did not arrive.
        unrecorded: Those of which one of its ends has no record.
    """

    from_instance: str
    to_instance: str
    frames: int
    bytes: int
    lost: int
    transit: Spread
    unrecorded: int = 0

    @property
    def is_unknown(self) -> bool:
        """Whether no loss is known, and one of its ends has no record of most frames."""
        return not self.lost and 2 * self.unrecorded > self.frames


@dataclass(frozen=True, slots=True)
class Loss:
    """
    Frames that left an instance for a next hop that keeps a journal and were not seen again.

    Attributes:
        next_hop: The next hop as the journal names it, an address.
        to_instance: The instance that has that address.
    """

    from_instance: str
    next_hop: str
    lost: int
    to_instance: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Transmissions that went to an instance, or to `NO_RECORD` and an address, and are in no journal of it."""

    instance: str
    frames: int
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class LoopRow:
    """Transmissions that came to an instance twice, by the way they took, without a pause of `INCIDENT_GAP`."""

    path: tuple[str, ...]
    frames: int
    end: str
    reason: str | None
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class Journey:
    """Messages from one service to another that are known to have arrived, and how long they took, sender to target."""

    from_service: str
    to_service: str
    messages: int
    total: Spread


@dataclass(frozen=True, slots=True)
class Extent:
    """
    How far the history goes, how much went wrong in all of it, and how much of it is not known.

    All counts are of transmissions; `unsent` of those whose sender has no record of them, `unrecorded` of those that
    went to another instance without one.
    """

    first_at: datetime | None = None
    last_at: datetime | None = None
    transmissions: int = 0
    unsent: int = 0
    unknown_links: int = 0
    under_way: int = 0
    lost: int = 0
    looped: int = 0
    unrecorded: int = 0


@dataclass(frozen=True, slots=True)
class RouteUse:
    """A route at an instance: `typical` is of its middle window, in the order of p99; `worst_p99` is of any window."""

    instance: str
    route_table: str | None
    route: str | None
    frames: int
    typical: Spread
    worst_p99: int | None
    worst_at: datetime | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The axis of everything over time: `buckets` of `step_seconds` each, from `first_at`."""

    first_at: datetime
    step_seconds: int
    buckets: int

    def start_of(self, bucket: int) -> datetime:
        """When a bucket begins."""
        return self.first_at + timedelta(seconds=bucket * self.step_seconds)


@dataclass(frozen=True, slots=True)
class Series:
    """Counts over time: one number for each bucket of the timeline, and `total`, their sum."""

    label: str
    points: tuple[int, ...]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.points)


@dataclass(frozen=True, slots=True)
class Hold:
    """The amount that an instance held at once: `peaks` in bytes per bucket, None where nothing was held."""

    instance: str
    peaks: tuple[int | None, ...]
    peak_bytes: int
    peak_frames: int
    p99_bytes: int
    peak_at: datetime | None
    recommended_bytes: int | None
    headroom: float | None


@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """
    The total of the ledger: `broker.pipeline.results.RECONCILE` describes its columns.

    Counts are of places, and from `transmissions` on of transmissions; `adds_up` is None when it cannot be known.
    """

    sent: int = 0
    delivered: int = 0
    acknowledged: int = 0
    under_way: int = 0
    missing: int = 0
    doubled: int = 0
    untold: int = 0
    invented: int = 0
    transmissions: int = 0
    resent: int = 0
    dropped: int = 0
    lost: int = 0
    duplicates: int = 0
    adds_up: bool | None = True


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A dialog's direction that does not add up; `problems` are the first ones, as words."""

    conversation: str
    from_service: str | None
    to_service: str | None
    missing: int
    doubled: int
    invented: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Talker:
    """A pair of services, or one conversation of it."""

    from_service: str
    to_service: str
    messages: int
    bytes: int
    resends: int
    dialogs: int = 1
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class Digest:
    """Everything that the report shows. Parts that were not computed are None, parts that are empty are empty."""

    facts: InputFacts = field(default_factory=InputFacts)
    balance: LedgerTotal | None = None
    imbalances: Listing[Imbalance] = field(default_factory=Listing)
    stations: Listing[StationRow] = field(default_factory=Listing)
    links: Listing[LinkRow] = field(default_factory=Listing)
    losses: Listing[Loss] = field(default_factory=Listing)
    gaps: Listing[Gap] = field(default_factory=Listing)
    loops: Listing[LoopRow] = field(default_factory=Listing)
    journeys: Listing[Journey] = field(default_factory=Listing)
    extent: Extent = field(default_factory=Extent)
    timeline: Timeline | None = None
    traffic: Series = field(default_factory=lambda: Series("frames", ()))
    drops: tuple[Series, ...] = ()
    failovers: tuple[Series, ...] = ()
    routes: Listing[RouteUse] = field(default_factory=Listing)
    holds: Listing[Hold] = field(default_factory=Listing)
    services: Listing[Talker] = field(default_factory=Listing)
    conversations: Listing[Talker] = field(default_factory=Listing)
