"""
Other levels of the log for a time, by component, without a restart.

Whoever looks for a fault wants to read more for a while and forgets to take it back; so every such level has an end.
Levels belong to the process, as its log does.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from broker.observe.logs import LogLevel, log_levels, set_component_level

COMPONENTS = (
    "admin",
    "application",
    "control",
    "daemon",
    "dialog",
    "journal",
    "net",
    "notify",
    "observe",
    "process",
    "store",
    "supervision",
    "tracing",
)
"""What logs: the parts of the package `broker`."""
SECONDS_MAX = 86_400.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ComponentLevel:
    """A level for a time. Shape: `component` empty for all that have none of their own; `until` UTC seconds."""

    component: str
    level: LogLevel
    until: float


class LogLevels:
    """What differs from the configuration now. Loop-only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._special: dict[str, ComponentLevel] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}

    @property
    def base(self) -> LogLevel:
        """The level of the configuration."""
        return log_levels()[""]

    @property
    def special(self) -> list[ComponentLevel]:
        """By component."""
        return sorted(self._special.values(), key=lambda one: one.component)

    def change(self, component: str, level: LogLevel | None, seconds: float) -> None:
        """This level from now on, for so long; None ends one that was given before."""
        end = self._ends.pop(component, None)
        if end is not None:
            end.cancel()
        set_component_level(component, level)
        if level is None:
            self._special.pop(component, None)
            log.warning("log level restored", of=component or "all", reason="it was asked for")
            return
        self._special[component] = ComponentLevel(component, level, time.time() + seconds)
        self._ends[component] = self._loop.call_later(seconds, self._end, component)
        log.warning("log level changed", of=component or "all", to=level, for_s=seconds)

    def close(self) -> None:
        """The levels of the configuration again."""
        for component in list(self._special):
            self._ends.pop(component).cancel()
            set_component_level(component, None)
        self._special.clear()

    def _end(self, component: str) -> None:
        del self._ends[component], self._special[component]
        set_component_level(component, None)
        log.warning("log level restored", of=component or "all", reason="its time is up")
