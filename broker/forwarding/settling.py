"""
The end of a pass: each sink takes what was gathered for it, whatever becomes of the others.

A batch comes from a read, from a database here, or from a queue whose frames take another way. A sink that fails holds
or drops its own frames. Loop-only; reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from broker.forwarding.batch import PassResult
from broker.forwarding.hop import HopTimes
from broker.forwarding.outbox import HoldBack, Outbox
from broker.forwarding.sink import DropSink
from broker.forwarding.way import FrameOrigin, Outlet, Report, Sink, UnknownOrigin, WayOf


class Settling:
    """
    Args:
        hold_back: Hears who brought what has to wait.
        report: Hears of what failed, when all sinks have had their turn.
        hop: Counts how long frames were here.
    """

    def __init__(self, hold_back: HoldBack, report: Report, hop: HopTimes) -> None:
        self._hold_back = hold_back
        self._report = report
        self._hop = hop
        self._nobody = UnknownOrigin()
        self._touched: list[Sink] = []  # by the batch under way

    def settle(self, batch: PassResult, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Each sink takes its frames."""
        self._touched = batch.touched
        failed: list[tuple[Outlet | None, Exception]] = []
        for sink in batch.touched:
            try:
                sink.flush(now, origin, way_of)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is that sink's
                failed.append((sink.outlet if isinstance(sink, Outbox) else None, error))
                try:
                    sink.recover(now, origin, way_of)
                except Exception as bug:  # noqa: BLE001 - likewise
                    sink.runs.clear()  # a part of the slab, which others write into next
                    failed.append((None, bug))
        self._touched = []
        for outlet, why in failed:
            self._report(outlet, why)

    def settle_again(self, batch: PassResult, now: float, way_of: WayOf, since: Sequence[float]) -> None:
        """
        The sinks take what has waited; what leaves now is counted with its time.

        Args:
            batch: Frames that have left a queue.
            now: Monotonic seconds.
            way_of: The way that each takes now.
            since: When each frame from outside began to wait, in the order of leaving.
        """
        pending = self._hop.pending
        self.settle(batch, now, self._nobody, way_of)
        others = pending - self._hop.pending  # wait again, or are dropped; they are the last ones, mostly
        self._hop.pending = pending
        for begun, frames in Counter(since[: max(0, len(since) - others)]).items():
            self._hop.observe(now - begun, frames)

    def tell_who_waits(self, outbox: Outbox, origin: FrameOrigin) -> None:
        """Who brought what has to wait, and whether it brought something for others that do not."""
        is_shared = any(sink is not outbox and not isinstance(sink, DropSink) for sink in self._touched)
        self._hold_back(outbox, origin, is_shared)
