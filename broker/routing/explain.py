"""
Why a frame goes where it goes.

`decide` is asked to keep how it decided; what it kept is told here, with the routes that each step looked at and why
each fell out. No rule is written twice: a step that matched is the one `decide` took, and the words about a route ask
the predicates that the decision asks. Nothing is sent, and what is listed is bounded, so that a table of a million
routes is explained as fast as one of ten.

Source: docs/routing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from msgspec import structs

from broker.flow import Disposition
from broker.routing.address import NetworkAddress
from broker.routing.choose import RouteClass, class_of, distinct_routes, is_here, next_hop, preference, wanted_instance
from broker.routing.decide import Decision, Pass, Surroundings, decide
from broker.routing.explanation import (
    CandidateShown,
    ClassTried,
    Explanation,
    Outcome,
    PassShown,
    Progress,
    RouteFate,
    Score,
    Step,
)
from broker.routing.facts import Facts
from broker.routing.match import NEVER_ASKED_ABOUT, pick_instance, score
from broker.routing.route import BROKER_CONFIGURATION, Route

ROUTES_SHOWN = 50  # of one step
ROUTES_LOOKED_AT = 1000  # of one service; what matched is listed in any case
NAMES_COMPARED = 5000  # service names that are looked through for one that differs only in case

TITLES = (
    "reply to a broker instance that is hosted here",
    "service name and broker instance",
    "service name, route without broker instance",
    "service name, one of several broker instances",
    "ask the dynamic routing service",
    "route without service name",
    "the service is in some database here",
    "nothing matched",
)


@dataclass(frozen=True, slots=True)
class Names:
    """
    What people call things here.

    Shape: `databases` broker instance -> name; `problem_of` what is known against an address, empty when nothing is.
    """

    databases: Mapping[bytes, str] = field(default_factory=dict)
    problem_of: Callable[[NetworkAddress], str] = lambda _: ""

    def database(self, instance: bytes) -> str:
        """The name of a database, or its GUID when it is not of this instance."""
        return self.databases.get(instance) or str(UUID(bytes=instance))


def explain(facts: Facts, here: Surroundings, names: Names) -> Explanation:
    """The decision that `decide` takes, with every reason."""
    passes: list[Pass] = []
    decision = decide(facts, here, passes)
    outcome = outcome_of(decision, facts)
    return Explanation(
        to_service=facts.to_service,
        to_broker_instance=None if facts.is_open else _guid(facts.to_broker_instance),
        conversation_id=_guid(facts.conversation_id),
        is_from_target=facts.is_from_target,
        outcome=outcome,
        disposition=decision.disposition.value,
        number=decision.disposition.number,
        step=decision.step,
        route=None if decision.route is None else decision.route.name,
        next_hop=str(decision.candidates[0].address) if decision.candidates else None,
        database=None if decision.database is None else names.database(decision.database),
        sentence=_sentence(decision, outcome, names),
        is_by_conversation=decision.is_by_conversation,
        passes=tuple(_PassTeller(one, here, names, number).tell() for number, one in enumerate(passes, 1)),
        hints=tuple(_hints(passes[-1])),
    )


def outcome_of(decision: Decision, facts: Facts) -> Outcome:
    """What a decision means for a message with these facts (R2.7, R3.1)."""
    if decision.disposition is Disposition.FORWARDED:
        return Outcome.FORWARDED
    if decision.disposition is Disposition.DELIVERED:
        return Outcome.DELIVERED
    if decision.disposition is Disposition.PRINCIPAL_UNKNOWN:
        return Outcome.HELD
    return Outcome.DROPPED if facts.is_incoming else Outcome.DELAYED


class _PassTeller:
    """Tells one pass."""

    def __init__(self, one: Pass, here: Surroundings, names: Names, number: int) -> None:
        self._facts, self._table, self._matched, self._choice = one.facts, one.table, one.matched, one.choice
        self._here, self._names, self._number = here, names, number
        self._routes = tuple(islice(one.table.all_routes(one.facts.to_service), ROUTES_LOOKED_AT))

    def tell(self) -> PassShown:
        sender = self._facts.database
        return PassShown(
            table="msdb" if sender is None else self._names.database(sender),
            is_incoming=self._facts.is_incoming,
            steps=tuple(self._steps()),
            classes=tuple(self._classes()),
            candidates=tuple(self._candidates()),
        )

    # --- matching ---

    def _steps(self) -> Iterator[Step]:
        yield Step(0, TITLES[0], *self._reply())
        last = 0 if self._matched is None else self._matched.step
        told = (self._exact, self._any_instance, self._balanced, self._ask, self._last_resort, self._implicit_local)
        for number, tell in enumerate(told, 1):
            if number > last:
                yield Step(number, TITLES[number], Progress.NOT_REACHED, "an earlier step ended the search")
            else:
                yield tell()
        progress = Progress.MATCHED if last == 7 else Progress.NOT_REACHED
        yield Step(7, TITLES[7], progress, self._unmatched() if last == 7 else "an earlier step ended the search")

    def _reply(self) -> tuple[Progress, str]:
        facts = self._facts
        if self._matched is None:
            return Progress.MATCHED, f"from a target, to the database {self._names.database(facts.to_broker_instance)}"
        if not facts.is_incoming:
            return Progress.SKIPPED, "the conversation was begun here"
        if not facts.is_from_target:
            return Progress.SKIPPED, "the message is not from a target"
        return Progress.NOTHING, f"the broker instance {_guid(facts.to_broker_instance)} is not hosted here"

    def _exact(self) -> Step:
        if self._facts.is_open:
            return Step(1, TITLES[1], Progress.SKIPPED, "the conversation names no broker instance")
        named = [route for route in self._routes if route.broker_instance is not None]
        return self._step(1, named, "names another broker instance")

    def _any_instance(self) -> Step:
        return self._step(2, [route for route in self._routes if route.broker_instance is None])

    def _balanced(self) -> Step:
        if not self._facts.is_open:
            return Step(3, TITLES[3], Progress.SKIPPED, "the conversation names a broker instance")
        conversation = self._facts.conversation_id
        named = [route for route in self._routes if route.broker_instance is not None]
        weights = self._table.instances(self._facts.to_service)
        if not weights:
            return self._step(3, named)
        picked = pick_instance(conversation, weights)
        scores = {one: score(conversation, one, weight=weight) for one, weight in weights.items()}
        shown = sorted(weights, key=lambda one: (one != picked, -scores[one]))[:ROUTES_SHOWN]
        step = self._step(3, named, f"the conversation picked broker instance {_guid(picked)}")
        why = f"the conversation picks one of {len(weights):,} broker instances" if len(weights) > 1 else step.why
        return structs.replace(
            step,
            why=why,
            scores=tuple(Score(_guid(one), weights[one], scores[one], one == picked) for one in shown),
        )

    def _ask(self) -> Step:
        if self._facts.to_service in NEVER_ASKED_ABOUT:
            return Step(4, TITLES[4], Progress.SKIPPED, f"nobody asks about {self._facts.to_service}")
        return self._step(4, list(self._table.all_routes(BROKER_CONFIGURATION)))

    def _last_resort(self) -> Step:
        return self._step(5, list(islice(self._table.all_routes(None), ROUTES_LOOKED_AT)))

    def _implicit_local(self) -> Step:
        service = self._facts.to_service
        if self._facts.is_open:
            return Step(6, TITLES[6], Progress.SKIPPED, "the conversation names no broker instance")
        databases = self._here.hosted.databases_with.get(service, ())
        if not databases:
            return Step(6, TITLES[6], Progress.NOTHING, f"no database here has a service {service!r}")
        having = ", ".join(self._names.database(one) for one in databases)
        return Step(6, TITLES[6], Progress.MATCHED, f"as if a route to LOCAL were there: {having}")

    def _step(self, number: int, looked_at: list[Route], fell_out: str = "") -> Step:
        """A step that looks at routes: those that `decide` took there, and why the others fell out."""
        assert self._matched is not None
        taken = self._matched.routes if self._matched.step == number else ()
        fates = [_fate(route, "matches", is_taken=True) for route in taken]
        for route in looked_at:
            if not route.is_live(self._table.now):
                assert route.lifetime is not None
                fates.append(_fate(route, f"expired at {route.lifetime:%Y-%m-%d %H:%M:%S} UTC"))
            elif route not in taken:
                fates.append(_fate(route, fell_out))
        progress = Progress.MATCHED if taken else Progress.NOTHING
        why = _count(len(taken), "route matches", "routes match") if taken else _nothing(fates)
        return Step(number, TITLES[number], progress, why, tuple(fates[:ROUTES_SHOWN]), (), len(fates[ROUTES_SHOWN:]))

    def _unmatched(self) -> str:
        return "an incoming message is dropped" if self._facts.is_incoming else "delayed, and matched again"

    # --- choosing ---

    def _classes(self) -> Iterator[ClassTried]:
        if self._matched is None or not self._matched.routes or self._matched.step == 4:
            return
        distinct = distinct_routes(self._matched.routes)
        first = {route.identity: route.name for route in distinct}
        twins = [route for route in self._matched.routes if route not in distinct]
        taken = None if self._choice is None else self._choice.route_class
        is_over = False
        for route_class in RouteClass:
            members = [route for route in distinct if class_of(route) is route_class]
            if is_over:
                if members:
                    why = f"{taken} comes first"
                    yield ClassTried(route_class, Progress.NOT_REACHED, why, tuple(_fate(r, why) for r in members))
                continue
            is_over = route_class is taken
            fates = [self._chosen(route, route_class) for route in members[:ROUTES_SHOWN]]
            fates += [
                _fate(twin, f"identical to {first[twin.identity]}, counts once")
                for twin in twins
                if class_of(twin) is route_class
            ]
            progress = Progress.MATCHED if is_over else Progress.NOTHING if members else Progress.SKIPPED
            why = "taken" if is_over else "no member works" if members else "no member"
            yield ClassTried(route_class, progress, why, tuple(fates))

    def _chosen(self, route: Route, route_class: RouteClass) -> RouteFate:
        """What becomes of a route when its class is tried."""
        if route_class is RouteClass.MIRRORED:
            return _fate(route, "its principal is not known yet; nothing leaves before one claims it", is_taken=True)
        if route_class is RouteClass.LOCAL:
            return self._located(route)
        hop = next_hop(route, self._facts)
        if hop is None:
            return _fate(route, f"the service name {self._facts.to_service!r} does not begin with an address")
        if hop not in self._here.own:
            return _fate(route, f"leads to {hop}", is_taken=True)
        if self._number > 1:
            return _fate(route, "leads to this very instance, for the second time")
        return _fate(route, f"leads to this very instance ({hop}), so msdb's routes decide", is_taken=True)

    def _located(self, route: Route) -> RouteFate:
        facts, hosted = self._facts, self._here.hosted
        if is_here(route, hosted, facts):
            return _fate(route, "the service is here", is_taken=True)
        instance = wanted_instance(route, facts)
        if instance is not None and instance not in hosted.services_of:
            return _fate(route, f"the broker instance {_guid(instance)} is not hosted here")
        return _fate(route, f"no database here has a service {facts.to_service!r}")

    def _candidates(self) -> Iterator[CandidateShown]:
        for one in () if self._choice is None else self._choice.candidates[:ROUTES_SHOWN]:
            is_own = one.address in self._here.own
            yield CandidateShown(
                str(one.address),
                one.route.name,
                "this very instance" if is_own else one.health.name.lower(),
                "" if is_own else self._names.problem_of(one.address),
                preference(one.address, self._facts),
            )


# --- sentences ----------------------------------------------------------------------------------------------


def _sentence(decision: Decision, outcome: Outcome, names: Names) -> str:
    """The decision in one sentence."""
    by = "" if decision.route is None or not decision.route.name else f" by route {decision.route.name}"
    reason = f"{decision.disposition} ({decision.disposition.number})"
    if outcome is Outcome.FORWARDED:
        return f"forwarded to {decision.candidates[0].address}{by}"
    if outcome is Outcome.DELIVERED:
        assert decision.database is not None
        return f"delivered here, to the database {names.database(decision.database)}{by}"
    if outcome is Outcome.HELD:
        return f"held{by}: {reason}"
    if outcome is Outcome.DELAYED:
        return f"delayed{by}: {reason}; matched again after 10 s and whenever routes or services change"
    return f"dropped{by}: {reason}; the sender keeps the message and sends it again"


def _hints(last: Pass) -> Iterator[str]:
    """What may have been meant, when nothing was found."""
    service = last.facts.to_service
    if last.decision.disposition in {Disposition.FORWARDED, Disposition.DELIVERED}:
        return
    folded = service.strip().casefold()
    for name in islice(last.table.services(), NAMES_COMPARED):
        if name is not None and name != service and name.strip().casefold() == folded:
            yield f"there is a route to {name!r}: names compare byte for byte"


def _fate(route: Route, why: str, *, is_taken: bool = False) -> RouteFate:
    return RouteFate(
        route.name,
        route.remote_service_name,
        None if route.broker_instance is None else str(route.broker_instance),
        route.address_text,
        route.mirror_address_text,
        route.weight,
        route.lifetime,
        is_taken,
        why,
    )


def _nothing(fates: list[RouteFate]) -> str:
    if not fates:
        return "no such route"
    expired = sum(fate.why.startswith("expired") for fate in fates)
    return f"{_count(len(fates), 'such route falls', 'such routes fall')} out" + (
        f", {expired} of them expired" if expired else ""
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _guid(instance: bytes) -> str:
    return str(UUID(bytes=instance))
