"""
Back-pressure: links whose frames find little space in the forwarding pool are not read for a while.

Space is kept for one more read of each link that feeds a bound: the share of one next hop, the whole pool, or the part
of one peer where that is limited. A link whose frames have to wait, and that finds less space than that, is paused.
Paused links are read again one by one, the longest first, each when there is space for what it may bring, along with
what those may bring that were resumed and not read yet. So nothing is dropped while a next hop is only slow.

The length of a pause is limited. If no frame has left the bound during the pause, the next hops that fill it are dead
or nearly so. From then on frames that do not fit are dropped and no link is paused for the bound, until a frame leaves
it.

A pause also delays the frames that the link carries for other next hops. A link with frames that other next hops accept
at once is therefore paused for `SHARED_PAUSE_SECONDS` and a hundredth of the time at most. If such a link brings more
for a slow next hop than that hop accepts, the frames that do not fit are dropped, and the other next hops have their
frames in time. Databases here are never paused: they send only while their next hop accepts frames at once.

A link that is paused for several bounds is read again when the last of them resumes it. Loop-only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from broker.forwarding.entry import FrameOrigin
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import Bound, Pool, PoolQuota, has_room_for_one, is_tight
from broker.net.link import Link
from broker.supervision import Timer

GRANT_SECONDS = 0.05  # how long space is kept for a link that was resumed; if it brings nothing by then, it has nothing
RETRY_SECONDS = 0.002  # after which those that still wait are checked again, if nothing leaves before
REST_FACTOR = 99  # how much longer than it was paused a link is read on that others need as well
SHARED_PAUSE_SECONDS = 0.03  # for which such a link is paused at most
SHARED_SECONDS = 60.0  # how long it is remembered that they do


@dataclass(slots=True)
class _Stall:
    """One tight bound."""

    waiting: dict[Link, float] = field(default_factory=dict)  # paused links and since when, the longest first
    granted: dict[Link, tuple[int, float]] = field(default_factory=dict)  # resumed, not read: `receives`, until when
    gave_up_at: float | None = None  # when nothing had left for too long
    timer: Timer = field(default_factory=Timer)  # ends the longest pause


@dataclass(slots=True)
class _History:
    """Of one link, and of its last pause."""

    shared_at: float = float("-inf")  # when it last brought something for others as well
    ended_at: float = float("-inf")
    lasted: float = 0.0  # seconds

    def is_resting(self, now: float) -> bool:
        """Whether it has to be read, because others need it too and it was paused lately."""
        return now - self.shared_at < SHARED_SECONDS and now - self.ended_at < REST_FACTOR * self.lasted


class Backpressure:
    """Which links are paused for which bound; a pause lasts `seconds` at most, with 0 there is none."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stalls: dict[Bound, _Stall] = {}
        self._histories: WeakKeyDictionary[Link, _History] = WeakKeyDictionary()
        self._retry = Timer()
        self._loop = asyncio.get_running_loop()

    def on_waiting(self, outbox: Outbox, origin: FrameOrigin, is_shared: bool = False) -> None:  # noqa: FBT001, FBT002 - the forwarder's port has no names
        """What this origin brought has to wait: pause it where space is tight. Called in the middle of a pass."""
        if not isinstance(origin, Link) or not self._seconds:
            return
        now = self._loop.time()
        history = self._histories.setdefault(origin, _History())
        if is_shared:
            history.shared_at = now
        if history.is_resting(now):
            return
        pool = outbox.share.pool
        quota = pool.quotas.get(origin)
        for bound in (outbox.share, pool) if quota is None else (outbox.share, pool, quota):
            stall = self._stalls.get(bound)
            if not is_tight(bound, 0 if stall is None else len(stall.waiting)):
                continue
            if stall is None:
                stall = self._stalls[bound] = _Stall()
            if origin in stall.waiting:
                return
            if stall.gave_up_at is not None and bound.left_at < stall.gave_up_at:
                continue
            stall.gave_up_at = None
            stall.granted.pop(origin, None)
            stall.waiting[origin] = now
            origin.pause(_name(bound))
            self._arm(bound, stall)
            if now - history.shared_at < SHARED_SECONDS:
                self._loop.call_later(SHARED_PAUSE_SECONDS, self._end_shared, bound, stall, origin, now)
            return

    def release_waiting(self) -> None:
        """Frames have left, moved or expired: resume links that find space now. Cost: O(tight bounds)."""
        self._retry.cancel()
        now = self._loop.time()
        is_more = False
        for bound, stall in list(self._stalls.items()):
            self._resume_waiting(bound, stall, now)
            is_more |= bool(stall.waiting and stall.granted)
            if not stall.waiting and has_room_for_one(bound, 0, len(stall.granted)):
                del self._stalls[bound]
        if is_more:
            self._retry.after(RETRY_SECONDS, self.release_waiting)

    def close(self) -> None:
        """End all pauses."""
        self._retry.cancel()
        self.limit_pauses(0.0)

    def limit_pauses(self, seconds: float) -> None:
        """A pause lasts so long at most from now on, those under way as well; with 0 there is none."""
        self._seconds = seconds
        for bound, stall in list(self._stalls.items()):
            if not seconds:
                del self._stalls[bound]
                for link in list(stall.waiting):
                    self._resume(bound, stall, link, self._loop.time())
            self._arm(bound, stall)

    def _resume_waiting(self, bound: Bound, stall: _Stall, now: float) -> None:
        """One by one, as many as there is space for."""
        stall.granted = {
            link: (receives, until)
            for link, (receives, until) in stall.granted.items()
            if link.receives == receives and now < until
        }
        while stall.waiting and has_room_for_one(bound, len(stall.waiting), len(stall.granted)):
            link = next(iter(stall.waiting))
            self._resume(bound, stall, link, now)
            stall.granted[link] = (link.receives, now + GRANT_SECONDS)
        self._arm(bound, stall)

    def _end(self, bound: Bound) -> None:
        """The longest pause is over, and so are all when nothing has left since it began."""
        stall = self._stalls[bound]
        now = self._loop.time()
        longest = next(iter(stall.waiting.values()), now)  # which may have begun after that for which this was set
        if bound.left_at < longest <= now + RETRY_SECONDS - self._seconds:
            stall.gave_up_at = now
        for link, since in list(stall.waiting.items()):
            if stall.gave_up_at is None and since + self._seconds > now + RETRY_SECONDS:
                break
            self._resume(bound, stall, link, now)
        self._arm(bound, stall)

    def _end_shared(self, bound: Bound, stall: _Stall, link: Link, since: float) -> None:
        """A link that others need is read again, if this is still the same pause."""
        if stall.waiting.get(link) == since:
            self._resume(bound, stall, link, self._loop.time())

    def _resume(self, bound: Bound, stall: _Stall, link: Link, now: float) -> None:
        since = stall.waiting.pop(link)
        history = self._histories.setdefault(link, _History())
        history.ended_at, history.lasted = now, now - since
        link.resume(_name(bound))

    def _arm(self, bound: Bound, stall: _Stall) -> None:
        """The timer is that of the longest pause."""
        due = next(iter(stall.waiting.values())) + self._seconds if stall.waiting else None
        stall.timer.at(due, self._end, bound)


def _name(bound: Bound) -> str:
    """Return the name, in a status, of the bound for which a link is not read."""
    if isinstance(bound, PoolQuota):
        return "limits.pool_share"
    return "endpoint.message_forward_size" if isinstance(bound, Pool) else "endpoint.message_forward_share"
