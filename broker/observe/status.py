"""
The JSON of `/v1/status`: the state of an instance at a glance, a contract documented in docs/admin.md.

One struct for each object of the answer. The daemon fills them (`broker.observe.status_rendering`); the command line,
the judgement of health and the tests read them. Every field has a default, so that the answer of another
release can be read as well. Nothing is imported but msgspec, because commands start with this module.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

_S = TypeVar("_S", bound=Struct)


def struct_from(kind: type[_S], *sources: object, **values: Any) -> _S:
    """Make a struct from the attributes of sources that are named as its fields are; `values` has the others."""
    for name in kind.__struct_fields__:
        if name not in values:
            values[name] = getattr(next((one for one in sources if hasattr(one, name)), sources[0]), name)
    return kind(**values)


class WarningKind(StrEnum):
    """The subject of a warning about connections; it decides the severity and the remedy."""

    PLAIN_TEXT = "plain text"
    FILES_NOT_IN_USE = "certificate files not in use"
    PERMISSIONS = "permissions"
    IMPORTS_LOST = "imports lost"
    LOOPBACK = "loopback role"
    REFUSED = "peer refused"
    CLOCK = "clock"
    EXPIRED = "certificate expired"
    EXPIRES = "certificate expires"
    MORE_EXPIRE = "more certificates expire"


class TransportWarning(Struct, frozen=True):
    """A warning about connections for an operator; `kind` is a `WarningKind`, or one of a later release."""

    kind: str = ""
    text: str = ""


class TaskStatus(Struct, frozen=True):
    """A task that lasts as long as the instance."""

    name: str = ""
    running: bool = True
    failures: int = 0
    problem: str = ""


class ScriptStatus(Struct, frozen=True):
    """Progress of a script under way."""

    source: str = ""
    stage: str = ""
    size: int | None = None
    position: int = 0
    statements: int = 0


class ReloadStatus(Struct, frozen=True):
    """Results of reading the configuration again."""

    successful: bool = True
    problem: str = ""
    last_success_at: str = ""
    succeeded: int = 0
    failed: int = 0
    waiting: list[str] = []
    connections_as_before: int = 0


class JournalStatus(Struct, frozen=True):
    """The records of the journal, and the spans made of them."""

    directory: str = ""
    sample: float = 0.0
    records: int = 0
    pending: int = 0
    shed: int = 0
    files: int = 0
    bytes: int = 0
    errors: int = 0
    removed_files: int = 0
    failures: int = 0
    problem: str = ""
    spans: int = 0
    spans_pending: int = 0
    spans_dropped: int = 0


class DrainStatus(Struct, frozen=True):
    """Progress of draining the instance."""

    stage: str = ""
    reason: str = ""
    sentence: str = ""
    held: int = 0
    peers: int = 0
    by_hop: dict[str, int] = {}
    busy: list[str] = []
    remaining_s: float = 0.0


class AddressStatus(Struct, frozen=True):
    """
    State of an address: its health as routing sees it, and the frames held for it.

    Attributes:
        peer: Serves it now.
        is_named: Whether a route leads there.
    """

    health: str = ""
    problem: str = ""
    held: int = 0
    held_bytes: int = 0
    over_share: int = 0
    peer: str = ""
    is_named: bool = True


class NextHopStatus(Struct, frozen=True):
    """Frames held for a next hop, for how long, why, and in how many seconds it is dialled again."""

    next_hop: str = ""
    held: int = 0
    held_bytes: int = 0
    oldest_s: float = 0.0
    why: str = ""
    next_attempt_s: float | None = None


class ServiceCounts(Struct, frozen=True):
    """Messages of one service."""

    sent: int = 0
    resent: int = 0
    acknowledged: int = 0
    delivered: int = 0


class LedgerStatus(Struct, frozen=True):
    """The fate of the messages that applications have sent; `failed` is by reason."""

    sent: int = 0
    acknowledged: int = 0
    held: int = 0
    failed: dict[str, int] = {}
    unaccounted: int = 0

    @property
    def sentence(self) -> str:
        """One line: the ledger balances, or by how much it does not."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.failed.items()))
        text = (
            f"{self.sent:,} sent = {self.acknowledged:,} acknowledged + {self.held:,} held"
            f" + {sum(self.failed.values()):,} failed" + (f" ({reasons})" if reasons else "")
        )
        return f"{text} + {self.unaccounted:,} UNACCOUNTED" if self.unaccounted else text


class QueueStatus(Struct, frozen=True):
    """A queue that is off, or in which a message waits: age of the first message that can be received, or 0."""

    name: str = ""
    is_receive_enabled: bool = True
    oldest_s: float = 0.0


class CertificateStatus(Struct, frozen=True):
    """A certificate in use, and its role."""

    role: str = ""
    name: str = ""
    fingerprint: str = ""
    not_after: str = ""
    days_left: int = 0


class TransportStatus(Struct, frozen=True, kw_only=True):
    """Connections as a whole. `notices` are the `warnings` with the subject of each."""

    encryption: str = ""
    authentication: str = ""
    warnings: list[str] = []
    notices: list[TransportWarning] = []
    certificates: list[CertificateStatus] = []
    reloads: int = 0
    reload_failures: int = 0
    problem: str = ""
    handshakes: int = 0
    connections_max: int = 0
    refused: dict[str, int] = {}


class ForwardingStatus(Struct, frozen=True, kw_only=True):
    """Counters of the forwarder since the start, and the frames held now."""

    enabled: bool = True
    received: dict[str, int] = {}
    forwarded: int = 0
    delivered: int = 0
    dropped: dict[str, int] = {}
    held: int = 0
    pool_bytes: int = 0
    pool_limit_bytes: int = 0
    unaccounted: int = 0


class ConnectionStatus(Struct, frozen=True, kw_only=True):
    """A connection to an adjacent instance."""

    name: str = ""
    address: str = ""
    direction: str = ""
    state: str = ""
    flow: str = ""
    flow_reason: str = ""
    flow_since: str | None = None
    last_progress: str | None = None
    round_trip_ms: float | None = None
    encryption: str = "none"
    principal: str = ""
    slowed_by: str = ""
    bytes_received: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    frames_rejected: int = 0


class PartnerStatus(Struct, frozen=True):
    """The last report of one partner of a mirrored pair."""

    role: str | None = None
    epoch: int | None = None
    problem: str = ""


class MirrorStatus(Struct, frozen=True):
    """A mirrored route in use."""

    route: str = ""
    service: str = ""
    broker_instance: str = ""
    state: str = ""
    principal: str | None = None
    epoch: int = 0
    partners: dict[str, PartnerStatus] = {}
    held: int = 0
    held_bytes: int = 0
    alarm: str = ""


class RoleStatus(Struct, frozen=True):
    """The mirroring role of the instance for one of its databases."""

    broker_instance: str | None = None
    role: str = ""
    epoch: int = 0
    since: str = ""
    source: str = ""
    principal: str = ""
    problem: str = ""


class WriteLockStatus(Struct, frozen=True):
    """
    Waits of at least two seconds for the write transactions of applications.

    Attributes:
        waiting_s: How long the present one takes; null without one.
        pid: Of the process that has the lock, or had it last; null where that cannot be seen.
        process: Its name.
        recent: How many such waits there were within ten minutes, the present one included.
        recent_s: How long they took in all.
        last_s: Seconds since the last of them ended; null while one goes on, or without one.
    """

    waiting_s: float | None = None
    pid: int | None = None
    process: str = ""
    recent: int = 0
    recent_s: float = 0.0
    last_s: float | None = None


class BlockedStatus(Struct, frozen=True):
    """Dialogs that wait: for which next hop, or for which service and why; how many; how long the first has waited."""

    next_hop: str = ""
    dialogs: int = 0
    oldest_s: float = 0.0


class DatabaseStatus(Struct, frozen=True, kw_only=True):
    """A user database; what follows `blocked` is from its file, and null while that cannot be read."""

    broker_instance: str = ""
    path: str = ""
    problem: str = ""
    services: dict[str, ServiceCounts] = {}
    dropped: dict[str, int] = {}
    sending_dialogs: int = 0
    replaced: str = ""
    write_lock: WriteLockStatus = WriteLockStatus()
    blocked: list[BlockedStatus] = []
    waiting_messages: int | None = None
    oldest_waiting_s: float | None = None
    ledger: LedgerStatus | None = None
    quarantined: int | None = None
    failed: int | None = None
    queues: list[QueueStatus] | None = None


class DropStatus(Struct, frozen=True):
    """Frames dropped for one reason, seconds since the last of them, and what to do."""

    reason: str = ""
    database: str | None = None
    frames: int = 0
    last_s: float | None = None
    do: str = ""


class Level(StrEnum):
    """Severity of a finding, or of all of them. The worst is last."""

    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


class HealthFinding(Struct, frozen=True):
    """One thing that is not as it should be; `do` is empty when nothing has to be done."""

    level: Level
    about: str
    what: str
    do: str = ""


class HealthReport(Struct, frozen=True):
    """The whole in one sentence, and the findings, the worst first; `more` are left out."""

    level: Level
    sentence: str
    findings: list[HealthFinding]
    more: int


class Status(Struct, frozen=True, kw_only=True):
    """An instance at a glance."""

    name: str = ""
    software: str = ""
    broker_instance: str = ""
    started_at: str = ""
    uptime_s: float = 0.0
    ready: bool = True
    draining: DrainStatus | None = None
    loop: str = ""
    kernel: str = ""
    listen: list[str] = []
    transport: TransportStatus = TransportStatus()
    forwarding: ForwardingStatus = ForwardingStatus()
    connections: list[ConnectionStatus] = []
    addresses: dict[str, AddressStatus] = {}
    waiting: list[NextHopStatus] = []
    mirrored_routes: list[MirrorStatus] = []
    tasks: list[TaskStatus] = []
    running_scripts: list[ScriptStatus] = []
    reload: ReloadStatus = ReloadStatus()
    journal: JournalStatus | None = None
    mirroring: dict[str, RoleStatus] = {}
    databases: dict[str, DatabaseStatus] = {}
    drops: list[DropStatus] | None = []  # null from earlier releases while their loop was busy
    room_problem: str = ""
    audit_problem: str = ""
    verdict: HealthReport | None = None  # none from earlier releases
