"""
A daemon that anybody speaks to, and a neighbour whose sealed dialog with it has to go on whatever they say.

    with Stage(directory) as stage:
        stage.converse(range(100))
        stage.check()
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

import broker
from examples.demo.topology import Topology, wait_for
from tests.fuzz.hearing import WrongAnswerError, judge, speak
from tests.fuzz.spoken import STEADY, Aim, script_of
from tests.support.identities import identity_files

SECONDS = 60.0
AT_ONCE = 8  # conversations
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"


class Stage:
    """
    The daemons. Shape: `here` is spoken to; `there` is the neighbour; `told` what was heard, counted; `steady` messages
    that went both ways meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        self.told: Counter[str] = Counter()
        self.steady = 0
        self._net = net = Topology(directory / "net")
        keys = directory / "keys"
        plain = {"encryption": "disabled", "authentication": "none"}
        billing = {"databases.billing": identity_files(keys, "billing", "orders"), "endpoint": plain}
        orders = {"databases.orders": identity_files(keys, "orders", "billing"), "endpoint": plain}
        self.here = net.add("here", forwarding=True, databases=["billing"], settings=billing)
        self.there = net.add("there", databases=["orders"], settings=orders)
        routes = f"CREATE ROUTE Orders WITH SERVICE_NAME = '{ORDERS}', ADDRESS = '{self.there.address}';"
        transport = "CREATE ROUTE Transport WITH ADDRESS = 'TRANSPORT';"
        net.script("here", "msdb", f"{routes}\n{transport}")
        services = "".join(f"CREATE QUEUE {q}; CREATE SERVICE [{s}] ON QUEUE {q} ([DEFAULT]);\n" for q, s in _SERVICES)
        grants = f"GRANT SEND ON SERVICE::[{BILLING}] TO [public]; GRANT SEND ON SERVICE::[{STEADY}] TO [CN=orders];\n"
        net.script("here", "billing", services + grants + routes + transport)
        route = f"CREATE ROUTE Steady WITH SERVICE_NAME = '{STEADY}', ADDRESS = '{self.here.address}';"
        binding = f"CREATE REMOTE SERVICE BINDING Steady TO SERVICE '{STEADY}' WITH USER = [billing];"
        net.script(
            "there", "orders", f"CREATE QUEUE Back; CREATE SERVICE [{ORDERS}] ON QUEUE Back;\n{route}\n{binding}"
        )

    def __enter__(self) -> Self:
        self._net.__enter__()
        self._net.start()
        with closing(self.there.connect("orders")) as db, db:
            self._handle = broker.begin_dialog(db, from_service=ORDERS, to_service=STEADY).conversation_handle
        self.talk(3)
        (row,) = self.there.query("SELECT conversation_id, far_broker_instance FROM sys.conversation_endpoints")
        (own,) = self.there.query("SELECT service_broker_guid FROM sys.databases WHERE name = 'orders'")
        ids = [_guid(row["conversation_id"]), _guid(row["far_broker_instance"]), _guid(own["service_broker_guid"])]
        self.aim = Aim(BILLING, ids[1], ids[0], ids[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._net.__exit__(kind, error, trace)

    @property
    def rss(self) -> int:
        """Bytes of the daemon that is spoken to."""
        return int(psutil.Process(self.here.pid).memory_info().rss)

    def converse(self, numbers: Iterable[int]) -> None:
        """
        Say the scripts of these numbers, several at a time, and judge the answers.

        Raises:
            WrongAnswerError: it names the number.
        """
        asyncio.run(self._converse(iter(numbers)))

    async def _converse(self, numbers: Iterator[int]) -> None:
        async def one_after_another() -> None:
            for number in numbers:  # shared: each takes the next
                script = script_of(number, self.aim)
                try:
                    heard = await speak(script, "127.0.0.1", self.here.port, random.Random(f"voice {number}"))
                    self.told += judge(script, heard)
                except (WrongAnswerError, OSError, TimeoutError) as error:
                    raise WrongAnswerError(f"conversation {number}: {type(error).__name__}: {error}") from error

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one_after_another())

    def talk(self, count: int) -> None:
        """Send so many messages on the neighbour's dialog, answer each, and see that each came once and in order."""
        first = self.steady
        with closing(self.there.connect("orders")) as db, db:
            for number in range(first, first + count):
                broker.get_dialog(db, self._handle).send(b"%d" % number)
        there = self._receive(self.here, "billing", "Steady", count, is_answering=True)
        back = self._receive(self.there, "orders", "Back", count)
        expected = [b"%d" % number for number in range(first, first + count)]
        assert (expected, expected) == (there, back), "the neighbour's dialog was disturbed"
        self.steady += count

    def _receive(self, daemon: Any, name: str, queue: str, count: int, *, is_answering: bool = False) -> list[bytes]:
        bodies: list[bytes] = []
        deadline = time.monotonic() + SECONDS
        with closing(daemon.connect(name)) as db:
            while len(bodies) < count:
                assert time.monotonic() < deadline, f"{len(bodies)} of {count} messages came to {queue}"
                with db:
                    for message in broker.receive(db, queue=queue, top=100, wait=1):
                        bodies.append(bytes(message.body))
                        if is_answering:
                            message.dialog.send(bytes(message.body))
        return bodies

    def check(self) -> None:
        """Both serve, account for every frame, and have logged no fault of their own."""
        wait_for(lambda: len(self.here.status()["connections"]) <= 2, seconds=SECONDS, what="every link ended")
        for daemon in (self.here, self.there):
            status = daemon.status()
            assert (True, 0) == (status["ready"], status["forwarding"]["unaccounted"]), daemon.name
            faults = [line for line in daemon.log.read_text().splitlines() if _is_fault(line)]
            assert not faults, f"{daemon.name}: {faults[:3]}"


_SERVICES = (("Billing", BILLING), ("Steady", STEADY))


def _is_fault(line: str) -> bool:
    return '"level":"error"' in line or '"level":"critical"' in line or "Traceback" in line


def _guid(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))
