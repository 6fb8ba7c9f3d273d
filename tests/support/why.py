"""What tests of `broker why` share: a side of a conversation, and instances on its way."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from broker.admin.trace import Directory, NotAskedError
from broker.observe.causes import Severity, SideShown, WhyFinding
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, answer
from broker.observe.why import WhyAnswer
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import PermissionRuling

CONVERSATION = UUID(int=1)
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
_SIDE = SideShown(
    database="orders",
    conversation_handle="HANDLE",
    is_initiator=True,
    state="CO",
    service_name="//Orders",
    far_service="S",
    far_broker_instance=None,
    lifetime=AT,
    create_date=AT,
    dialog_timer=None,
    send_sequence=0,
    acknowledged_sequence=0,
    receive_sequence=0,
    held=0,
    held_from=None,
    held_since=None,
    transmission_status="nothing waits",
    queue_name="Q",
    is_receive_enabled=True,
    ready=0,
    ready_since=None,
    quarantined=0,
    early_fragments=0,
    is_taken=False,
    readers=0,
    error_code=None,
    error_text="",
    poison=None,
)


def side(**more: Any) -> SideShown:
    """A side that has neither sent nor received anything, but for what is said."""
    return msgspec.structs.replace(_SIDE, **more)


def holding(count: int = 1, status: str = "sent and not acknowledged yet", **more: Any) -> SideShown:
    """A side with messages that are not acknowledged."""
    return side(send_sequence=count, held=count, held_from=0, held_since=AT, transmission_status=status, **more)


def place(
    name: str, number: int, to: str | None, *, service: str = "S", problem: str = "", own: str = ""
) -> InstanceView:
    """An instance on a host, with one route: to a host, or LOCAL; "" is no route at all."""
    routes = [] if to == "" else [Route("r", LOCAL if to is None else NetworkAddress(to))]
    table = build_table(routes, now=AT)
    known = hosted({UUID(int=0xFA).bytes: (service,)} if to is None else {})
    addresses = frozenset({NetworkAddress(own)} if own else ())
    here = RoutingContext(table, known, lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table, own=addresses)
    return InstanceView(name, UUID(int=number).bytes, here, {}, lambda _: problem)


def routed(where: InstanceView, *routes: Route) -> InstanceView:
    """The same instance with these routes."""
    table = build_table(routes, now=AT)
    here = msgspec.structs.replace(where.surroundings, table=table, msdb=table)
    return msgspec.structs.replace(where, surroundings=here)


def way(where: InstanceView, **request: Any) -> ExplainAnswer:
    """What an instance would do with a message of the conversation."""
    return answer(where, ExplainRequest("S", request.pop("broker_instance", None), CONVERSATION, **request))


def told(where: InstanceView, *findings: WhyFinding, ways: tuple[ExplainAnswer, ...] = (), **more: Any) -> WhyAnswer:
    """What an instance answers."""
    assert where.broker_instance is not None
    nothing: dict[str, Any] = {"sides": [], "closed": [], "held": [], "dropped": {}, "looked_in": []}
    return WhyAnswer(
        instance=where.name,
        broker_instance=str(UUID(bytes=where.broker_instance)),
        addresses=[],
        is_running=True,
        id=str(CONVERSATION),
        conversation_id=str(CONVERSATION),
        findings=list(findings),
        ways=list(ways),
        **nothing | more,
    )


def finding(instance: str, cause: str, severity: Severity, **more: Any) -> WhyFinding:
    """A finding with its cause in every sentence."""
    words = {name: f"{name} of {cause}" for name in ("symptom", "why", "next", "remedy")}
    return WhyFinding(instance=instance, database=None, cause=cause, severity=severity, **words | more)


class Instances(Directory):
    """Instances by host, which answer without a network; hosts not named are silent."""

    def __init__(
        self, places: Mapping[str, InstanceView], answers: Mapping[str, WhyAnswer], given: Iterable[str] = ()
    ) -> None:
        super().__init__({NetworkAddress(host): f"{host}.sock" for host in given})
        self.asked: list[str] = []
        self._places = places
        self._answers = answers

    def explain(self, address: NetworkAddress, request: ExplainRequest) -> ExplainAnswer:
        if address.host not in self._places:
            raise NotAskedError(address, "nobody there")
        return answer(self._places[address.host], request)

    def send_ruling(self, address: NetworkAddress, database: str, who: str, service: str) -> PermissionRuling | None:
        return None

    def why(self, address: NetworkAddress, conversation: UUID) -> WhyAnswer:
        self.asked.append(address.host)
        assert conversation == CONVERSATION
        if address.host not in self._answers:
            raise NotAskedError(address, "it is gone")
        return self._answers[address.host]
