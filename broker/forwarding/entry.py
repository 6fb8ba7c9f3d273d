"""
The parts of one pass of frames: the origin of the frames, the entry they take, the outlet by which they leave.

A `ForwardingEntry` is a routing decision as the pass uses it; all route keys that one route sends to one sink share an
entry, and the kernels cache it by route key. The frames of a batch are gathered at the entry's `Sink` in the order of
arrival, whatever entry they take, so that messages, acknowledgements and faults of a dialog stay in order. There are
three sinks: an outbox (a next hop), a database of this instance, and the drop. `FrameOrigin` and `Outlet` are the ports
at both ends of a pass. `PassResult` is what one walk of a kernel returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.errors import PeerError
from broker.flow import Disposition
from broker.protocol.frame import Rejected
from broker.protocol.layout import (
    CONVERSATION_AT,
    FRAGMENT_AT,
    MESSAGE_ID_AT,
    PLACE_END,
    PRELUDE,
    ROUTE_KEY_AT,
    SEQUENCE_AT,
    TO_SERVICE_AT,
)

CARE_MAX = 256  # frames that take the slow path in one walk, some 5 us each; the rest is left for the next walk

Buffer = bytes | bytearray | memoryview


class FrameOrigin(Protocol):
    """Where the frames of a batch came from: a link, or a database of this instance."""

    received: Counter[int]  # frames from here by kind; counted by the forwarder

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Advise the sender that this frame was not accepted; may do nothing, must not fail."""


class UnknownOrigin:
    """The origin of frames that have waited here: the link that brought them is not remembered."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, _frame: Buffer, _disposition: Disposition) -> None:
        """Do nothing: the sender keeps the message and sends it again."""


class Queued(NamedTuple):
    """The report of a database about a frame that it sends."""

    enqueued_at: float  # UTC seconds since 1970 at which its message was put in the queue
    is_resend: bool  # its fragment was sent before
    trace_parent: str = ""  # the application's own span where its trace is sampled, as W3C writes it


QueuedById = Mapping[bytes, Queued]
"""By message_id."""

NOT_QUEUED: QueuedById = {}
"""Of frames about which no database reports anything."""


class PassOrigin(NamedTuple):
    """When and from where the frames of one pass came."""

    entered: float  # monotonic seconds
    adjacent_in: str  # the instance or address that sent them, or the name of the database here; "" when unknown
    is_from_here: bool  # a database here sent them: such frames have spent no hop
    queued: QueuedById = NOT_QUEUED  # of the frames that are traced or sampled
    trace_parent: str = ""  # as in `Queued`, of the one message that a database here reports on

    @property
    def hops(self) -> int:
        """The number that the pass added to their hop count."""
        return 0 if self.is_from_here else 1


class Outlet(Protocol):
    """Where frames leave: an open link."""

    max_frame: int  # bytes, as the peer announced
    is_narrow: bool  # that is less than this instance accepts, so a frame may have to be dropped for its size

    @property
    def can_send(self) -> bool:
        """Whether `send` may be called now: open, not draining, and no cut frame waits to be finished."""

    def send(self, data: Buffer) -> int:
        """Send whole frames; returns the bytes accepted at once. Copies nothing, keeps nothing."""

    def keep_rest(self, rest: Buffer) -> None:
        """Keep the end of a frame that `send` cut; it leaves before anything else."""


Report = Callable[[Outlet | None, Exception], None]
"""
Called when something failed that must not fail, with the `Outlet` where it was one. The pass has gone on: that outlet
gets no further frames and is to be closed, though not in this call. Must not fail.
"""


class Sink(Protocol):
    """Where the frames of a batch end up; flushed once, after the walk."""

    runs: list[Buffer]  # of whole frames in the order of arrival, valid until the batch ends

    def flush(self, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Write, deliver or count `runs`, and clear them. When this fails, `recover` is called."""

    def recover(self, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Undo a failed flush: the frames of `runs` are held, or dropped and counted; clear them."""


class ForwardingEntry:
    """The value that the kernels cache for a route key: a sink, and the route that led to it."""

    __slots__ = ("choices", "disposition", "frames", "kind", "route", "sink")

    def __init__(self, sink: Sink, disposition: Disposition, *, kind: int, route: str = "") -> None:
        self.sink = sink
        self.disposition = disposition  # of a frame that takes this entry
        self.kind = kind
        self.route = route  # its name, empty where none decided
        self.frames = 0  # of this kind that left for good; one that has to wait is subtracted until it leaves
        # By conversation id, where that affects the decision; then the entry itself only marks the key, without a sink.
        self.choices: dict[bytes, ForwardingEntry] | None = None


EntryOf = Callable[[Buffer], ForwardingEntry]
"""The entry that a frame of this batch took; called only for frames that have to wait or are dropped."""


class PassResult:
    """The result of one walk of a kernel: runs at the sinks, counts, and the frames for the link itself."""

    __slots__ = ("care_left", "consumed", "error", "link_frames", "received", "touched")

    def __init__(self) -> None:
        self.consumed = 0  # bytes of whole frames
        self.care_left = CARE_MAX  # frames that may still take the slow path before the walk ends
        self.received: dict[int, int] = {}  # dialog frames by kind
        self.touched: list[Sink] = []  # those that have runs, each once
        self.link_frames: list[bytes] = []  # copies of whole link frames, in order
        self.error: PeerError | None = None  # set when what follows `consumed` breaks the protocol

    def gather(self, sink: Sink, run: Buffer) -> None:
        """Add a run of whole frames to a sink."""
        if not sink.runs:
            self.touched.append(sink)
        sink.runs.append(run)

    def count(self, kind: int, frames: int) -> None:
        """Count frames of a kind."""
        if frames:
            self.received[kind] = self.received.get(kind, 0) + frames


def frame_bounds(run: Buffer) -> list[tuple[int, int]]:
    """Start and stop of every frame in a run of whole frames."""
    bounds = []
    start, end = 0, len(run)
    while start < end:
        stop = start + PRELUDE.unpack_from(run, start)[0]
        bounds.append((start, stop))
        start = stop
    return bounds


def route_key_of(frame: Buffer) -> bytes:
    """The route key of a dialog frame: broker instance and name of the target service, as the kernels cache them."""
    end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
    return bytes(frame[ROUTE_KEY_AT:end])


def conversation_of(frame: Buffer) -> bytes:
    """The conversation id of a dialog frame."""
    return bytes(frame[CONVERSATION_AT:SEQUENCE_AT])


def message_id(frame: Buffer) -> bytes:
    """The id of one transmission: copies of a message have different ones."""
    return bytes(frame[MESSAGE_ID_AT:CONVERSATION_AT])


def rejected(frame: Buffer, disposition: Disposition) -> Rejected:
    """The REJECTED frame that advises the sender of a dropped dialog frame."""
    return Rejected(
        message=message_id(frame),
        conversation=conversation_of(frame),
        sequence=int.from_bytes(frame[SEQUENCE_AT:FRAGMENT_AT], "big"),
        fragment=int.from_bytes(frame[FRAGMENT_AT:PLACE_END], "big"),
        code=disposition.number,
        reason=disposition.value,
    )


def raise_error(_outlet: Outlet | None, error: Exception) -> None:
    """The `Report` of a caller that wants to fail instead."""
    raise error
