"""Records of a ring, as the pass writes them, and what the numbers in them stand for."""

from dataclasses import replace

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, PassOrigin, Queued, Sink
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import Pool
from broker.forwarding.ring import Ring, RingContents
from broker.journal.rows import RingBatch
from broker.protocol.frame import encode_dialog
from broker.protocol.layout import HOP_COUNT_AT, FrameKind
from broker.routing.address import NetworkAddress
from tests.support.forwarding import PLAIN, Sender, outbox_context

EAST = NetworkAddress("east")
HEADER = replace(PLAIN, message_id=bytes(range(16)), from_broker_instance=b"f" * 16)


def outbox(address: NetworkAddress = EAST) -> Outbox:
    return Outbox(address, pool=Pool(1 << 20), request_link=lambda: None, context=outbox_context())


def way(
    disposition: Disposition = Disposition.FORWARDED, *, route: str = "ToEast", sink: Sink | None = None
) -> ForwardingEntry:
    return ForwardingEntry(sink or outbox(), disposition, kind=FrameKind.MESSAGE, route=route)


def frame(**fields: object) -> bytes:
    return encode_dialog(replace(HEADER, **fields), b"body")  # type: ignore[arg-type]


class Tape:
    """A ring to write into by hand. Shape: `now` monotonic seconds of the pass."""

    def __init__(self) -> None:
        self.ring = Ring(1 << 20, sample=1.0, adjacent_of=lambda origin: getattr(origin, "name", ""))

    def enter(
        self,
        data: bytes,
        *ways: ForwardingEntry,
        now: float = 1000.0,
        come_from: str | None = "west",
        queued: dict[bytes, Queued] | None = None,
        database: str = "",
    ) -> None:
        """A pass in which this frame takes each of these ways; from a database here when it came from nobody."""
        is_here = come_from is None
        origin = Sender(come_from or database)
        self.ring.begin(now, origin, is_from_here=is_here, queued=queued or {})
        for one in ways:
            self.ring.enter(data, 0, one, data[HOP_COUNT_AT])

    def tell(self, data: bytes, disposition: Disposition | None, *, entered: float, left: float) -> None:
        """What a database here says of a frame."""
        self.ring.report(data, disposition, PassOrigin(entered, "west", is_from_here=False), left)

    def take(self) -> RingContents:
        return self.ring.take()

    def batch(self, *, offset: float = 0.0) -> RingBatch:
        return RingBatch(self.ring.take(), offset, self.ring.shed)
