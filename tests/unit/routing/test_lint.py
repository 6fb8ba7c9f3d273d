"""Every remark on one table with the text it has, and beside it what comes near and is none."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.routing.address import NetworkAddress, parse_address
from broker.routing.decide import Hosted, hosted
from broker.routing.lint import Lint, Remark, lint_table
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, SERVICE_BROKER, Route

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
HERE, THERE = UUID(int=1), UUID(int=2)
HOSTED = hosted({HERE.bytes: ["S"]})
NOTHING = hosted({})


def to(name: str, address: str, service: str | None = "S", instance: UUID | None = None, **more: object) -> Route:
    return replace(Route(name, parse_address(address), service, instance), **more)


def mirrored(name: str, address: str, mirror: str) -> Route:
    return Route(name, NetworkAddress(address), "S", THERE, mirror_address=NetworkAddress(mirror))


def remarks(*routes: Route, here: Hosted = NOTHING, is_msdb: bool = False) -> list[Remark]:
    return list(lint_table(routes, here, now=NOW, is_msdb=is_msdb))


def told(found: Iterable[Remark]) -> list[tuple[Lint, str]]:
    return [(remark.lint, remark.route.name) for remark in found]


Case = tuple[Lint, str, list[Route], Hosted, str, str]


DROP = "drop it, or drop [a]"
LOCAL_FIRST = "the service is here, and LOCAL is taken before a network address"
ASK = to("a", "tcp://x", BROKER_CONFIGURATION)
SHARE = [to("a", "tcp://x", "S", HERE), to("b", "tcp://y", "S", THERE)]
THREE = hosted({HERE.bytes: ["S", "T", "U"]})
FIRE: dict[str, Case] = {
    "a mirrored route is taken before a plain one": (
        Lint.SHADOWED_ROUTE, "b", [mirrored("a", "x", "y"), to("b", "tcp://z", "S", THERE)], NOTHING,
        "a mirrored route is taken before any other", DROP,
    ),
    "LOCAL of a service that is here is taken before a network address": (
        Lint.SHADOWED_ROUTE, "b", [to("a", "LOCAL"), to("b", "tcp://z")], HOSTED, LOCAL_FIRST, DROP,
    ),
    "LOCAL of a named database that is here is taken before a network address": (
        Lint.SHADOWED_ROUTE, "b", [to("a", "LOCAL", "S", HERE), to("b", "tcp://z", "S", HERE)], HOSTED, LOCAL_FIRST,
        DROP,
    ),
    "a network address of last resort is taken before TRANSPORT": (
        Lint.SHADOWED_ROUTE, "b", [to("a", "tcp://x", None), to("b", "TRANSPORT", None)], NOTHING,
        "a network address is taken before TRANSPORT", DROP,
    ),
    "nothing comes to last resort while the configuration service is asked": (
        Lint.SHADOWED_ROUTE, "b", [AUTO_CREATED_LOCAL, ASK, to("b", "tcp://y", None)], NOTHING,
        f"'{BROKER_CONFIGURATION}' is asked first, because of [a]", DROP,
    ),
    "a name-only route switches balancing off": (
        Lint.BALANCING_OFF, "c", [*SHARE, to("c", "tcp://x")], NOTHING, "the 2 instances with separate routes",
        "name the BROKER_INSTANCE it leads to",
    ),
    "a name-only route to LOCAL switches balancing off": (
        Lint.BALANCING_OFF, "c", [*SHARE, to("c", "LOCAL")], HOSTED, "[c] takes every conversation to 'S'",
        "name the BROKER_INSTANCE it leads to",
    ),
    "name-only routes to two hosts may begin one conversation twice": (
        Lint.SEVERAL_TARGETS, "b", [to("a", "tcp://x"), to("b", "tcp://y")], NOTHING,
        "lead 'S' to tcp://x:4022 and tcp://y:4022 and name no broker instance", "name the BROKER_INSTANCE in each",
    ),
    "name-only routes to many hosts are told once": (
        Lint.SEVERAL_TARGETS, "b", [to("a", "tcp://x"), to("b", "tcp://y"), to("c", "tcp://z")], NOTHING,
        "tcp://x:4022 and tcp://y:4022 (and 1 more)", "name the BROKER_INSTANCE in each",
    ),
    "a duplicate gives no larger share": (
        Lint.DUPLICATE_ROUTE, "c", [*SHARE, to("c", "tcp://Y:4022/", "S", THERE)], NOTHING,
        "and gives that instance no larger share", "DROP ROUTE [c]; for a larger share give [b] a greater WEIGHT",
    ),
    "of duplicates the lighter one is to be dropped": (
        Lint.DUPLICATE_ROUTE, "b", [*SHARE, to("heavy", "tcp://y", "S", THERE, weight=3)], NOTHING,
        "and gives that instance no larger share: the greatest WEIGHT counts, 3 of [heavy]",
        "DROP ROUTE [b]; for a larger share give [heavy] a greater WEIGHT",
    ),
    "of duplicates the one that ends sooner is to be dropped": (
        Lint.DUPLICATE_ROUTE, "a", [to("a", "tcp://x", lifetime=LATER), to("b", "tcp://x")], NOTHING,
        "counts as one with [b]", "DROP ROUTE [a];",
    ),
    "a duplicate without broker instance": (
        Lint.DUPLICATE_ROUTE, "b", [to("a", "tcp://x"), to("b", "tcp://x:4022")], NOTHING, "counts as one with [a]",
        "DROP ROUTE [b];",
    ),
    "a weight without a broker instance": (
        Lint.WEIGHT_UNUSED, "a", [to("a", "tcp://x", weight=3)], NOTHING, "has no effect",
        "name the BROKER_INSTANCE it leads to, or leave WEIGHT out",
    ),
    "LOCAL to a service that is not here": (
        Lint.LOCAL_SERVICE_ABSENT, "a", [to("a", "LOCAL", "s")], HOSTED,
        "no database here has it: what is sent to it waits", "compare its name byte for byte",
    ),
    "LOCAL to a service that is not here, beside another way": (
        Lint.LOCAL_SERVICE_ABSENT, "a", [to("a", "LOCAL"), to("b", "tcp://x")], NOTHING,
        "the other routes to it are used instead", "create the service",
    ),
    "LOCAL to a database that is not here": (
        Lint.LOCAL_SERVICE_ABSENT, "a", [to("a", "LOCAL", "S", THERE)], HOSTED, f"no database here is {THERE}",
        "let the route lead where the service is",
    ),
    "LOCAL to a database that is not here shadows nothing": (
        Lint.LOCAL_SERVICE_ABSENT, "a", [to("a", "LOCAL", "S", THERE), to("b", "tcp://x", "S", THERE)], HOSTED,
        "the other routes to it are used instead", "create the service",
    ),
    "LOCAL to a database that has another service": (
        Lint.LOCAL_SERVICE_ABSENT, "a", [to("a", "LOCAL", "T", HERE)], HOSTED, "senders get an error (-8490)",
        "create the service",
    ),
    "services of this instance are asked for while the configuration service has a route": (
        Lint.ASKED_FOR_LOCAL_SERVICE, "a", [AUTO_CREATED_LOCAL, ASK, to("b", "LOCAL", "U")], THREE,
        "'S' and 1 more services of this instance are asked for", "CREATE ROUTE with its SERVICE_NAME and ADDRESS",
    ),
    "a route that has expired": (
        Lint.EXPIRED_ROUTE, "a", [to("a", "tcp://x", lifetime=NOW)], NOTHING,
        "expired at 2025-03-01 12:00:00 UTC", "revive it with ALTER ROUTE and a new LIFETIME",
    ),
}  # fmt: skip


@pytest.mark.parametrize("told_of", FIRE.values(), ids=FIRE)
def test_what_is_unwise_is_told(told_of: Case) -> None:
    lint, name, routes, here, problem, hint = told_of

    (remark,) = remarks(*routes, here=here)

    assert (lint, name) == (remark.lint, remark.route.name)
    assert problem in remark.problem
    assert hint in remark.hint


def test_in_msdb_what_comes_for_an_absent_service_is_dropped() -> None:
    (remark,) = remarks(to("a", "LOCAL"), is_msdb=True)

    assert remark.problem.endswith(": messages that arrive for it are dropped")


@pytest.mark.parametrize(
    ("routes", "is_told"),
    [
        ([AUTO_CREATED_LOCAL], True),
        ([AUTO_CREATED_LOCAL, to("own", "LOCAL")], False),
        ([], False),  # nothing let it be found before
    ],
)
def test_in_msdb_one_service_that_is_asked_for_is_enough(routes: list[Route], *, is_told: bool) -> None:
    found = remarks(to("a", "tcp://x", BROKER_CONFIGURATION), *routes, here=HOSTED, is_msdb=True)

    assert [(Lint.ASKED_FOR_LOCAL_SERVICE, "a")] * is_told == told(found)


PAST = NOW - timedelta(seconds=1)
QUIET: dict[str, tuple[list[Route], Hosted]] = {
    "nothing at all": ([], NOTHING),
    "what every database begins with": ([AUTO_CREATED_LOCAL], NOTHING),
    "LOCAL and a default route": ([AUTO_CREATED_LOCAL, to("a", "tcp://x", None)], HOSTED),
    "LOCAL and TRANSPORT": ([AUTO_CREATED_LOCAL, to("a", "TRANSPORT", None)], NOTHING),
    "AutoCreatedLocal beside the configuration service": (
        [AUTO_CREATED_LOCAL, to("a", "tcp://x", BROKER_CONFIGURATION)], NOTHING
    ),
    "the only service of a database that asks": (
        [AUTO_CREATED_LOCAL, to("a", "tcp://x", BROKER_CONFIGURATION)], HOSTED
    ),
    "what is never asked about": (
        [AUTO_CREATED_LOCAL, to("a", "tcp://x", BROKER_CONFIGURATION)],
        hosted({HERE.bytes: [SERVICE_BROKER, BROKER_CONFIGURATION]}),
    ),
    "two mirrored pairs": ([mirrored("a", "x", "y"), mirrored("b", "v", "w")], NOTHING),
    "a mirrored pair and a plain route to another instance": (
        [mirrored("a", "x", "y"), to("b", "tcp://z", "S", HERE)], NOTHING
    ),
    "a name-only route beside one instance": ([to("a", "tcp://x", "S", HERE), to("b", "tcp://y")], NOTHING),
    "a name-only route beside several routes to one instance": (
        [to("a", "tcp://x", "S", HERE), to("b", "tcp://y", "S", HERE), to("c", "tcp://z")], NOTHING
    ),
    "a name-only route of another service": (
        [to("a", "tcp://x", "S", HERE), to("b", "tcp://y", "S", THERE), to("c", "tcp://z", "T")], NOTHING
    ),
    "instances that share": ([to("a", "tcp://x", "S", HERE), to("b", "tcp://y", "S", THERE, weight=9)], NOTHING),
    "two gateways to one instance": ([to("a", "tcp://x", "S", THERE), to("b", "tcp://y", "S", THERE)], NOTHING),
    "two default routes": ([to("a", "tcp://x", None), to("b", "tcp://y", None)], NOTHING),
    "one host on the way to two services": ([to("a", "tcp://x"), to("b", "tcp://x", "T")], NOTHING),
    "names that differ in case are two services": ([to("a", "tcp://x"), to("b", "tcp://y", "s")], NOTHING),
    "LOCAL to what is here": ([to("a", "LOCAL"), to("b", "LOCAL", "S", HERE)], HOSTED),
    "a duplicate that weighs more for some time": (
        [to("a", "tcp://x", "S", THERE), to("b", "tcp://x", "S", THERE, weight=3, lifetime=LATER)], NOTHING
    ),
    "the weight of one": ([to("a", "tcp://x", weight=1)], NOTHING),
    "a lifetime that lasts": ([to("a", "tcp://x", lifetime=LATER)], NOTHING),
}  # fmt: skip


@pytest.mark.parametrize(("routes", "here"), QUIET.values(), ids=QUIET)
def test_what_comes_near_is_not_told(routes: list[Route], here: Hosted) -> None:
    assert [] == remarks(*routes, here=here)


@pytest.mark.parametrize("live", [to("c", "tcp://x"), to("c", "tcp://x", "S", HERE), to("c", "tcp://y")])
def test_an_expired_route_shadows_nothing_and_counts_for_nothing(live: Route) -> None:
    expired = [
        to("a", "tcp://x", lifetime=PAST),
        to("b", "LOCAL", lifetime=PAST),
        to("d", "tcp://x", "S", HERE, lifetime=PAST),
        to("e", "tcp://z", "S", THERE, lifetime=PAST),
    ]

    found = remarks(*expired, live, here=HOSTED)

    assert [(Lint.EXPIRED_ROUTE, route.name) for route in expired] == told(found)


def test_hosts_behind_a_local_route_that_is_taken_are_shadowed_and_no_targets() -> None:
    routes = [to("a", "LOCAL"), to("b", "tcp://x"), to("c", "tcp://y")]

    assert [(Lint.SHADOWED_ROUTE, "b"), (Lint.SHADOWED_ROUTE, "c")] == told(remarks(*routes, here=HOSTED))


def test_every_lint_has_a_row_on_its_page_and_no_other_has() -> None:
    page = (Path(__file__).parents[3] / "docs" / "lints.md").read_text(encoding="utf-8")

    assert set(Lint) == set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))
