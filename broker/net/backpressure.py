"""
Back-pressure: links whose frames find little room are not read for a while.

Room is kept for one more read of each link that feeds a bound: the share of one next hop, the whole pool, or the part
that frames of one peer may take where that is limited. A link that
brings frames which have to wait, and finds less room than that, is not read until there is; those that wait for it are
read again one by one, the longest first, each when there is room for what it may bring, beside what those bring that
were let go and have not been read yet. So nothing is dropped while a next hop is only slow.

A pause lasts so many seconds at most. If nothing has left the bound meanwhile, what fills it is dead or nearly so: from
then on what does not fit is dropped and nobody is held back, until something leaves.

A pause is also a pause for what the link brings for others. One that does bring frames which others take at once is
therefore paused for `SHARED_PAUSE_SECONDS` and a hundredth of the time at most: where it brings more for a slow next
hop than that one takes, what does not fit is dropped, and the others have their frames in time. Dialogs of databases
here are never held back: they send only while their next hop takes frames at once.

A link that is held back for several bounds is read again when the last of them lets it go. Loop-only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from broker.forwarding.entry import FrameOrigin
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import Bound, Pool, PoolQuota, has_room_for_one, is_tight
from broker.net.link import Link

GRANT_SECONDS = 0.05  # how long room is kept for a link that was let go; if it brings nothing by then, it has nothing
LOOK_SECONDS = 0.002  # when to look again for those that still wait, if nothing leaves before
REST_FACTOR = 99  # how much longer than it was paused a link is read on that others need as well
SHARED_PAUSE_SECONDS = 0.03  # for which such a link is paused at most
SHARED_SECONDS = 60.0  # how long it is remembered that they do


@dataclass(slots=True)
class _Stall:
    """
    One tight bound.

    Shape: `waiting` links that are held back for it, with the time since when, the longest first; `granted` those let
    go that have not been read yet: their `receives`, and until when to expect more; `gave_up_at` when nothing had left
    for too long, None while that is not so; `timer` ends the longest pause, at `due`.
    """

    waiting: dict[Link, float] = field(default_factory=dict)
    granted: dict[Link, tuple[int, float]] = field(default_factory=dict)
    gave_up_at: float | None = None
    timer: asyncio.TimerHandle | None = None
    due: float | None = None


@dataclass(slots=True)
class _History:
    """Of one link. Shape: `shared_at` when it last brought something for others as well; its last pause, in seconds."""

    shared_at: float = float("-inf")
    ended_at: float = float("-inf")
    lasted: float = 0.0

    def is_resting(self, now: float) -> bool:
        """Whether others may count on it that it is read."""
        return now - self.shared_at < SHARED_SECONDS and now - self.ended_at < REST_FACTOR * self.lasted


class Backpressure:
    """Which links are held back for which bound. Shape: `seconds` a pause lasts at most, 0 for none at all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stalls: dict[Bound, _Stall] = {}
        self._histories: WeakKeyDictionary[Link, _History] = WeakKeyDictionary()
        self._look: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def hold_back(self, outbox: Outbox, origin: FrameOrigin, is_shared: bool = False) -> None:  # noqa: FBT001, FBT002 - the forwarder's port has no names
        """What this origin brought has to wait: read no more from it where room is tight. In the middle of a pass."""
        if not isinstance(origin, Link) or not self._seconds:
            return
        now = self._loop.time()
        history = self._histories.setdefault(origin, _History())
        if is_shared:
            history.shared_at = now
        if history.is_resting(now):
            return
        pool = outbox.share.pool
        payer = pool.quotas.get(origin)
        for bound in (outbox.share, pool) if payer is None else (outbox.share, pool, payer):
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
            origin.slowed_by.add(_name(bound))
            origin.pause()
            self._arm(bound, stall)
            if now - history.shared_at < SHARED_SECONDS:
                self._loop.call_later(SHARED_PAUSE_SECONDS, self._end_shared, bound, stall, origin, now)
            return

    def drain(self, outbox: Outbox, now: float) -> None:
        """The link of this outbox can send: let frames leave."""
        outbox.drain(now)

    def look_again(self) -> None:
        """Frames have left, moved or expired: whoever finds room is read again. Cost: O(tight bounds)."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        now = self._loop.time()
        is_more = False
        for bound, stall in list(self._stalls.items()):
            self._let_go(bound, stall, now)
            is_more |= bool(stall.waiting and stall.granted)
            if not stall.waiting and has_room_for_one(bound, 0, len(stall.granted)):
                del self._stalls[bound]
        if is_more:
            self._look = self._loop.call_later(LOOK_SECONDS, self.look_again)

    def close(self) -> None:
        """Hold nobody back any more."""
        if self._look is not None:
            self._look.cancel()
        self.pause_for(0.0)

    def pause_for(self, seconds: float) -> None:
        """A pause lasts so long at most from now on, those under way as well; 0 holds nobody back."""
        self._seconds = seconds
        for bound, stall in list(self._stalls.items()):
            if not seconds:
                del self._stalls[bound]
                for link in list(stall.waiting):
                    self._resume(bound, stall, link, self._loop.time())
            self._arm(bound, stall)

    def _let_go(self, bound: Bound, stall: _Stall, now: float) -> None:
        """One by one, as many as there is room for."""
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
        """The longest pause has had its time, and so have all when nothing has left since it began."""
        stall = self._stalls[bound]
        stall.timer = stall.due = None
        now = self._loop.time()
        longest = next(iter(stall.waiting.values()), now)  # which may have begun after that for which this was set
        if bound.left_at < longest <= now + LOOK_SECONDS - self._seconds:
            stall.gave_up_at = now
        for link, since in list(stall.waiting.items()):
            if stall.gave_up_at is None and since + self._seconds > now + LOOK_SECONDS:
                break
            self._resume(bound, stall, link, now)
        self._arm(bound, stall)

    def _end_shared(self, bound: Bound, stall: _Stall, link: Link, since: float) -> None:
        """Others have waited long enough for what it brings them, if this is still the same pause."""
        if stall.waiting.get(link) == since:
            self._resume(bound, stall, link, self._loop.time())

    def _resume(self, bound: Bound, stall: _Stall, link: Link, now: float) -> None:
        since = stall.waiting.pop(link)
        link.slowed_by.discard(_name(bound))
        history = self._histories.setdefault(link, _History())
        history.ended_at, history.lasted = now, now - since
        link.resume()

    def _arm(self, bound: Bound, stall: _Stall) -> None:
        """The timer is that of the longest pause; one that is right is left alone, or it might never come to fire."""
        due = next(iter(stall.waiting.values())) + self._seconds if stall.waiting else None
        if due != stall.due:
            self._disarm(stall)
            if due is not None:
                stall.timer = self._loop.call_at(due, self._end, bound)
                stall.due = due

    def _disarm(self, stall: _Stall) -> None:
        if stall.timer is not None:
            stall.timer.cancel()
        stall.timer = stall.due = None


def _name(bound: Bound) -> str:
    """What a status calls the bound for which a link is not read."""
    if isinstance(bound, PoolQuota):
        return "limits.pool_share"
    return "endpoint.message_forward_size" if isinstance(bound, Pool) else "endpoint.message_forward_share"
