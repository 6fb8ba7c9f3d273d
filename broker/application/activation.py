"""
Activation: which function is given the messages of a queue, and how; the original's ACTIVATION clause of a queue.

It knows nothing of databases or threads. Applications see it as a `Reader` (`broker.application.reader`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from broker.store.quarantine import ATTEMPTS, REST_FIRST

TOP = 100  # messages of one conversation group in one transaction

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Activation:
    """
    What is run for a queue. The arguments of `broker.application.reader.reader` are the fields.

    Shape: `concurrency` 1 .. 1024; `top` and `attempts` at least 1; `retry_delay` seconds, at least 0.
    """

    function: Function
    queue: str
    concurrency: int = 1
    top: int = TOP
    attempts: int = ATTEMPTS
    retry_delay: float = REST_FIRST
    database: str | None = None
    single: bool = False
    end_dialogs: bool = True

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which runs in the loop."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def name(self) -> str:
        """Where the function is, as logs tell it."""
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{getattr(self.function, '__module__', '?')}.{name}"
