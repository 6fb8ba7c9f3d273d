"""
The three sinks of a pass: the outbox of a next hop, a database of this instance, and the drop.

An outbox leads to one address, or to the principal of a mirrored pair. In the plain case nothing waits in it: a batch's
runs become one buffer and one write. Frames that the link does not accept are held, each charged to the pool, in order,
until the link can send, the lifetime ends or the bound is reached. While frames are held, a second copy of one of them
is dropped, and the time they wait is added to `time_consumed` when they leave. The outbox reports an origin whose
frames have to wait to the context, so that links can be paused in time. A fault of a link harms that link only: one
that fails gets no further frames. Loop-only; called by the forwarder and by the link that it is attached to.

Source: docs/protocol.md, section 5, steps 3 and 6 to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, EntryOf, ForwardingEntry, FrameOrigin, Outlet, Report, frame_bounds
from broker.forwarding.held_frames import DialogAffinity, Held, Piece
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox_queue import HeldQueue, Packer, UnvisitedFrames
from broker.forwarding.pool import Pool, Share
from broker.forwarding.ring import Ring
from broker.protocol.layout import PRELUDE
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair

GATHER_BYTES = 128 * 1024  # one write when held frames leave: a socket buffer's worth, no more copied than is accepted
DRAIN_FRAMES = 1024  # that leave, or are dropped, in one iteration of the loop; some 4 us each at worst

Destination: TypeAlias = NetworkAddress | MirroredPair

Deliver: TypeAlias = Callable[[bytes, list[bytes], FrameOrigin], None]
"""Deliver whole frames to the database of this broker instance, in the order of arrival; must not fail, nor block."""

Drop: TypeAlias = Callable[[Buffer, Disposition, FrameOrigin | None], None]
"""Count one dropped frame under its disposition and advise its origin, when that is known; must not fail."""


@dataclass(frozen=True, slots=True)
class OutboxContext:
    """The objects and callbacks that all outboxes of a forwarder share; none of the callbacks may fail."""

    drop: Drop
    report_waiting: Callable[[Outbox, FrameOrigin], None]  # this origin brought frames that have to wait here
    continue_later: Callable[[Outbox], None]  # a drain takes longer than one iteration of the loop may
    report: Report
    affinity: DialogAffinity  # where dialogs wait, in all outboxes
    hop: HopTimes  # how long frames are here
    ring: Ring | None = None


class Outbox:
    """The frames on their way to one address, or to a mirrored pair."""

    __slots__ = (
        "_broken",
        "_context",
        "_outlet",
        "_packer",
        "_request_link",
        "address",
        "entries",
        "held",
        "runs",
        "share",
        "unvisited",
    )

    def __init__(
        self, address: Destination, *, pool: Pool, request_link: Callable[[], None], context: OutboxContext
    ) -> None:
        self.address = address
        self.runs: list[Buffer] = []  # of the batch under way
        self.entries: list[ForwardingEntry] = []  # that lead here
        self.held = HeldQueue()  # in the order of leaving, charged to `share`
        self.share = Share(pool)
        self.unvisited: UnvisitedFrames | None = None  # what a reroute under way has yet to visit
        self._outlet: Outlet | None = None
        self._broken: Outlet | None = None  # one that failed: it gets no further frames
        self._request_link = request_link
        self._context = context
        self._packer = Packer(
            self,
            self.held,
            self.share,
            affinity=context.affinity,
            hop=context.hop,
            ring=context.ring,
            refuse=self._refuse,
        )

    @property
    def outlet(self) -> Outlet | None:
        """The link that serves the address now, None while there is none; never one that has failed here."""
        return self._outlet

    @outlet.setter
    def outlet(self, outlet: Outlet | None) -> None:
        self._outlet = None if outlet is self._broken else outlet

    @property
    def is_ready(self) -> bool:
        """Whether a frame given now would leave at once."""
        return not self.held and self._outlet is not None and self._outlet.can_send

    def request_link(self) -> None:
        """Ask for a link when none serves the address."""
        if self._outlet is None:
            self._request_link()

    # --- a batch ---

    def flush(self, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Send the batch in one write; hold what the link does not accept at once."""
        outlet = self._outlet
        if outlet is not None and outlet.is_narrow:
            self._drop_oversized(outlet.max_frame, now, origin, entry_of)
        runs = self.runs
        if self.held or outlet is None or not outlet.can_send:
            self._hold_unsent(0, now, origin, entry_of)
            self.drain(now)
            self._report_waiting(origin)
        elif runs:
            data = runs[0] if len(runs) == 1 else b"".join(runs)
            sent = self._send(outlet, data)
            if sent < len(data):
                self._hold_unsent(sent, now, origin, entry_of)
                self._report_waiting(origin)
        self.runs.clear()

    def recover(self, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Recover from a failed flush: the link, if any, gets no further frames; the batch waits for another one."""
        self._broken, self._outlet = self._outlet or self._broken, None
        self._hold(self.runs, now, origin, entry_of, is_retry=True)  # some may have been held before that happened
        self.runs.clear()

    def append(self, frame: Buffer, entry: ForwardingEntry, now: float, origin: FrameOrigin) -> None:
        """Hold a frame after those of its dialog, although it took another entry; it is counted under `entry`."""
        self._hold((frame,), now, origin, lambda _: entry)
        self._report_waiting(origin)

    def _drop_oversized(self, max_frame: int, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Drop the frames of the batch that are larger than the peer accepts."""
        kept: list[Buffer] = []
        for run in self.runs:
            at = 0
            for start, stop in frame_bounds(run) if len(run) > max_frame else ():
                if stop - start > max_frame:
                    if at < start:
                        kept.append(run[at:start])
                    at = stop
                    self._refuse(run[start:stop], entry_of(run[start:stop]), Disposition.FRAME_TOO_LARGE, now, origin)
            if at < len(run):
                kept.append(run[at:])
        self.runs[:] = kept

    def _hold_unsent(self, sent: int, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """The link accepted the first `sent` bytes: it keeps the rest of a cut frame, and what follows is held."""
        runs, at = self.runs, 0
        for index, run in enumerate(self.runs):
            if at + len(run) > sent:
                stop = 0
                while at + stop < sent:
                    stop += PRELUDE.unpack_from(run, stop)[0]
                if at + stop > sent:
                    self._finish(self._outlet, run[sent - at : stop])
                runs = [run[stop:], *self.runs[index + 1 :]]
                break
            at += len(run)
        self._hold(runs, now, origin, entry_of)
        self.request_link()  # also when there was no room: then the next copy may find a link

    def _hold(
        self, runs: Iterable[Buffer], now: float, origin: FrameOrigin, entry_of: EntryOf, *, is_retry: bool = False
    ) -> None:
        for piece in self._packer.hold(runs, now, origin, entry_of, is_retry=is_retry):
            if self.unvisited is not None:
                self.unvisited.add(piece)

    def _refuse(
        self, frame: Buffer, entry: ForwardingEntry, disposition: Disposition, now: float, origin: FrameOrigin
    ) -> None:
        """Drop a frame of the batch."""
        entry.frames -= 1
        ring = self._context.ring
        if ring is not None:
            ring.refuse(frame, entry, disposition, ring.take_back(frame), now)
        self._context.drop(frame, disposition, origin)

    def _report_waiting(self, origin: FrameOrigin) -> None:
        """Report the origin of frames that wait, unless they have left already."""
        if origin in self.share.feeders and not self.is_ready:
            self._context.report_waiting(self, origin)

    # --- held frames leave ---

    def drain(self, now: float) -> None:
        """Send held frames, aged by the time they waited, until the link, which can send now, stops accepting."""
        before = len(self.held)
        while self.held and self._outlet is not None and self._outlet.can_send:
            if before - len(self.held) >= DRAIN_FRAMES:
                self._context.continue_later(self)
                return
            outlet = self._outlet
            leaving = self._next_gather(now, outlet.max_frame)
            data = bytearray().join([piece.data for piece in leaving])
            at = 0
            for piece in leaving:
                piece.age(data, at, now)
                at += len(piece.data)
            if leaving:
                self._account_sent(leaving, data, self._send(outlet, data), now)

    def _next_gather(self, now: float, max_frame: int) -> list[Piece]:
        """The next held frames for one write; those that are late, or too large, are dropped."""
        leaving: list[Piece] = []
        lost: list[Held] = []
        size = 0
        for piece in self.held.leaving(now, max_frame):
            if size >= GATHER_BYTES or len(lost) >= DRAIN_FRAMES:
                break
            if isinstance(piece, Held) and (len(piece.frame) > max_frame or piece.deadline <= now):
                lost.append(piece)
            else:
                leaving.append(piece)
                size += len(piece.data)
        for held in lost:
            self._remove(held)
            is_late = held.deadline <= now
            self._drop_held(held, Disposition.EXPIRED_HERE if is_late else Disposition.FRAME_TOO_LARGE, now)
        return leaving

    def _account_sent(self, leaving: list[Piece], data: bytearray, sent: int, now: float) -> None:
        """Of these held frames the link accepted the first `sent` bytes."""
        at = same = 0
        since = now
        if sent:
            self.share.left(now)
        for piece in leaving:
            if sent <= at:
                break
            if piece.since != since:  # those that came together leave together, mostly
                self._context.hop.observe(now - since, same)
                since, same = piece.since, 0
            frames, size = piece.begun(sent - at)
            at += size
            if sent < at:
                self._finish(self._outlet, data[sent:at])
            same += self._remove_sent(piece, frames, size, now)
        self._context.hop.observe(now - since, same)

    def _remove_sent(self, piece: Piece, frames: int, size: int, now: float) -> int:
        """The first frames of a piece, `size` bytes, have left; returns how many of them came from outside."""
        from_outside = 0
        for entry, placement, count in piece.by_dialog(frames):
            entry.frames += count
            from_outside += count if placement is not None else 0  # the others begin here
        if self._context.ring is not None:
            for held in islice(piece.helds(), frames):
                self._context.ring.leave(held, now)
        if piece.quota is not None:
            piece.quota.left_at = now
        self.held.remove_first(piece, frames)
        self._release(piece, frames, size)
        return from_outside

    def _send(self, outlet: Outlet, data: Buffer) -> int:
        """Return the number of bytes that the link accepts at once; a link that fails gets no further frames."""
        try:
            return outlet.send(data)
        except Exception as error:  # noqa: BLE001 - any error of the link, or a bug of ours: it stays there
            self._break(outlet, error)
            return 0

    def _finish(self, outlet: Outlet | None, rest: Buffer) -> None:
        """The link keeps the end of the frame that it cut; if it cannot, its peer never sees the whole frame."""
        if outlet is None:
            return
        try:
            outlet.keep_rest(rest)
        except Exception as error:  # noqa: BLE001 - as in `_send`
            self._break(outlet, error)

    def _break(self, outlet: Outlet, error: Exception) -> None:
        self._broken, self._outlet = outlet, None
        self._context.report(outlet, error)

    # --- held frames leave in another way, or not at all ---

    def expire(self, now: float, most: int) -> int:
        """Drop frames past their lifetime, until at most about so many were visited; returns how many were."""
        due, visited = self.held.pop_due(now, most)
        for held in due:
            self._release(held, 1)
            self._drop_held(held, Disposition.EXPIRED_HERE, now)
        return visited

    def take_out(self, held: Held, now: float) -> bytearray | None:
        """Remove a frame that is rerouted and return it, aged; None when its lifetime has ended."""
        self._remove(held)
        if held.deadline <= now:
            self._drop_held(held, Disposition.EXPIRED_HERE, now)
            return None
        return held.aged(now)

    def drop_all(self, now: float) -> None:
        """The instance stops: drop and count everything that waits."""
        for held in list(self.held):
            self._remove(held)
            self._drop_held(held, Disposition.SHUTDOWN, now)

    def _drop_held(self, held: Held, disposition: Disposition, now: float) -> None:
        if self._context.ring is not None:
            self._context.ring.lose(held, disposition, now)
        self._context.drop(held.frame, disposition, None)

    def _remove(self, held: Held) -> None:
        self.held.remove(held)
        self._release(held, 1)

    def _release(self, piece: Piece, frames: int, size: int | None = None) -> None:
        """Take back the charge and the placement of the first frames of a piece, `size` bytes or all of it."""
        self.share.release(len(piece.data) if size is None else size, piece.quota, frames=frames)
        for _, placement, count in piece.by_dialog(frames):
            if placement is not None:
                self._context.affinity.leave(placement, count)


class DatabaseSink:
    """
    Frames for a database of this instance, by its broker instance.

    Attributes:
        delivered: Frames so far.
    """

    __slots__ = ("_database", "_deliver", "_drop", "_ring", "delivered", "runs")

    def __init__(self, database: bytes, deliver: Deliver, drop: Drop, ring: Ring | None = None) -> None:
        self.runs: list[Buffer] = []
        self.delivered = 0
        self._database = database
        self._deliver = deliver
        self._drop = drop
        self._ring = ring

    def flush(self, _now: float, origin: FrameOrigin, _entry_of: EntryOf) -> None:
        """Copy the frames out of the slab and deliver them."""
        frames = [bytes(run[start:stop]) for run in self.runs for start, stop in frame_bounds(run)]
        self._deliver(self._database, frames, origin)
        self.delivered += len(frames)
        self.runs.clear()

    def recover(self, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """They could not be delivered: drop all of them."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                frame, entry = run[start:stop], entry_of(run[start:stop])
                entry.frames -= 1
                if self._ring is not None:
                    self._ring.refuse(frame, entry, Disposition.STORE_FAILED, self._ring.take_back(frame), now)
                self._drop(frame, Disposition.STORE_FAILED, origin)
        self.runs.clear()


class DropSink:
    """Frames that are dropped for one reason."""

    __slots__ = ("_disposition", "_drop", "runs")

    def __init__(self, disposition: Disposition, drop: Drop) -> None:
        self.runs: list[Buffer] = []
        self._disposition = disposition
        self._drop = drop

    def flush(self, _now: float, origin: FrameOrigin, _entry_of: EntryOf) -> None:
        """Count each frame and advise its origin."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                self._drop(run[start:stop], self._disposition, origin)
        self.runs.clear()

    def recover(self, _now: float, _origin: FrameOrigin, _entry_of: EntryOf) -> None:
        """Do nothing more: counting cannot fail."""
        self.runs.clear()
