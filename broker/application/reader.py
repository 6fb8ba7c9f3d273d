"""
Readers: functions that are given the messages of a queue, the original's activated procedures.

This is what applications see of readers: how one is made, found and run. `activation` is what is known of each by those
that run it (`runner`, `desk`, `work`), and these know nothing of this module.
There is no list of all readers anywhere: `broker run` and `run_readers` are given a module, a `Readers` or the readers.

Source: Service Broker documentation, "Service Broker Activation".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from broker.application.activation import TOP, Activation, Function
from broker.application.argument import check_count, check_seconds
from broker.errors import ConversationError
from broker.store.quarantine import ATTEMPTS, REST_FIRST

if TYPE_CHECKING:
    import asyncio

    from broker.application.runner import Databases

CONCURRENCY_MAX = 1024  # groups at a time of one reader: each has a connection and, if not async, a thread


@dataclass(frozen=True, slots=True)
class Reader(Activation):
    """A function that reads a queue. `reader` makes it, of its arguments; calling it calls the function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function itself, for tests of it."""
        return self.function(*arguments, **keywords)

    def run(self, database: Any, *, grace: float | None = None) -> None:
        """Run this reader alone, in this thread, until SIGTERM or SIGINT; see `run_readers`."""
        from broker.application.runner import run_until_signal  # noqa: PLC0415 - slow to import, for this alone

        run_until_signal([self], database, grace=grace)


def reader(
    queue: str,
    *,
    concurrency: int = 1,
    top: int = TOP,
    attempts: int = ATTEMPTS,
    retry_delay: float = REST_FIRST,
    database: str | None = None,
    single: bool = False,
    end_dialogs: bool = True,
) -> Callable[[Function], Reader]:
    """
    Make a function the reader of a queue: `@broker.reader("BillingQueue")` above `def handle(db, messages)`.

    The function may be a coroutine function. It is given a connection to the database and messages of one conversation
    group, in order; what it writes there, sends and ends is committed together with the receipt of the messages when it
    returns, and rolled back when it raises.

    Args:
        queue: Name of the queue.
        concurrency: Conversation groups at a time in one process, 1 .. 1024.
        top: At most so many messages at once, at least 1.
        attempts: Failures of a message after which its dialog is put in quarantine, at least 1.
        retry_delay: Seconds until the second attempt, doubled for each further one; at least 0.
        database: Name of the database; None is the one given that has a queue of that name.
        single: One message at a time: `def handle(db, message)`; `top` is then 1.
        end_dialogs: End this side of dialogs that the far side has ended, or that failed, once the function has
            handled their last message, unless it ended them itself.

    Raises:
        ValueError, TypeError: an argument that is not of its range or kind; and a function, where it is decorated, that
            cannot be called with a connection and messages.
    """
    if not isinstance(queue, str):
        raise TypeError("a reader needs the name of its queue: @broker.reader('BillingQueue')")
    try:
        concurrency = check_count(concurrency, "concurrency", 0, least=1, most=CONCURRENCY_MAX)
        top = check_count(top, "top", 0, least=1)
        attempts = check_count(attempts, "attempts", 0, least=1)
        retry_delay = check_seconds(retry_delay, "retry_delay", 0, may_be_zero=True)
    except ConversationError as error:
        raise ValueError(error.problem) from None
    if single and top not in (1, TOP):
        raise ValueError(f"single gives one message at a time: leave out top={top}")

    def make(function: Function) -> Reader:
        _check_function(function, single=single)
        most = 1 if single else top
        return Reader(function, queue, concurrency, most, attempts, retry_delay, database, single, end_dialogs)

    return make


def _check_function(function: object, *, single: bool) -> None:
    """See that it can be called as readers are. Raises TypeError."""
    if not callable(function):
        raise TypeError(f"a reader is a function, not {type(function).__name__}")
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may give more
    except (TypeError, ValueError):
        return  # written in C: it does not say
    try:
        signature.bind(None, None)
    except TypeError:
        given = "message" if single else "messages"
        expected = f"a reader is called with the connection and the {given}: def handle(db, {given})"
        shown = f"{getattr(function, '__name__', type(function).__name__)}{signature}"
        raise TypeError(f"{expected}, not {shown!r}") from None


@dataclass(slots=True)
class Readers:
    """Readers of an application, collected: `app = broker.Readers()`, then `@app.reader("BillingQueue")`."""

    readers: list[Reader] = field(default_factory=list)

    def reader(self, queue: str, **options: Any) -> Callable[[Function], Reader]:
        """As `broker.reader`, and collect it."""
        make = reader(queue, **options)

        def collect(function: Function) -> Reader:
            self.readers.append(make(function))
            return self.readers[-1]

        return collect

    def __iter__(self) -> Iterator[Reader]:
        return iter(self.readers)


async def run_readers(
    readers: object, databases: Databases, *, grace: float | None = None, stop: asyncio.Event | None = None
) -> bool:
    """
    Run readers in this loop until `stop` is set or the task is cancelled.

    Args:
        readers: A reader, a list of them, a `Readers` or a module that has some.
        databases: The file of each database by name, or the one file.
        grace: Seconds for what is under way when it ends; None is 30.
        stop: Set it to end.

    Returns:
        Whether everything under way was finished.

    Raises:
        TypeError: there is no reader.
        ConversationError: 148 `grace` is no time; 911 no such database; 208 no such queue.
        StoreUnavailableError: a file cannot be used.
    """
    import asyncio  # noqa: PLC0415 - slow to import, and most who make a reader do not run it here

    from broker.application.runner import run_until  # noqa: PLC0415 - as above

    return await run_until(find_readers(readers), databases, grace=grace, stop=stop or asyncio.Event())


def find_readers(target: object) -> list[Reader]:
    """
    The readers that something holds: a reader, a `Readers` or another iterable of readers, a module.

    Raises:
        TypeError: it holds none.
    """
    if isinstance(target, Reader):
        return [target]
    members: Iterable[object] = ()
    if isinstance(target, ModuleType):
        members = vars(target).values()
        collected = [one for member in members if isinstance(member, Readers) for one in member]
        members = [*members, *collected]
    elif isinstance(target, Iterable):
        members = target
    found = {id(member): member for member in members if isinstance(member, Reader)}  # a name may be bound twice
    if not found:
        what = f"module {target.__name__!r}" if isinstance(target, ModuleType) else repr(target)
        raise TypeError(f"there is no reader in {what}: put @broker.reader('QUEUE') above a function")
    return list(found.values())
