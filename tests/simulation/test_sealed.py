"""
Sealed dialogs through a gateway that is hostile: it reads, changes, cuts off, repeats, keeps back, swaps and makes up.

Whatever it does, what arrives is what was sent, once and in order, and nothing that was sealed is in what it saw. When
it stops, everything arrives.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import receive
from broker.conversation.frames import Contact, Fragment, Travel, ack_frame, fault_frame, message_frame
from broker.errors import FrameMalformedError
from broker.protocol.frame import Fault, Header, decode_dialog, encode_dialog
from broker.protocol.layout import Flag
from broker.routing.route import RouteProperties
from broker.security.session import DialogCredentials
from tests.simulation.instance import Instance, Part
from tests.simulation.machine import MachineLoop
from tests.simulation.world import Told, World, perform
from tests.support.dialog import QUEUE, rows
from tests.support.identities import credentials

MODES = ["FULL", "ANONYMOUS"]
SECRET = b"plain text that nobody on the way may read"
MESSAGES = 12
SEEDS = range(1, 9)


@dataclass
class Hostile:
    """The gateway: of each frame some chance decides what arrives. Shape: `seen` all that it could read."""

    chance: random.Random
    is_anonymous: bool
    seen: list[bytes] = field(default_factory=list)
    is_active: bool = True

    def tamper(self, near: str, _far: str, frame: bytes) -> list[bytes]:
        """What leaves the gateway for one frame; what comes to it is only noted."""
        if near != "g":
            self.seen.append(frame)
            return [frame]
        if not self.is_active:
            return [frame]
        deed = self.chance.choice(DEEDS)
        return [one for one in deed(self, frame) if _is_frame(one)]


def _is_frame(frame: bytes) -> bool:
    """Whether a link takes it at all; else it ends, and what was in it is lost."""
    try:
        decode_dialog(frame)
    except FrameMalformedError:
        return False
    return True


def _flip(hostile: Hostile, frame: bytes) -> list[bytes]:
    at = hostile.chance.randrange(5, len(frame))  # not the length and the kind: the link would end
    return [frame[:at] + bytes([frame[at] ^ 1 << hostile.chance.randrange(8)]) + frame[at + 1 :]]


def _truncate(hostile: Hostile, frame: bytes) -> list[bytes]:
    header, body = decode_dialog(frame)
    return [encode_dialog(header, body[: hostile.chance.randrange(len(body) + 1)])]


def _replay(hostile: Hostile, frame: bytes) -> list[bytes]:
    return [frame, hostile.chance.choice(hostile.seen), frame]


def _swap(hostile: Hostile, frame: bytes) -> list[bytes]:
    header, _ = decode_dialog(frame)
    other, body = decode_dialog(hostile.chance.choice(hostile.seen))
    moved = Header(**{name: getattr(other, name) for name in _FIELDS})
    moved.conversation_id = header.conversation_id
    return [encode_dialog(header, body), encode_dialog(moved, body)]


def _open_up(hostile: Hostile, frame: bytes) -> list[bytes]:
    """Sealed no more, with a body of its own; who begins an anonymous dialog is anybody, so not its beginning."""
    header, _ = decode_dialog(frame)
    if hostile.is_anonymous and header.place == (0, 0):
        return []
    header.flags &= ~Flag.SEALED
    return [encode_dialog(header, b"\0\0\0\x01\x80made up")]


def _forge(hostile: Hostile, frame: bytes) -> list[bytes]:
    """Acknowledge everything, fail the dialog, end it: in clear, in the name of whoever has sent this frame."""
    header, _ = decode_dialog(frame)
    contact = Contact(
        header.conversation_id,
        not header.is_from_target,
        header.from_service,
        header.from_broker_instance,
        header.to_service,
        header.to_broker_instance,
    )
    number = hostile.chance.randbytes(16)
    ended = Fragment((header.sequence_number, 0), Flag.LAST_FRAGMENT | Flag.END_DIALOG, b"", (0, 0))
    return [
        ack_frame(contact, Travel(), number, (hostile.chance.randrange(1, MESSAGES), 0)),
        fault_frame(contact, Travel(), number, Fault(-8462, "gone")),
        message_frame(contact, Travel(), number, ended),
    ]


def _lose(_hostile: Hostile, _frame: bytes) -> list[bytes]:
    return []


def _pass(_hostile: Hostile, frame: bytes) -> list[bytes]:
    return [frame]


_FIELDS = Header.__dataclass_fields__
DEEDS: list[Callable[[Hostile, bytes], list[bytes]]] = [
    _flip, _truncate, _replay, _swap, _open_up, _forge, _lose, _pass, _pass,
]  # fmt: skip


class Stage(World):
    """An initiator `a` and a target `b`, with the gateway `g` between them."""

    def __init__(self, told: Told, *played: Any, mode: str) -> None:
        loop, chance, self.directory, outcome = played
        super().__init__(loop, chance, outcome)
        self.told = told
        self.hostile = Hostile(random.Random(told.seed), is_anonymous=mode == "ANONYMOUS")
        self.net.tamper = self.hostile.tamper

    async def run(self) -> None:
        is_anonymous = self.hostile.is_anonymous
        self.add(Part("g", (way("A", "a"), way("B", "b"))))
        self.a = self._end("a", credentials(None if is_anonymous else "orders", "billing"))
        self.b = self._end("b", credentials("billing", *(() if is_anonymous else ("orders",))))
        with self.at(self.a) as db:
            db.execute(
                "INSERT INTO broker_remote_service_binding (name, remote_service_name, remote_principal,"
                " is_anonymous_on) VALUES ('ToBilling', 'B', 'billing', ?)",
                (is_anonymous,),
            )
        with self.at(self.b) as db:
            grantee = "public" if is_anonymous else "CN=orders"
            db.execute(
                "INSERT INTO broker_permission (permission, securable, principal, state)"
                " VALUES ('SEND', 'B', ?, 'GRANT')",
                (grantee,),
            )
        try:
            await self.told.tell(self)
        finally:
            await self.part()

    def _end(self, name: str, known: DialogCredentials) -> Instance:
        local, out = (RouteProperties(address="LOCAL"),), (way(None, "g"),)
        return self.add(Part(name, local, self.directory / f"{name}.db", name.upper(), out, credentials=known))

    @contextmanager
    def at(self, end: Instance) -> Iterator[sqlite3.Connection]:
        assert end.part.path is not None
        with closing(sqlite3.connect(end.part.path, isolation_level=None)) as db:
            yield db

    def begin(self, count: int = 2) -> list[Dialog]:
        dialogs: list[Dialog] = []
        with self.at(self.a) as db:
            for number in range(count):
                dialog = begin_dialog(db, from_service="A", to_service="B", lifetime=3600)
                for message in range(MESSAGES):
                    dialog.send(body(number, message), type="X")
                dialogs.append(dialog)
        return dialogs

    def bodies(self, end: Instance) -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        with self.at(end) as db:
            for conversation, content in rows(
                db,
                "SELECT conversation_id, message_body FROM broker_message JOIN broker_conversation USING (endpoint_id)"
                " ORDER BY queuing_order",
            ):
                found.setdefault(conversation, []).append(content)
        return found

    def waiting(self, end: Instance) -> int:
        """How many messages are not acknowledged."""
        with self.at(end) as db:
            return int(rows(db, "SELECT count(*) FROM broker_transmission")[0])

    def answer(self, count: int) -> None:
        with self.at(self.b) as db:
            for _ in range(count):
                for message in receive(db, queue=QUEUE, top=1):
                    message.dialog.send(b"answer to " + bytes(message.body), type="Y")

    async def drained(self) -> None:
        await self.until(lambda: not self.waiting(self.a) and not self.waiting(self.b), seconds=300)


def body(dialog: int, message: int) -> bytes:
    """Of several fragments each: the network cuts at 100 bytes."""
    return SECRET + b" %d %d " % (dialog, message) + bytes([message]) * (17 * message)


def way(service: str | None, host: str) -> RouteProperties:
    return RouteProperties(service_name=service, address=f"tcp://{host}:4022")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_everything_arrives_once_and_in_order_whatever_the_gateway_does(seed: int, mode: str) -> None:
    async def story(stage: Stage) -> None:
        dialogs = stage.begin()
        await stage.until(lambda: stage.hostile.chance.random() < 0.01, seconds=60)
        stage.answer(MESSAGES)
        await stage.until(lambda: stage.hostile.chance.random() < 0.01, seconds=60)
        stage.hostile.is_active = False
        await stage.drained()
        expected = [[body(number, message) for message in range(MESSAGES)] for number in range(len(dialogs))]
        answered = stage.bodies(stage.a)
        left = stage.bodies(stage.b)
        for dialog, sent in zip(dialogs, expected, strict=True):
            conversation = dialog.conversation_id.bytes
            answers = answered.get(conversation, [])
            assert sent == [one.removeprefix(b"answer to ") for one in answers] + left.get(conversation, [])

    perform(Told(story, seed), partial(Stage, mode=mode), MachineLoop())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", ["a", "b", "both"])
def test_either_side_may_start_anew_in_the_middle(mode: str, who: str) -> None:
    async def story(stage: Stage) -> None:
        stage.hostile.is_active = False
        dialogs = stage.begin()
        await stage.drained()
        for end in (stage.a, stage.b):
            if who in {end.part.name, "both"}:
                end.kill()
                end.start()
        stage.answer(2 * MESSAGES)
        with stage.at(stage.a) as db:
            for number, dialog in enumerate(dialogs):
                Dialog(db, dialog.endpoint_id, dialog.conversation_handle, dialog.conversation_id).send(
                    body(number, MESSAGES), type="X"
                )
        await stage.drained()
        for number, dialog in enumerate(dialogs):
            conversation = dialog.conversation_id.bytes
            expected = [b"answer to " + body(number, message) for message in range(MESSAGES)]
            assert expected == stage.bodies(stage.a)[conversation]
            assert [body(number, MESSAGES)] == stage.bodies(stage.b)[conversation]

    perform(Told(story, 3), partial(Stage, mode=mode), MachineLoop())
