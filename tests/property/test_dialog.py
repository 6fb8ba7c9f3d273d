"""
Whole dialogs between two databases, whatever the network and the processes between and at the ends of it do.

A story is drawn: what the applications send, which processes crash when, and how bad the network is. Then the weather
clears, and everything that was promised must have come true: every message delivered once and in order, both sides
closed, nothing left behind. All chance comes from the seed in the story, so a failure replays.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import receive
from broker.flow import Disposition
from tests.support.dialog import QUEUE, rows
from tests.support.network import Network, Node, Weather
from tests.support.virtual_time import VirtualLoop, run_virtually

QUIET_SECONDS = 60.0  # virtual; within which everything has to be over once the weather is fine
LEFT_BEHIND = (
    "broker_conversation",
    "broker_transmission",
    "broker_transmission_part",
    "broker_fragment",
    "broker_received",
    "broker_message",
)


@dataclass(frozen=True)
class Story:
    """
    What happens.

    Shape: `gateways` between the databases, 0 = they are neighbours; `dialogs` sizes of the bodies of each; `blows`
    (seconds since the blow before, name of a node, seconds until it is back); `is_polite` when the initiator ends only
    after all answers have come.
    """

    seed: int
    gateways: int
    weather: Weather
    dialogs: list[list[int]]
    blows: list[tuple[float, str, float]]
    is_polite: bool


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Any story, a plain one first."""
    gateways = draw(st.integers(0, 3))
    names = ["shop", "bank", *(f"gateway{number}" for number in range(gateways))]
    weather = Weather(
        loss=draw(st.sampled_from([0.0, 0.02, 0.2, 0.5])),
        repeat=draw(st.sampled_from([0.0, 0.3])),
        damage=draw(st.sampled_from([0.0, 0.05])),
        reject=draw(st.sampled_from([0.0, 0.5])),
        delay=draw(st.sampled_from([0.001, 0.02, 0.4])),
        room=draw(st.sampled_from([1 << 20, 3000, 500])),
    )
    sizes = st.lists(st.sampled_from([0, 1, 99, 100, 101, 350, 2500]), min_size=1, max_size=12)
    blow = st.tuples(st.floats(0.0, 1.0), st.sampled_from(names), st.floats(0.0, 2.0))
    return Story(
        seed=draw(st.integers(0, 2**32 - 1)),
        gateways=gateways,
        weather=weather,
        dialogs=draw(st.lists(sizes, min_size=1, max_size=3)),
        blows=draw(st.lists(blow, max_size=6)),
        is_polite=draw(st.booleans()),
    )


@dataclass
class Application:
    """One side's application: its own connection, and what it has sent and got by conversation."""

    db: sqlite3.Connection
    sent: dict[uuid.UUID, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    got: dict[uuid.UUID, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def send(self, dialog: Dialog, body: bytes) -> None:
        dialog.send(body)
        self.sent[dialog.conversation_id].append(body)


@given(stories())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_everything_sent_is_delivered_once_and_in_order_and_nothing_is_left_behind(story: Story) -> None:
    for disposition in _tell(story).dropped:
        event(f"dropped: {disposition}")


@dataclass(frozen=True)
class Outcome:
    """How a story went. Shape: `digest` of all frames; `dropped` the dispositions that occurred at either end."""

    digest: int
    dropped: frozenset[Disposition]


def _tell(story: Story) -> Outcome:
    """Play a story from beginning to end, and check that everything promised has come true."""
    chance = random.Random(story.seed)
    outcomes: list[Outcome] = []

    def guid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    async def play(loop: VirtualLoop) -> None:
        with tempfile.TemporaryDirectory() as directory, mock.patch("time.time", loop.wall_clock):
            outcomes.append(await _play(story, Network(loop, story.seed), Path(directory)))

    with mock.patch("uuid.uuid4", guid):
        run_virtually(play)
    return outcomes[0]


async def _play(story: Story, network: Network, directory: Path) -> Outcome:
    shop, bank = _build(network, story.gateways, directory)
    ours, theirs = (Application(sqlite3.connect(node.path or "", isolation_level=None)) for node in (shop, bank))
    network.weather = story.weather
    dialogs = [begin_dialog(ours.db, from_service="Orders", to_service="Billing") for _ in story.dialogs]
    tasks = [
        asyncio.create_task(_bank(theirs, network)),
        asyncio.create_task(_ageing(network)),
        *(asyncio.create_task(_blow(network, *blow)) for blow in _in_a_row(story.blows)),
    ]

    for number in range(max(map(len, story.dialogs))):
        for dialog, sizes in zip(dialogs, story.dialogs, strict=True):
            if number < len(sizes):
                ours.send(dialog, network.random.randbytes(sizes[number]))
        await asyncio.sleep(network.random.choice([0.0, 0.01, 0.3]))
    await asyncio.sleep(sum(after + back for after, _, back in story.blows))
    network.weather = Weather()
    customer = asyncio.create_task(_shop(ours, theirs, dialogs, is_polite=story.is_polite))
    await network.until(customer.done, seconds=QUIET_SECONDS)
    await network.until(lambda: _is_quiet(ours, theirs, shop, bank), seconds=QUIET_SECONDS)

    outcome = _check(story, ours, theirs, network)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for node in network.nodes.values():
        node.crash()
    ours.db.close()
    theirs.db.close()
    return outcome


def _build(network: Network, gateways: int, directory: Path) -> tuple[Node, Node]:
    """Two databases, and the gateways of which any may carry any frame."""
    names = [f"gateway{number}" for number in range(gateways)]
    for name in names:
        network.add(Node(network, name, [("Orders", "tcp://shop:4022"), ("Billing", "tcp://bank:4022")]))

    def database(name: str, service: str, far_service: str, far: str) -> Node:
        ways = [(far_service, f"tcp://{hop}:4022") for hop in names or [far]]
        return network.add(Node(network, name, [(None, "LOCAL")], directory / f"{name}.db", service, ways))

    return database("shop", "Orders", "Billing", "bank"), database("bank", "Billing", "Orders", "shop")


def _in_a_row(blows: list[tuple[float, str, float]]) -> list[tuple[float, str, float]]:
    """Blows by the time at which they come."""
    at = 0.0
    timed = []
    for after, name, back in blows:
        at += after
        timed.append((at, name, back))
    return timed


async def _blow(network: Network, at: float, name: str, back: float) -> None:
    """A process crashes, and comes back later."""
    await asyncio.sleep(at)
    node = network.nodes[name]
    if node.is_up:
        node.crash()
        await asyncio.sleep(back)
        node.start()


async def _ageing(network: Network) -> None:
    """Held frames grow old."""
    while True:
        await asyncio.sleep(1.0)
        for node in network.nodes.values():
            node.forwarder.expire(network.loop.time())


async def _bank(theirs: Application, network: Network) -> None:
    """Answers some of what comes, with bodies of its own, and ends when the far side has ended."""
    while True:
        for message in receive(theirs.db, queue=QUEUE, top=network.random.randint(1, 5)):
            if message.is_end:
                message.dialog.end()
                continue
            theirs.got[message.dialog.conversation_id].append(message.body)
            if network.happens(0.6):
                _answer(theirs, message.dialog, network.random.randbytes(network.random.choice([0, 5, 700])))
        await asyncio.sleep(network.random.choice([0.01, 0.1]))


def _answer(theirs: Application, dialog: Dialog, body: bytes) -> None:
    """An answer, unless the far side has ended meanwhile."""
    handle = dialog.conversation_handle.bytes
    if rows(theirs.db, "SELECT state FROM broker_conversation WHERE conversation_handle = ?", handle) == ["CO"]:
        theirs.send(dialog, body)


async def _shop(ours: Application, theirs: Application, dialogs: list[Dialog], *, is_polite: bool) -> None:
    """Takes the answers; ends each dialog at once, or when every answer has come."""
    left = list(dialogs)
    while left:
        for message in receive(ours.db, queue=QUEUE):
            ours.got[message.dialog.conversation_id].append(message.body)
        for dialog in list(left):
            key = dialog.conversation_id
            is_complete = theirs.got[key] == ours.sent[key] and ours.got[key] == theirs.sent[key]
            if is_complete or not is_polite:
                dialog.end()
                left.remove(dialog)
        await asyncio.sleep(0.05)


def _is_quiet(ours: Application, theirs: Application, *nodes: Node) -> bool:
    is_empty = not any(
        rows(side.db, f"SELECT 1 FROM {table} LIMIT 1") for side in (ours, theirs) for table in LEFT_BEHIND
    )
    return is_empty and not any(node.endpoint and node.endpoint.transmitter.senders for node in nodes)


def _check(story: Story, ours: Application, theirs: Application, network: Network) -> Outcome:
    assert dict(ours.sent) == dict(theirs.got)
    for side in (ours, theirs):
        ledger = dict(rows(side.db, "SELECT entry, messages FROM broker_ledger"))
        assert ledger.pop("sent", 0) == sum(ledger.values())
    for conversation, answers in theirs.sent.items():
        got = ours.got[conversation]
        assert got == (answers if story.is_polite else answers[: len(got)])
    dropped: set[Disposition] = set()
    for node in network.nodes.values():
        assert node.forwarder.unaccounted == 0
        if node.endpoint is not None:
            assert node.endpoint.problem == ""
            assert node.endpoint.transmitter._budget.loaded_bytes == 0
            dropped |= set(node.endpoint.dropped)
    assert Disposition.MALFORMED not in dropped
    return Outcome(network.digest, frozenset(dropped))
