"""
How an instance leaves, from the first word to the last: announced, told to its peers, and waited for within a bound.

First it is not ready any more and goes on as before, for as long as those who ask for readiness need to notice. Then
nobody new is taken, every peer is told GOAWAY and moves, databases send nothing new, and what is held leaves. It ends
when nothing is left, when what is left waits for next hops that nobody reaches, or when the time is up. What is done at
each stage is up to the instance that leaves. Loop-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import structlog

from broker.net.farewell import Left

PROBED_SECONDS = 60.0  # readiness that nobody asked for that long is not announced
STUCK_SECONDS = 5.0  # for next hops that nobody reaches to come back
POLL_FIRST, POLL_MAX = 0.01, 0.1  # seconds between two looks at what is left
TOLD_SECONDS = 1.0  # between two lines in the log

log = structlog.get_logger(__name__)


class DrainStage(StrEnum):
    """How far it is."""

    SERVING = "serving"
    ANNOUNCED = "announced"  # not ready any more; everything else as before
    LEAVING = "leaving"  # peers move, what is held leaves
    LEFT = "left"  # nothing is waited for any more


@dataclass(frozen=True, slots=True)
class DrainBounds:
    """Seconds. Shape: `announce` for the first stage where readiness is asked for; `timeout` for all of it."""

    announce: float
    timeout: float


class Leaver(Protocol):
    """Who leaves."""

    def on_drain(self) -> None:
        """It begins: not ready any more."""

    async def leave(self, seconds: float) -> None:
        """Take nobody new, tell every peer, send nothing new; all within so many seconds from now."""

    async def left(self) -> Left:
        """What has not left yet."""


class Drain:
    """
    The leaving of one instance.

    Args:
        leaver: Who leaves.
        bounds_of: Asked when it begins.

    Shape: `reason` why, "" while it serves; `left` as of the last look; `changes` counts what was told of it;
    `on_change` is told too, to be set by those who want to know; `process` the one that ends behind it, set by whoever
    runs it, None where an application goes on without it.
    """

    def __init__(self, leaver: Leaver, bounds_of: Callable[[], DrainBounds]) -> None:
        self.stage = DrainStage.SERVING
        self.reason = ""
        self.left = Left()
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None
        self.process: int | None = None
        self._leaver = leaver
        self._bounds_of = bounds_of
        self._loop = asyncio.get_running_loop()
        self._probed_at = -math.inf
        self._until = math.inf
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether it leaves, or has left."""
        return self.stage is not DrainStage.SERVING

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left behind; False before the end."""
        return self.stage is DrainStage.LEFT and self.left.is_nothing

    @property
    def remaining_s(self) -> float:
        """Seconds until the time is up; infinite while it serves."""
        return max(0.0, self._until - self._loop.time())

    @property
    def sentence(self) -> str:
        """How far it is, in words."""
        match self.stage:
            case DrainStage.SERVING:
                return "serving"
            case DrainStage.ANNOUNCED:
                return f"draining: announced, {math.ceil(self.remaining_s)} s"
            case DrainStage.LEAVING:
                return f"draining: {self.left}, {math.ceil(self.remaining_s)} s"
            case DrainStage.LEFT:
                return "drained" if self.is_clean else f"not drained: {self.left}"

    @property
    def told(self) -> dict[str, Any] | None:
        """For a status; None while it serves."""
        if self.stage is DrainStage.SERVING:
            return None
        state = {"stage": self.stage.value, "reason": self.reason, "sentence": self.sentence}
        return state | self.left.fields | {"remaining_s": round(self.remaining_s, 3)}

    def probed(self) -> None:
        """Somebody asks whether to send anything here, and will ask again."""
        self._probed_at = self._loop.time()

    def begin(self, reason: str) -> None:
        """Leave, for this reason. Nothing happens when it has begun."""
        if self._task is not None:
            return
        self.reason = reason
        self._task = self._loop.create_task(self._run(self._bounds_of()), name="drain")

    async def end(self, reason: str) -> None:
        """Wait until it has left; it begins now, for this reason, if it has not begun."""
        self.begin(reason)
        assert self._task is not None
        await self._task

    async def look(self) -> Left:
        """What would have to leave, or has yet to."""
        if self.stage is not DrainStage.LEFT:
            self.left = await self._leaver.left()
        return self.left

    async def changed(self, since: int, seconds: float) -> None:
        """Wait until something is told that was not at `since` changes, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.changes <= since:
                    await self._changed.wait()

    async def _run(self, bounds: DrainBounds) -> None:
        now = self._loop.time()
        self._until = now + bounds.timeout
        is_asked = now - self._probed_at < PROBED_SECONDS
        announce = min(bounds.announce, bounds.timeout) if is_asked else 0.0
        log.info("instance draining", reason=self.reason, announce_s=announce, timeout_s=bounds.timeout)
        self._leaver.on_drain()
        self._go_to(DrainStage.ANNOUNCED)
        try:
            await asyncio.sleep(announce)
            self._go_to(DrainStage.LEAVING)
            async with asyncio.timeout(max(0.0, self.remaining_s)):
                await self._leaver.leave(self.remaining_s)
                await self._until_left()
        except TimeoutError:
            await self.look()
        finally:
            self._go_to(DrainStage.LEFT)
        if self.is_clean:
            log.info("instance drained", seconds=round(self._loop.time() - now, 3))
        else:
            log.warning("instance not drained", **self.left.fields, seconds=round(self._loop.time() - now, 3))

    async def _until_left(self) -> None:
        """Until nothing is left, or what is left has no hope."""
        begun_at = self._loop.time()
        told, tell_at, pause = Left(), begun_at, POLL_FIRST
        while not (left := await self.look()).is_nothing:
            now = self._loop.time()
            if left.is_stuck and now >= begun_at + STUCK_SECONDS:
                return
            if left != told or now >= tell_at:
                self._tell()
            if now >= tell_at:
                log.info("draining", **left.fields, remaining_s=round(self.remaining_s, 1))
                tell_at = now + TOLD_SECONDS
            told, pause = left, min(POLL_MAX, pause * 1.5)
            await asyncio.sleep(pause)

    def _go_to(self, stage: DrainStage) -> None:
        self.stage = stage
        self._tell()

    def _tell(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed.clear()
        self.on_change()
