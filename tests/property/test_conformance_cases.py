"""
The documented cases that are about dialogs and gateways at work: load shared, several ways, loops, lost gateways.

Each is a small story on played machines under virtual time, and must end as told whatever conversation ids are drawn.
Where a dialog prefers one of several ways, the story takes a dialog that prefers the one it is about.
"""

import random
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest import mock

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import Message, receive
from broker.conversation.frames import Contact, Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogTuning
from broker.flow import Disposition
from broker.forwarding.kernel import Kernel
from broker.protocol.decoder import FrameDecoder
from broker.protocol.layout import FIRST_DIALOG_KIND, HOP_LIMIT
from broker.routing.decide import Hosted
from broker.routing.route import RouteProperties
from broker.routing.table import RouteTable
from tests.simulation.instance import Instance, Part
from tests.simulation.machine import MachineLoop
from tests.simulation.performance import Outcome
from tests.simulation.world import Told, World, perform
from tests.support.dialog import QUEUE, rows, states

SETTINGS = DialogTuning(Backoff(0.2, 2.0), Travel(), window=64, fragment_size=1000)
LOCAL = (RouteProperties(address="LOCAL"),)
Routes = tuple[RouteProperties, ...]


def at(*hosts: str, service: str, instance: bytes | None = None, weight: int | None = None) -> Routes:
    """Routes to a service through each of these hosts, in full when an instance is given."""
    guid = None if instance is None else str(uuid.UUID(bytes=instance))
    return tuple(
        RouteProperties(service_name=service, broker_instance=guid, address=f"tcp://{host}:4022", weight=weight)
        for host in hosts
    )


class Stage(World):
    """Instances for one story, and the applications at their databases."""

    def __init__(self, told: Told, loop: MachineLoop, chance: random.Random, directory: Path, outcome: Outcome) -> None:
        super().__init__(loop, chance, outcome, settings=SETTINGS)
        self.directory = directory
        self.applications: dict[str, sqlite3.Connection] = {}
        self._tell = told.tell

    async def run(self) -> None:
        """Every frame must be accounted for, and no database may have met a problem."""
        await self._tell(self)
        for one in self.instances.values():
            assert one.forwarder.unaccounted == 0
            assert one.endpoint is None or one.endpoint.problem == ""
        await self.part()
        for application in self.applications.values():
            application.close()

    def gateway(self, name: str, routes: Routes) -> Instance:
        return self.add(Part(name, routes))

    def line(self) -> tuple[Instance, Instance, Instance]:
        bank = self.database("bank", "Billing", at("gateway", service="Orders"))
        shop = self.database("shop", "Orders", at("gateway", service="Billing"))
        gateway = self.gateway("gateway", at("bank", service="Billing") + at("shop", service="Orders"))
        bank.kill()
        return shop, gateway, bank

    def circle(self) -> tuple[Instance, Instance]:
        self.database("shop", "Orders", at("one", service="Billing"))
        one, two = (
            self.gateway(name, at(other, service="Billing")) for name, other in (("one", "two"), ("two", "one"))
        )
        return one, two

    def database(self, name: str, service: str, routes: Routes) -> Instance:
        path = self.directory / f"{name}.db"
        instance = self.add(Part(name, LOCAL, path, service, routes))
        self.applications[name] = sqlite3.connect(path, isolation_level=None)
        return instance

    def begin(self) -> Dialog:
        """A dialog of the shop with the service Billing, wherever that is."""
        return begin_dialog(self.applications["shop"], from_service="Orders", to_service="Billing")

    def begin_through(self, host: str) -> Dialog:
        """One of those that prefer this next hop while all are as good."""
        shop = self.instances["shop"]
        assert shop.endpoint is not None
        while True:
            dialog = self.begin()
            contact = Contact(dialog.conversation_id.bytes, True, "Orders", shop.broker_instance, "Billing")
            if shop.endpoint.transmitter.decide(contact).candidates[0].address.host == host:
                return dialog

    def received(self, name: str) -> list[Message]:
        """What the application at a database takes from its queue now."""
        return receive(self.applications[name], queue=QUEUE, top=1000)

    def waiting(self, name: str) -> int:
        return len(rows(self.applications[name], "SELECT 1 FROM broker_transmission"))

    def far_instances(self) -> dict[uuid.UUID, bytes | None]:
        query = "SELECT conversation_id, far_broker_instance FROM broker_conversation"
        return {uuid.UUID(bytes=conversation): far for conversation, far in rows(self.applications["shop"], query)}

    async def collected(self, name: str, count: int) -> list[Message]:
        """So many messages, as they come."""
        messages: list[Message] = []

        def have_come() -> bool:
            messages.extend(self.received(name))
            return len(messages) >= count

        await self.until(have_come)
        return messages


def reroute(instance: Instance, *own_routes: RouteProperties) -> None:
    """Other routes in its database."""
    instance.reroute(instance.part.routes, own_routes)


def dropped_by(one: Instance, disposition: Disposition) -> int:
    return one.forwarder.dropped[disposition] + (one.endpoint.dropped[disposition] if one.endpoint else 0)


def staged(story: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    """The test that plays a story."""

    def test() -> None:
        perform(Told(story), Stage, MachineLoop())

    return test


# --- 5: load shared ---


@staged
@pytest.mark.promise(
    "R5.1", "5a", "5b", "routing 5", "routes 6", "routes 11", "multiple 8", "multiple 10", "multiple 26"
)
async def test_case_5a_5b_each_dialog_stays_with_the_target_that_its_first_message_reached(stage: Stage) -> None:
    """Weights change all new picks, and none of the dialogs whose target is fixed."""
    east, west = (stage.database(name, "Billing", at("shop", service="Orders")) for name in ("east", "west"))
    shop = stage.database("shop", "Orders", ())
    to_east, to_west = (at(one.part.name, service="Billing", instance=one.broker_instance) for one in (east, west))
    reroute(shop, *to_east, *to_west)
    dialogs = [stage.begin() for _ in range(30)]

    for dialog in dialogs:
        dialog.send(b"first")
    await stage.until(lambda: None not in stage.far_instances().values())
    fixed = stage.far_instances()
    reroute(shop, *at("east", service="Billing", instance=east.broker_instance, weight=1000), *to_west)
    for dialog in dialogs:
        dialog.send(b"second")
    await stage.until(lambda: stage.waiting("shop") == 0)

    assert {east.broker_instance, west.broker_instance} == set(fixed.values())
    assert fixed == stage.far_instances()
    for one in (east, west):
        by_dialog: dict[uuid.UUID, list[bytes]] = {}
        for message in stage.received(one.part.name):
            by_dialog.setdefault(message.dialog.conversation_id, []).append(message.body)
        own = {dialog for dialog, far in fixed.items() if far == one.broker_instance}
        assert {dialog: [b"first", b"second"] for dialog in own} == by_dialog


# --- R7, R8: several ways ---


@staged
@pytest.mark.promise("A gateway dies", "R5.3", "case R7", "multiple 19", "multiple 30")
async def test_case_r7_losing_one_of_two_gateways_stops_nothing_and_copies_through_both_are_one_delivery(
    stage: Stage,
) -> None:
    """The first copy arrives and no answer comes back; the second one takes the other gateway."""
    bank = stage.database("bank", "Billing", ())
    shop = stage.database("shop", "Orders", ())
    gateways = [
        stage.gateway(name, at("bank", service="Billing") + at("shop", service="Orders"))
        for name in ("gateway-a", "gateway-b")
    ]
    reroute(shop, *at("gateway-a", "gateway-b", service="Billing", instance=bank.broker_instance))
    stage.begin_through("gateway-a").send(b"once")

    await stage.until(lambda: states(stage.applications["bank"]) == ["CO"])
    gateways[0].kill()
    await stage.until(lambda: dropped_by(bank, Disposition.DUPLICATE) > 0)
    reroute(bank, *at("gateway-a", "gateway-b", service="Orders", instance=shop.broker_instance))
    await stage.until(lambda: stage.waiting("shop") == 0)

    assert [b"once"] == [message.body for message in stage.received("bank")]
    assert gateways[1].forwarder.forwarded > 0


@staged
@pytest.mark.promise("routes 1", "multiple 20")
async def test_answers_and_acknowledgements_may_come_back_through_another_gateway(stage: Stage) -> None:
    stage.database("bank", "Billing", at("back", service="Orders"))
    stage.database("shop", "Orders", at("there", service="Billing"))
    there = stage.gateway("there", at("bank", service="Billing"))
    back = stage.gateway("back", at("shop", service="Orders"))

    stage.begin().send(b"question")
    [message] = await stage.collected("bank", 1)
    message.dialog.send(b"answer")
    [answer] = await stage.collected("shop", 1)

    assert b"answer" == answer.body
    assert [0, 0] == [one.forwarder.dropped.total() for one in (there, back)]
    assert there.forwarder.forwarded > 0
    assert back.forwarder.forwarded > 0


@staged
@pytest.mark.promise(9, "R5.2", "case R8", "routing 6", "multiple 23", "multiple 24")
async def test_case_r8_second_of_two_targets_gets_a_fault_and_its_endpoint_ends(stage: Stage) -> None:
    """Both hosts of a route by name get message 1; the one whose answer comes later is told -8495."""
    shop = stage.database("shop", "Orders", at("east", "west", service="Billing"))
    east = stage.database("east", "Billing", ())  # which cannot answer yet
    west = stage.database("west", "Billing", at("shop", service="Orders"))
    dialog = stage.begin_through("east")

    dialog.send(b"order")
    await stage.until(lambda: states(stage.applications["east"]) == ["CO"])
    mend = stage.net.cut([("east", "shop"), ("shop", "east")])
    await stage.until(lambda: stage.far_instances()[dialog.conversation_id] == west.broker_instance)
    mend()
    reroute(east, *at("shop", service="Orders"))
    [order] = stage.received("east")
    order.dialog.send(b"late answer")
    [error] = await stage.collected("east", 1)

    assert error.is_error
    assert b"-8495" in error.body
    assert ["ER"] == states(stage.applications["east"])
    assert 0 == stage.waiting("east")
    assert dropped_by(shop, Disposition.OTHER_INSTANCE) > 0
    assert west.broker_instance == stage.far_instances()[dialog.conversation_id]
    assert [b"order"] == [message.body for message in stage.received("west")]
    assert [] == stage.received("shop")


# --- R10: a change of routes ---


@staged
@pytest.mark.promise("Routes or settings are changed in operation", "R1.6")
async def test_change_of_routes_loses_nothing_that_a_gateway_holds(stage: Stage) -> None:
    """Not even when no route is left by which it could come again."""
    bank = stage.database("bank", "Billing", at("shop", service="Orders"))
    stage.database("shop", "Orders", at("gateway", service="Billing"))
    gateway = stage.gateway("gateway", at("bank", service="Billing"))
    bank.kill()
    stage.begin().send(b"held")
    await stage.until(lambda: gateway.forwarder.pool.frames == 1)

    gateway.forwarder.set_routing(table=RouteTable(), hosted=Hosted(), is_forwarding=True)
    await stage.until(lambda: dropped_by(gateway, Disposition.NO_ROUTE) > 0)
    bank.start()

    assert [b"held"] == [message.body for message in await stage.collected("bank", 1)]


# --- R11 to R14: gateways ---


@staged
@pytest.mark.promise(4, "R7.2", "case R11", "routing 29", "forwarding 9")
async def test_case_r11_loop_of_gateways_ends_by_hop_exhaustion_and_the_sender_keeps_the_message(stage: Stage) -> None:
    stage.database("bank", "Billing", at("shop", service="Orders"))
    one, two = stage.circle()

    def exhausted() -> int:
        return sum(dropped_by(each, Disposition.HOPS_EXHAUSTED) for each in (one, two))

    stage.begin().send(b"round")
    await stage.until(lambda: exhausted() == 1)
    assert HOP_LIMIT == one.forwarder.forwarded + two.forwarder.forwarded
    assert 1 == stage.waiting("shop")
    await stage.until(lambda: exhausted() == 2)
    assert 2 * HOP_LIMIT == one.forwarder.forwarded + two.forwarder.forwarded
    two.reroute(at("bank", service="Billing"), ())

    assert [b"round"] == [message.body for message in await stage.collected("bank", 1)]


@pytest.mark.promise("R7.2", "forwarding 7")
def test_case_r11_message_going_round_passes_one_instance_twice_under_one_id() -> None:
    """By which it is recognised: a forwarder keeps the id of the transmission."""
    seen: list[tuple[bytes, int]] = []
    walk = Kernel.walk

    def spy(kernel: Kernel, slab: bytearray, end: int) -> object:
        frames = FrameDecoder(1 << 16).feed(bytes(slab[:end]))
        seen.extend((frame[16:32], frame[6]) for frame in frames if frame[4] >= FIRST_DIALOG_KIND)
        return walk(kernel, slab, end)

    async def story(stage: Stage) -> None:
        one, two = stage.circle()
        with mock.patch.object(Kernel, "walk", spy):
            stage.begin().send(b"round")
            await stage.until(lambda: (one.forwarder.dropped + two.forwarder.dropped).total() == 1)

    perform(Told(story), Stage, MachineLoop())

    assert [(seen[0][0], hops) for hops in range(HOP_LIMIT + 1)] == seen


@staged
@pytest.mark.promise("case R12", "forwarding 13")
async def test_case_r12_message_bigger_than_the_pool_passes_and_what_overflows_is_sent_again(stage: Stage) -> None:
    body = bytes(range(256)) * 80
    _, gateway, bank = stage.line()
    gateway.forwarder.pool.limit_bytes = 5000

    stage.begin().send(body)
    await stage.until(lambda: dropped_by(gateway, Disposition.POOL_LIMIT) > 0)
    assert 0 < gateway.forwarder.pool.used_bytes <= 5000 < len(body)
    bank.start()

    assert [body] == [message.body for message in await stage.collected("bank", 1)]


@staged
@pytest.mark.promise("A gateway dies", "case R13", "forwarding 12", "forwarding 14")
async def test_case_r13_gateway_killed_with_messages_held_loses_nothing(stage: Stage) -> None:
    bodies = [bytes([number]) for number in range(20)]
    _, gateway, bank = stage.line()
    dialog = stage.begin()

    for number in bodies:
        dialog.send(number)
    await stage.until(lambda: gateway.forwarder.pool.frames > 0)
    gateway.kill()
    bank.start()
    gateway.start()
    assert 0 == gateway.forwarder.pool.frames

    assert bodies == [message.body for message in await stage.collected("bank", len(bodies))]


@staged
@pytest.mark.promise(4, "case R14", "forwarding 10", "forwarding 15")
async def test_case_r14_copy_of_a_fragment_that_waits_in_the_gateway_is_dropped(stage: Stage) -> None:
    """The gateway acknowledges nothing meanwhile: only the target does."""
    shop, gateway, bank = stage.line()
    dialog = stage.begin()

    dialog.send(b"one")
    await stage.until(lambda: dropped_by(gateway, Disposition.ALREADY_HELD) > 1)
    assert 1 == gateway.forwarder.pool.frames
    assert (1, 0) == (stage.waiting("shop"), shop.forwarder.delivered)
    assert stage.far_instances()[dialog.conversation_id] is None
    bank.start()
    await stage.until(lambda: stage.waiting("shop") == 0)

    assert [b"one"] == [message.body for message in stage.received("bank")]
    assert 0 == dropped_by(bank, Disposition.DUPLICATE)
    assert bank.broker_instance == stage.far_instances()[dialog.conversation_id]
