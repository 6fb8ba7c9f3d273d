"""
Traffic that goes on: an application that sends some messages a second on several dialogs, and others that answer.

    with steady(net, ORDERS.path(net), targets, per_second=40):
        ...

Each has a connection of its own to its database, as applications do; everything is sent and received in transactions.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import broker

DIALOGS = 6  # to each service
BEATS = 10  # of the sender, a second


@contextmanager
def steady(
    sender: Path, from_service: str, targets: Mapping[str, Sequence[Path]], *, queue: str, per_second: int
) -> Iterator[list[BaseException]]:
    """
    Let messages go while the block lasts.

    Args:
        sender: Database file of the application that begins the dialogs.
        from_service: Its service.
        targets: By service the files in which it is answered.
        queue: Its name in every database.
        per_second: Messages to all services together.

    Yields:
        What failed; empty while all is well.
    """
    stop, failures = threading.Event(), list[BaseException]()

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by whoever waits
            failures.append(error)

    works: list[Callable[[], None]] = [lambda: _send(sender, from_service, list(targets), per_second, stop)]
    files = [sender, *(path for paths in targets.values() for path in paths)]
    works += [lambda path=path: _answer(path, queue, stop, answers=path != sender) for path in files]  # type: ignore[misc]
    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _send(path: Path, from_service: str, services: list[str], per_second: int, stop: threading.Event) -> None:
    db = sqlite3.connect(path, timeout=60)
    try:
        with db:
            dialogs = [
                broker.begin_dialog(db, from_service=from_service, to_service=service)
                for service in services
                for _ in range(DIALOGS)
            ]
        number = 0
        while not stop.wait(1 / BEATS):
            with db:
                for _ in range(per_second // BEATS):
                    dialogs[number % len(dialogs)].send(b'{"order": %d}' % number)
                    number += 1
    finally:
        db.close()


def _answer(path: Path, queue: str, stop: threading.Event, *, answers: bool) -> None:
    db = sqlite3.connect(path, timeout=60)
    try:
        while not stop.is_set():
            with db:
                for message in broker.receive(db, queue=queue, top=100, wait=0.25):
                    if answers and not (message.is_end or message.is_error):
                        message.dialog.send(b"ok")
    finally:
        db.close()
