"""
Open dialogs: what a hundred thousand of them cost while they are begun, rest, are used, outlive a restart and end.

Application, daemon, gateway, the target's daemon and application, each a process; both databases on the disk
(`synchronous=FULL`). In each phase it is told how long it took until everything had been received at the other end, how
many of the initiator's messages were sent again until then, how much memory both daemons have, how large both databases
are and how busy both daemons were.
"""

import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import broker
from bench.dialogs import QUEUE, ApplicationError, Ends, ends
from bench.figures import Row, cpu_seconds, resident_mib
from bench.scenarios.timetable import Application, quantile
from examples.demo.topology import Daemon, TimedOutError, wait_for

BATCH = 1000  # dialogs in a transaction
PAYLOAD = bytes(256)
NEW_DIALOGS = 50  # that are begun beside the open ones, one after the other
WAIT = 60.0  # seconds for one message
PATIENCE = 3600.0  # for a phase
RESTART_SECONDS = 600.0  # for a daemon to stop, and for it to serve again
SETTLE_SECONDS = 1.0  # after which nothing of a phase is left to do but what goes on for ever

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """Shape: `dialogs` that are open at one time; `idle_seconds` that they are watched."""

    dialogs: int
    idle_seconds: float


QUICK = Scale(dialogs=2_000, idle_seconds=3.0)
FULL = Scale(dialogs=100_000, idle_seconds=60.0)


def measure(scale: Scale, *, tell: Tell = lambda _: None) -> list[Row]:
    """
    A row of each phase.

    Raises:
        ApplicationError: an application ended, or a message did not come.
        TimedOutError: a daemon did not come back, or dialogs did not end.
    """
    with ends() as net:
        return phases_of(net, scale, tell=tell)


def phases_of(net: Ends, scale: Scale, *, tell: Tell = lambda _: None) -> list[Row]:
    """The same between two databases that are there. Raises as `measure`."""
    count = scale.dialogs
    with Application(initiate, str(net.orders)) as near, Application(answer, str(net.billing)) as far:
        phases = _Phases(net, f"{count:,} open dialogs, one gateway", tell)
        before = {path: _open(path) for path in (net.orders, net.billing)}

        def to_each(word: str) -> None:
            far.say("take", count)
            near.ask(word, count, seconds=PATIENCE)
            far.answer(PATIENCE)

        phases.run("nothing open", lambda: time.sleep(SETTLE_SECONDS), 0)
        phases.run("begun, a message in each", lambda: to_each("begin"), count)
        phases.run("idle", lambda: time.sleep(scale.idle_seconds), 0)
        phases.run("one more message in each", lambda: to_each("send"), count)
        phases.new_dialogs(near, far)
        for daemon in (net.sender, net.target):
            phases.restart(daemon)
        phases.run("one more message in each, restarted", lambda: to_each("send"), count)
        far.say("end", count)
        phases.run("ended by both sides", lambda: _finish(before, near, far, count), count)
        return phases.rows


def initiate(db: sqlite3.Connection, pipe: Connection) -> None:
    """Answers (begin | send | new | end, count) with a list of seconds, one for each that was waited for."""
    handles: list[bytes] = []
    while True:
        word, count = pipe.recv()
        pipe.send(_DOES[word](db, handles, count))


def _begin(db: sqlite3.Connection, handles: list[bytes], count: int) -> list[float]:
    for start in range(0, count, BATCH):
        with db:
            for _ in range(min(BATCH, count - start)):
                dialog = broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing")
                dialog.send(PAYLOAD)
                handles.append(dialog.conversation_handle.bytes)
    return []


def _send(db: sqlite3.Connection, handles: list[bytes], _count: int) -> list[float]:
    for start in range(0, len(handles), BATCH):
        with db:
            for handle in handles[start : start + BATCH]:
                broker.get_dialog(db, _guid(handle)).send(PAYLOAD)
    return []


def _new(db: sqlite3.Connection, _handles: list[bytes], count: int) -> list[float]:
    """Begin a dialog, and wait for the answer to its first message."""
    seconds = []
    for _ in range(count):
        begun = time.monotonic()
        with db:
            dialog = broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing")
            dialog.send(PAYLOAD)
        with db:
            broker.receive(db, queue=QUEUE, conversation=dialog, wait=WAIT)
        seconds.append(time.monotonic() - begun)
        with db:
            dialog.end()
    return seconds


def _end(db: sqlite3.Connection, handles: list[bytes], _count: int) -> list[float]:
    for start in range(0, len(handles), BATCH):
        with db:
            for handle in handles[start : start + BATCH]:
                broker.get_dialog(db, _guid(handle)).end()
    return []


_DOES: dict[str, Callable[[sqlite3.Connection, list[bytes], int], list[float]]] = {
    "begin": _begin,
    "send": _send,
    "new": _new,
    "end": _end,
}


def answer(db: sqlite3.Connection, pipe: Connection) -> None:
    """
    Answers (take | reply | end, count) when so many messages were taken, answered, or so many dialogs ended.

    A dialog that the far side ends is ended.
    """
    while True:
        word, count = pipe.recv()
        done = ended = 0
        while ended < count if word in ("reply", "end") else done < count:
            with db:
                messages = broker.receive(db, queue=QUEUE, top=BATCH, wait=WAIT)
                for message in messages:
                    if message.is_end:
                        message.dialog.end()
                        ended += 1
                    elif word == "reply":
                        message.dialog.send(message.body)
            if not messages:
                raise ApplicationError(f"{word}: {done + ended:,} of {count:,} messages came")
            done += len(messages)
        pipe.send(done)


class _Phases:
    """Looks at both daemons in one phase after the other."""

    def __init__(self, net: Ends, case: str, tell: Tell) -> None:
        self.rows: list[Row] = []
        self._net, self._case, self._tell = net, case, tell

    def run(self, name: str, work: Callable[[], object], messages: int) -> None:
        """Do it, and tell how long it took; `messages` of it, if it has any."""
        self._tell(name)
        sent_again, before, begun = self._sent_again(), self._busy(), time.monotonic()
        work()
        seconds = time.monotonic() - begun
        values = {"seconds": seconds} | ({"messages_s": messages / seconds} if messages else {})
        values["resent"] = float(self._sent_again() - sent_again)
        busy = {name: 100 * (after - before[name]) / seconds for name, after in self._busy().items()}
        time.sleep(SETTLE_SECONDS)
        self._add(name, values | busy)

    def new_dialogs(self, near: Application, far: Application) -> None:
        """How long one more dialog takes, from its begin to the answer to its first message."""
        self._tell("new dialogs beside them")
        far.say("reply", NEW_DIALOGS)
        taken = sorted(near.ask("new", NEW_DIALOGS, seconds=PATIENCE))
        far.answer(PATIENCE)
        values = {"p50_ms": 1e3 * quantile(taken, 0.5), "max_ms": 1e3 * taken[-1], "seconds": sum(taken)}
        self._add(f"{NEW_DIALOGS} new dialogs, one after the other", values)

    def restart(self, daemon: Daemon) -> None:
        """From the word to stop until it serves again."""
        self._tell(f"restart of the {daemon.name}")
        begun = time.monotonic()
        with suppress(subprocess.TimeoutExpired):  # it takes as long as it takes
            daemon.stop()
        wait_for(lambda: not daemon.is_running, seconds=RESTART_SECONDS, what=f"{daemon.name} stopped")
        stopped = time.monotonic()
        daemon.start(wait=False)
        while True:
            try:
                daemon.wait_ready()
                break
            except TimedOutError:
                if not daemon.is_running or time.monotonic() - stopped > RESTART_SECONDS:
                    raise
        seconds = time.monotonic() - stopped
        self._add(f"restart of the {daemon.name}", {"stop_ms": 1e3 * (stopped - begun), "seconds": seconds})

    def _sent_again(self) -> int:
        """Of the initiator's messages, since its daemon was started."""
        services: dict[str, dict[str, int]] = self._net.sender.status()["databases"]["orders"]["services"]
        return sum(counts["resent"] for counts in services.values())

    def _busy(self) -> dict[str, float]:
        """CPU seconds of each daemon so far."""
        return {f"{one.name}_pct": cpu_seconds(one.pid) for one in (self._net.sender, self._net.target)}

    def _add(self, name: str, values: dict[str, float]) -> None:
        memory = {f"{one.name}_mib": resident_mib(one.pid) for one in (self._net.sender, self._net.target)}
        sizes = {"initiator_db_mib": _mib(self._net.orders), "target_db_mib": _mib(self._net.billing)}
        self.rows.append(Row("open-dialogs", self._case, "phases", name, "seconds", values | memory | sizes))


def _finish(before: Mapping[Path, int], near: Application, far: Application, count: int) -> None:
    """Both sides end everything, until no more dialogs are open than before."""
    near.ask("end", count, seconds=PATIENCE)
    far.answer(PATIENCE)
    for path, others in before.items():
        wait_for(partial(_is_over, path, others), seconds=PATIENCE, what=f"the end of all dialogs in {path.name}")


def _is_over(path: Path, others: int) -> bool:
    return _open(path) <= others


def _open(path: Path) -> int:
    """Dialogs that have not ended on both sides."""
    with closing(sqlite3.connect(path, timeout=WAIT)) as db:
        return int(db.execute("SELECT count(*) FROM broker_conversation WHERE state <> 'CD'").fetchone()[0])


def _mib(path: Path) -> float:
    """A database with what SQLite keeps beside it."""
    files = (path.with_name(path.name + end) for end in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists()) / 2**20


def _guid(handle: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=handle)
