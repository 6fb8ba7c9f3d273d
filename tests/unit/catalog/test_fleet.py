"""What several configurations say together, walked from script to script."""

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import Mock

import pytest

from broker.catalog.diagnostics import KEPT_MAX, Diagnostic
from broker.catalog.dry_run import DryRun, dry_run
from broker.catalog.fleet import NAMES_MAX, survey_all, unresolved
from broker.config.load import load_settings
from broker.routing.lint import Lint
from tests.support.certificates import authority, make
from tests.support.partners import configured, instance, settings_of

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ORDERS, BILLING, SHIPPING = (f"0D6A4CF5-9A0B-4D0E-8D8C-3C1C7F1F5A0{number}" for number in (1, 2, 3))
CLOSED = "DROP ROUTE AutoCreatedLocal;\n"


def route(name: str, service: str | None, host: str, instance: str | None = None) -> str:
    named = f"SERVICE_NAME = '{service}', " if service else ""
    named += f"BROKER_INSTANCE = '{instance}', " if instance else ""
    address = host if host in {"LOCAL", "TRANSPORT"} else f"tcp://{host}"
    return f"CREATE ROUTE [{name}] WITH {named}ADDRESS = '{address}';\n"


def service(*names: str) -> str:
    return "CREATE QUEUE Q;\n" + "".join(f"CREATE SERVICE [{name}] ON QUEUE Q;\n" for name in names)


class Site:
    """An instance found at tcp://<name>: its routes of msdb, and a database with its script and GUID."""

    def __init__(
        self, name: str, msdb: str = "", script: str | None = None, instance: str | None = None, *, more: str = ""
    ) -> None:
        self.name, self.msdb, self.script, self.instance, self.more = name, msdb, script, instance, more
        self.listen, self.advertise = "127.0.0.1:0", f"advertise = ['tcp://{name}']"

    def write(self, directory: Path) -> Path:
        directory /= self.name
        directory.mkdir()
        (directory / "msdb.sql").write_text(self.msdb)
        text = (
            f"[instance]\nname = '{self.name}'\nstate_dir = '.'\n[routes]\nfiles = ['msdb.sql']\n[endpoint]\n"
            f"listen = ['{self.listen}']\n{self.advertise}\n{self.more}"
        )
        if self.script is not None:
            (directory / "db.sql").write_text(self.script)
            text += "[databases.db]\npath = 'a.db'\nscripts = ['db.sql']\n"
        if self.instance:
            text += f"broker_instance = '{self.instance}'\n"
        (directory / "broker.toml").write_text(text)
        return directory / "broker.toml"


Find: TypeAlias = Callable[..., list[str]]


@pytest.fixture
def concerns(tmp_path: Path) -> Callable[..., list[Diagnostic]]:
    def surveying(*sites: Site) -> list[Diagnostic]:
        files = [site.write(tmp_path) for site in sites]
        return survey_all([dry_run(load_settings(file, environ={}), now=NOW) for file in files])[0]

    return surveying


@pytest.fixture
def found(concerns: Callable[..., list[Diagnostic]], tmp_path: Path) -> Find:
    """What is told, without directory and caret."""

    def finding(*sites: Site) -> list[str]:
        return [str(one).splitlines()[0].replace(f"{tmp_path}/", "") for one in concerns(*sites)]

    return finding


FORWARDING = "message_forwarding = true\n"


def gateway(name: str, *routes: str) -> Site:
    return Site(name, CLOSED + "".join(routes), more=FORWARDING)


def orders(*routes: str) -> Site:
    return Site("orders", CLOSED, service("Orders") + "".join(routes), ORDERS)


def billing(*routes: str, msdb: str = "") -> Site:
    return Site("billing", msdb, service("Billing") + "".join(routes), BILLING)


def never_run(site: Site) -> Site:
    site.instance = None
    return site


THERE = route("there", "Billing", "g")
BACK = route("back", "Orders", "g", ORDERS)
GOOD_ROUTES = route("b", "Billing", "billing", BILLING), route("o", "Orders", "orders", ORDERS)
GOOD = gateway("g", *GOOD_ROUTES)


TWO_WAYS = route("1", "Billing", "g") + route("2", "Billing", "h")
SECOND = gateway("h", route("b", "Billing", "billing", BILLING), route("o", "Orders", "orders", ORDERS))
DEFAULT = route("out", None, "g")
TO_BILLING, TO_ORDERS = route("b", "Billing", "billing"), route("o", "Orders", "orders")
ONE, TWO = route("one", "S", "x", BILLING), route("two", "S", "y", SHIPPING)
QUIET = {
    "nothing": [],
    "a network in order": [orders(THERE), GOOD, billing(BACK)],
    "the sender alone": [orders(THERE)],
    "the gateway alone": [GOOD],
    "the target alone": [billing(BACK)],
    "without the target": [orders(THERE), GOOD],
    "routes of last resort": [orders(route("there", None, "g")), GOOD, billing(route("back", None, "g"))],
    "databases that have never run": [
        never_run(orders(DEFAULT)),
        gateway("g", TO_BILLING, TO_ORDERS),
        never_run(billing(DEFAULT)),
    ],
    "a database with a way out to what is not given": [
        orders(DEFAULT),
        gateway("g", route("p", "Partner", "x")),
        billing(DEFAULT),
    ],
    "a database that only another one on its instance sends to": [
        Site(
            "orders",
            CLOSED,
            service("Orders") + DEFAULT + "USE [x];" + service("Log") + DEFAULT,
            more="[databases.x]\npath = 'x.db'\n",
        ),
        gateway("g", TO_BILLING, TO_ORDERS),
        billing(DEFAULT),
    ],
    "a named service": [orders(THERE), GOOD, billing(BACK, msdb=CLOSED + route("in", "Billing", "LOCAL"))],
    # each keeps one instance and sends to the other for the other: the pick is the same, so none comes back
    "gateways that pick the same instance": [
        gateway("a", ONE, route("two", "S", "b", SHIPPING)),
        gateway("b", TWO, route("one", "S", "a", BILLING)),
    ],
    # orders lets no conversation begin; the answers of billing are delivered in any case
    "a route for answers": [orders(route("there", "Billing", "billing")), billing(route("back", "Orders", "orders"))],
    # which service begins is not written anywhere: the other one may only be a target
    "one of two services is answered": [
        Site("orders", CLOSED, service("Catalog", "Orders") + THERE, ORDERS),
        GOOD,
        billing(BACK),
    ],
    "two gateways that lead to one target": [orders(TWO_WAYS), GOOD, SECOND, billing(BACK)],
}


@pytest.mark.parametrize("sites", QUIET.values(), ids=QUIET)
def test_what_is_in_order_is_not_told(found: Find, sites: list[Site]) -> None:
    assert [] == found(*sites)


VIA_H = route("{0}", "{0}", "h")
ONE_WAY = Site("g", route("b", "Billing", "billing", BILLING), more=FORWARDING)
NO_TRANSPORT = Site("g", CLOSED + route("in", None, "TRANSPORT"), more=FORWARDING)
BOTH_WAYS = [orders(route("there", "Billing", "billing")), billing(route("back", "Orders", "orders"), msdb=CLOSED)]
DROPPED = "orders/db.sql:3:14: dead-end: messages over orders -> g are dropped at its end, for 'Billing':"
UNANSWERED = "missing-return-route: db of orders reaches db of billing, and no answer comes back: its way"
LEAD_ON = "USE [msdb]; CREATE ROUTE [Billing] WITH SERVICE_NAME = 'Billing', ADDRESS ="
BACK_TO = "CREATE ROUTE [Orders] WITH SERVICE_NAME = 'Orders', ADDRESS ="
BACK_TO_ONE = "WITH SERVICE_NAME = 'Orders', BROKER_INSTANCE ="
TWIN = Site("twin", CLOSED, service("Orders") + TO_BILLING, SHIPPING)
TOO = "what begins on this way for 'Orders' is dropped there too:"
FOR_ANSWERS = "instance not here (9795), for an answer names the broker instance of db of orders"

TOLD: dict[str, tuple[list[Site], list[str]]] = {
    "a circle of two gateways": (
        [
            gateway("a", route("to b", "S", "b"), route("too", "T", "b")),
            gateway("b", route("to a", "S", "a"), route("two", "T", "a")),
        ],
        ["a/msdb.sql:2:14: routing-loop: messages to 'S', 'T' go in a circle, a -> b -> a,... end the circle:..."],
    ),
    "a circle of last resort": (
        [gateway("a", route("d", None, "b")), gateway("b", route("d", None, "a"))],
        ["routing-loop: messages to every service that no route names go in a circle, a -> b -> a,..."],
    ),
    "a circle of three": (
        [gateway(one, route("next", "S", other)) for one, other in ("ab", "bc", "ca")],
        ["routing-loop: ... a -> b -> c -> a,..."],
    ),
    # while the target cannot be reached, or by the hash, each may prefer the other
    "a circle of backups": (
        [
            gateway("a", route("t", "Billing", "billing", BILLING), route("b", "Billing", "b", BILLING)),
            gateway("b", route("t", "Billing", "billing", BILLING), route("a", "Billing", "a", BILLING)),
        ],
        ["routing-loop: ... a -> b -> a,..."],
    ),
    "no route at the end": (
        [orders(THERE), gateway("g")],
        [
            f"{DROPPED} no route (9798); with broker sql -c g/broker.toml, and in its script if it has one: {LEAD_ON} 'tcp://HOST:PORT';..."
        ],
    ),
    "no route at the end to one of the others": (
        [orders(THERE), gateway("g"), Site("billing", CLOSED, service("Billing"), BILLING)],
        [f"{DROPPED} no route (9798); ...{LEAD_ON} 'tcp://billing:4022';"],
    ),
    "no route at the end to what is there": (
        [orders(route("there", "Billing", "g")), Site("g", CLOSED, service("Billing"), BILLING)],
        [f"{DROPPED} no route (9798); ...{LEAD_ON} 'LOCAL';"],
    ),
    "no route at the end for many": (
        [orders(*(route(one, one, "g") for one in "abcde")), gateway("g", route("on", None, "h")), gateway("h")],
        ["g/msdb.sql:2:14: dead-end: ...'a', 'b', 'c' and 2 more:... CREATE ROUTE [c] ..., and so for 2 more"],
    ),
    "forwarding off at the end": (
        [orders(THERE), Site("g", CLOSED + route("b", "Billing", "billing"))],
        [
            "g/msdb.sql:2:14: forwarding-off:...",
            f"{DROPPED} forwarding disabled (9792); set endpoint.message_forwarding = true there, or lead it elsewhere",
        ],
    ),
    "no such service at the end": (
        [orders(THERE), Site("g", script=service("Other") + route("out", "S", "x"))],
        [f"{DROPPED} service not here (9796); create the service there, compare its name byte for byte, or lead it..."],
    ),
    "no service at all at the end": (
        [orders(THERE), Site("g")],
        [f"{DROPPED} service not here (9796); with broker sql -c g/broker.toml: {LEAD_ON} 'tcp://HOST:PORT';..."],
    ),
    "no address for TRANSPORT at the end": (
        [orders(THERE), NO_TRANSPORT],
        [f"{DROPPED} route invalid (11294); TRANSPORT needs a name like tcp://host:4022/Name: CREATE ROUTE for..."],
    ),
    "no such broker instance at the end": (
        [orders(route("there", "Billing", "billing", SHIPPING)), billing(route("back", "Orders", "orders"))],
        ["dead-end: ...: instance not here (9795); compare the BROKER_INSTANCE..."],
    ),
    "the last route before the end": (
        [orders(THERE), gateway("g", route("b", "Billing", "h")), gateway("h")],
        ["g/msdb.sql:2:14: dead-end:..."],
    ),
    "a route to the own address": (
        [gateway("g", route("self", "S", "g"))],
        ["g/msdb.sql:2:14: dead-end: ... for 'S': route invalid (11294); [self] there leads back to the same..."],
    ),
    "two databases in which no conversation may begin": (
        BOTH_WAYS,
        ["billing/db.sql:3:14: dead-end:...", "orders/db.sql:3:14: dead-end:..."],
    ),
    "names that differ between instances": (
        [orders(route("there", "billing", "billing")), billing(route("back", "Orders", "orders"))],
        ["billing/db.sql:3:14: dead-end:...", "orders/db.sql:3:14: dead-end:...", "names-differ-in-case:..."],
    ),
    "a target without a route back": (
        [orders(THERE), GOOD, billing()],
        [
            f"billing/broker.toml:9:1: {UNANSWERED} billing ends in db there: {FOR_ANSWERS}; ...{BACK_TO} 'tcp://g:4022';"
        ],
    ),
    "a target without a route back to a route of last resort": (
        [orders(route("there", None, "g")), GOOD, billing()],
        [f"{UNANSWERED}..."],
    ),
    "a target on the instance where the way begins": (
        [
            Site(
                "g",
                script=service("Orders")
                + VIA_H.format("Billing")
                + "USE [x];"
                + service("Billing")
                + VIA_H.format("Orders"),
                instance=ORDERS,
                more=f"[databases.x]\npath = 'x.db'\nbroker_instance = '{BILLING}'\n",
            ),
            gateway("h", route("b", "Billing", "g")),
        ],
        [f"missing-return-route: db of g reaches x of g, and no answer comes back: ...{BACK_TO} 'tcp://g:4022';"],
    ),
    "a gateway without a route back": (
        [orders(THERE), gateway("g", route("b", "Billing", "billing", BILLING)), billing(BACK)],
        [f"g/broker.toml:5:9: {UNANSWERED} billing -> g ends in msdb there: no route (9798); {TOO}...{BACK_TO}..."],
    ),
    "a gateway without a route back to a database that has never run": (
        [never_run(orders(THERE)), gateway("g", TO_BILLING), never_run(billing(DEFAULT))],
        [f"g/broker.toml:5:9: {UNANSWERED} billing -> g ends in msdb there: no route (9798); {TOO}...{BACK_TO}..."],
    ),
    "a database that has never run and has no route back": (
        [never_run(orders(THERE)), gateway("g", TO_BILLING, TO_ORDERS), never_run(billing())],
        [f"{UNANSWERED} billing ends in db there: {FOR_ANSWERS}; ...{BACK_TO} 'tcp://g:4022';"],
    ),
    "routes of last resort to a gateway without routes": (
        [never_run(orders(DEFAULT)), gateway("g"), never_run(billing(DEFAULT))],
        [
            f"billing/db.sql:3:14: dead-end: messages over billing -> g are...'Orders': ...{BACK_TO} 'tcp://orders:4022';",
            f"{DROPPED} no route (9798); ...{LEAD_ON} 'tcp://billing:4022';",
        ],
    ),
    "routes of last resort to a gateway with one route": (
        [orders(DEFAULT), gateway("g", TO_BILLING), billing(DEFAULT)],
        [f"g/broker.toml:5:9: {UNANSWERED} billing -> g ends in msdb there: no route (9798); {TOO}...{BACK_TO}..."],
    ),
    # a route by name would lead answers to the wrong one of them
    "the ways back to two senders with the same service": (
        [orders(TO_BILLING), TWIN, billing()],
        [
            f"billing/broker.toml:9:1: {UNANSWERED} ...{BACK_TO_ONE} '{ORDERS}', ADDRESS = 'tcp://orders:4022';",
            f"billing/broker.toml:9:1: ...db of twin ...{BACK_TO_ONE} '{SHIPPING}', ADDRESS = 'tcp://twin:4022';",
        ],
    ),
    "a way back that leads to another sender with the same service": (
        [orders(TO_BILLING), TWIN, billing(TO_ORDERS)],
        [f"billing/...: db of twin ...: its way billing -> orders ends ...{BACK_TO_ONE} '{SHIPPING}', ADDRESS = ..."],
    ),
    # the gateway says 9795 to answers, which name the broker instance, and 9796 to what begins: one thing is wrong
    "a lost way back, and another service that is lost there": (
        [orders(THERE), ONE_WAY, billing(route("back", "Orders", "g"), route("o", "Other", "g"))],
        [
            "billing/db.sql:4:14: dead-end:...",
            f"g/broker.toml:5:9: {UNANSWERED} ... {FOR_ANSWERS}; {TOO} service not here (9796); ...{BACK_TO}...",
        ],
    ),
}


@pytest.mark.parametrize(("sites", "expected"), TOLD.values(), ids=TOLD)
def test_what_does_not_work_together_is_told_once(found: Find, sites: list[Site], expected: list[str]) -> None:
    for line, parts in zip(found(*sites), expected, strict=True):
        at = 0
        for part in parts.split("..."):
            assert part in line[at:], line
            at += line[at:].index(part) + len(part)
        assert parts.endswith("...") or at == len(line)


@pytest.mark.parametrize(
    ("sites", "code"),
    [
        # it may have the service
        ([orders(THERE), Site("g", more="[databases.x]\npath = 'x.db'\n")], "dead-end"),
        # which one?
        ([Site("orders", CLOSED, service("Orders") + THERE), GOOD, billing(BACK)], "missing-return-route"),
    ],
)
def test_what_an_incomplete_configuration_may_have_is_not_told(found: Find, sites: list[Site], code: str) -> None:
    assert [] == [line for line in found(*sites) if code in line]


@pytest.mark.parametrize(("given", "is_told"), [(0, False), (1, False), (3, True)])
def test_two_hosts_that_are_known_to_lead_to_two_targets_are_told(found: Find, given: int, *, is_told: bool) -> None:
    """They may be two gateways to one target."""
    twin = Site("h", "", service("Billing") + route("back", "Orders", "orders"), SHIPPING)

    lines = found(orders(TWO_WAYS), *[GOOD, billing(BACK), twin][:given])

    told = ["orders/db.sql:4:14: several-targets"] * is_told
    assert told == [": ".join(line.split(": ")[:2]) for line in lines]


@pytest.mark.parametrize(
    ("g", "h", "remedy"),
    [
        # the conversations that are followed show it
        ("A 3 B 1", "A 1 B 1", "share by the same WEIGHT as g: at h, ...ALTER ROUTE [A] WITH WEIGHT = 3;"),
        ("A 30 B 1", "A 3 B 1", "share by the same WEIGHT as g: at h, ...ALTER ROUTE [A] WITH WEIGHT = 30;"),
        ("A 1 B 1", "A 3 B 1", "share by the same WEIGHT as h: at g, ...ALTER ROUTE [A] WITH WEIGHT = 3;"),
        # only the weights do
        ("A 99 B 98", "A 99 B 99", "...as h: at g, ...: USE [msdb]; ALTER ROUTE [B] WITH WEIGHT = 99;"),
        ("A 3 B 1", "A 3", "give 'g', 'h' the same routes to 'Billing', with the same BROKER_INSTANCE and WEIGHT"),
        ("A 1", "B 1", "name the BROKER_INSTANCE in each"),
        ("A 30 B 10", "A 3 B 1", None),
        ("A 1", "A 3", None),
    ],
)
def test_gateways_that_share_out_in_different_ways_are_told_with_the_weight(
    found: Find, g: str, h: str, remedy: str | None
) -> None:
    """What is to be equal is at the gateways: a BROKER_INSTANCE at the sender would end their sharing."""
    instances = {"A": BILLING, "B": SHIPPING}

    def shares(name: str, text: str) -> Site:
        words = text.split()
        routes = [
            route(one, "Billing", one.lower(), instances[one]).replace("ADDRESS", f"WEIGHT = {weight}, ADDRESS")
            for one, weight in zip(words[::2], words[1::2], strict=True)
        ]
        return gateway(name, "".join(routes))

    targets = [
        Site(one.lower(), "", service("Billing") + route("back", "Orders", "orders"), instances[one]) for one in "AB"
    ]

    lines = [one for one in found(orders(TWO_WAYS), shares("g", g), shares("h", h), *targets) if "several" in one]

    assert ([] if remedy is None else ["orders/db.sql:4:14"]) == [line.split(": ")[0] for line in lines]
    assert all(part in line for line in lines for part in str(remedy).split("..."))


UNKNOWN = f"[databases.x]\npath = 'x.db'\nbroker_instance = '{BILLING}'\n"
HERE = route("b", "Billing", "LOCAL", BILLING) + route("s", "Billing", "LOCAL", SHIPPING)
BOTH = f"{BILLING}'\n[databases.x]\npath = 'x.db'\nbroker_instance = '{SHIPPING}"


@pytest.mark.parametrize(
    "target",
    [
        Site("x", route("in", "Billing", "LOCAL", BILLING), more=UNKNOWN),  # applications may create its services
        Site("x", HERE, f"{service('Billing')}USE [x];\n{service('Billing')}", BOTH),  # it picks again
    ],
)
def test_gateways_to_one_instance_may_have_other_weights(found: Find, target: Site) -> None:
    one, other = route("b", "Billing", "x", BILLING), route("s", "Billing", "x", SHIPPING)
    heavy = one.replace("ADDRESS", "WEIGHT = 3, ADDRESS")

    lines = found(orders(TWO_WAYS), gateway("g", one, other), gateway("h", heavy, other), target)

    assert [] == [line for line in lines if "several-targets" in line]


# --- addresses ---


@pytest.mark.parametrize(
    ("listen", "host", "is_linked"),
    [
        ("127.0.0.1:4023", "127.0.0.1:4023", True),
        ("name.example:4022", "name.example", True),
        ("0.0.0.0:4022", "0.0.0.0", False),
        ("127.0.0.1:0", "127.0.0.1", False),
    ],
)
def test_an_instance_is_found_where_it_listens(found: Find, listen: str, host: str, *, is_linked: bool) -> None:
    sender = gateway("a", route("r", "S", host))
    target = gateway("g")
    target.listen, target.advertise = listen, ""

    assert is_linked == any("dead-end" in line for line in found(sender, target))


def test_everything_is_sorted_by_place(concerns: Callable[..., list[Diagnostic]]) -> None:
    found = concerns(gateway("b", route("x", "S", "b"), route("y", "S", "b")), gateway("a", route("z", "S", "b")))

    places = [(one.span.source, one.span.line) for one in found if one.span]
    assert len(found) > 1
    assert sorted(places) == places


def test_of_one_kind_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    many = Site("a", "".join(route(f"r{number}", "S", "x") for number in range(KEPT_MAX + 6)), more=FORWARDING)

    concerns, left_out = survey_all([dry_run(load_settings(many.write(tmp_path), environ={}), now=NOW)])

    assert {(Lint.DUPLICATE_ROUTE, str(tmp_path / "a" / "msdb.sql")): 5} == left_out
    assert [Lint.DUPLICATE_ROUTE] * KEPT_MAX == [one.lint for one in concerns]


# --- names of next hops ---


SCRIPT = """\
CREATE ROUTE a WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://good.example';
CREATE ROUTE b WITH SERVICE_NAME = 'B', BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11', ADDRESS = 'tcp://bad.example:4023',
    MIRROR_ADDRESS = 'tcp://worse.example';
CREATE ROUTE c WITH SERVICE_NAME = 'C', ADDRESS = 'tcp://bad.example';
CREATE ROUTE d WITH SERVICE_NAME = 'D', ADDRESS = 'tcp://10.0.0.1';
CREATE ROUTE e WITH SERVICE_NAME = 'E', ADDRESS = 'tcp://[::1]:4022';
CREATE ROUTE f WITH SERVICE_NAME = 'F', ADDRESS = 'LOCAL';
"""


@pytest.fixture
def dry(load: Any, tmp_path: Path) -> Any:
    def running(script: str) -> DryRun:
        (tmp_path / "a.sql").write_text(script)
        settings = load("[instance]\nstate_dir = 'state'\n[routes]\nfiles = ['a.sql']\n")
        return dry_run(settings, now=datetime.now(UTC))

    return running


def only_good(host: str, *_: object, **__: object) -> None:
    if host != "good.example":
        raise OSError(-2, "Name or service not known")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Mock:
    monkeypatch.setattr(socket, "getaddrinfo", resolver := Mock(side_effect=only_good))
    return resolver


def test_name_that_does_not_resolve_is_told_at_its_first_route(dry: Any, resolver: Mock) -> None:
    found = unresolved(dry(SCRIPT))

    assert [(2, "name-unresolved"), (2, "name-unresolved")] == [(one.span.line, one.lint) for one in found if one.span]
    assert "the name 'bad.example' of its address does not resolve here: Name or service not known" == found[0].problem
    resolver.side_effect = UnicodeError("label too long")
    assert "label too long" in unresolved(dry(SCRIPT))[0].problem
    assert [] == unresolved(dry(""))


def test_resolver_that_does_not_answer_holds_nobody_up(
    dry: Any, resolver: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    resolver.side_effect = lambda *_, **__: release.wait(60)
    monkeypatch.setattr("broker.catalog.fleet.SECONDS", 0.05)

    found = unresolved(dry(SCRIPT))

    release.set()
    assert [] == found


def test_number_of_names_is_bounded(dry: Any, resolver: Mock) -> None:
    names = range(NAMES_MAX + 1)
    script = "".join(f"CREATE ROUTE r{n} WITH SERVICE_NAME = 'S{n}', ADDRESS = 'tcp://h{n}';\n" for n in names)

    unresolved(dry(script))

    assert NAMES_MAX == resolver.call_count


# --- certificates ---


@pytest.mark.parametrize(("hosts", "count"), [(["elsewhere"], 1), (["elsewhere", "billing"], 0)])
def test_a_route_by_a_host_that_the_certificate_does_not_name_is_told(
    found: Find, tmp_path: Path, hosts: list[str], count: int
) -> None:
    ca = authority()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    sites = orders(route("there", "Billing", "billing")), billing(route("back", "Orders", "orders"))
    for site, names in zip(sites, (["orders"], hosts), strict=True):
        certificate, key = make(site.name, *names, by=ca).store(tmp_path, site.name)
        site.more = f"encryption = 'required'\nauthentication = 'certificate'\ntrust = ['{tmp_path}/ca.pem']\n"
        site.more += f"certificate = '{certificate}'\nprivate_key = '{key}'\n"

    every = found(*sites)
    told = [one for one in every if "host-not-in-certificate" in one]
    assert not any("unknown-certificate" in one for one in every)

    what = "tcp://billing:4022 leads to billing, and the certificate of CN=billing is for elsewhere: no connection"
    command = "broker certs issue billing --host elsewhere --host billing --ca DIRECTORY --out DIRECTORY --force"
    assert count == len(told)
    assert all(one.startswith("orders/db.sql:") and what in one and command in one for one in told)


@pytest.mark.parametrize(
    ("here", "there", "count"), [("disabled", "required", 1), ("disabled", "supported", 0), ("required", "required", 0)]
)
def test_encryption_with_which_two_instances_cannot_connect_is_told(
    found: Find, tmp_path: Path, here: str, there: str, count: int
) -> None:
    ca = authority()
    sites = orders(route("there", "Billing", "billing")), billing(route("back", "Orders", "orders"))
    for site, encryption in zip(sites, (here, there), strict=True):
        certificate, key = make(site.name, site.name, by=ca).store(tmp_path, site.name)
        site.more = f"encryption = '{encryption}'\n"
        if encryption != "disabled":
            site.more += f"certificate = '{certificate}'\nprivate_key = '{key}'\ntrust = ['{tmp_path}/ca.pem']\n"
    (tmp_path / "ca.pem").write_bytes(ca.pem)

    every = found(*sites)
    told = [one for one in every if "encryption-differs" in one]

    assert not (told and any("missing-grant" in one for one in every))  # nothing would get there
    assert count == len(told)
    assert all('"disabled" here and "required" at billing: no connection' in one for one in told)


# --- permissions and what is known of others ---

PERMISSIONS = {Lint.MISSING_GRANT, Lint.NOBODY_MAY_CONNECT, Lint.NOBODY_MAY_SEND}


def between_two(directory: Path, *, is_granted: bool, is_bound: bool = False) -> list[Diagnostic]:
    """What is told of dialogs between two databases over a gateway; is_bound: billing has a binding to orders."""
    runs = []
    for name, other in (("orders", "billing"), ("billing", "orders")):
        settings = instance(directory / name, endpoint={"advertise": [f"tcp://{name}"], "listen": ["127.0.0.1:0"]})
        grants = f"USE msdb; GRANT CONNECT ON ENDPOINT::[{name}] TO [CN=gateway];"
        grants += " GRANT SEND ON SERVICE::[*] TO [CN=g*];"
        grants += f" USE {name}; GRANT SEND ON SERVICE::[{name}] TO [CN={other}];"
        script = service(name) + route("r", other, "gateway") + grants * is_granted
        if is_bound and name == "billing":
            script += "CREATE REMOTE SERVICE BINDING b TO SERVICE 'orders' WITH USER = [CN=orders];"
        (directory / name / "scripts.d" / "s.sql").write_text(script)
        runs.append(load_settings(settings.instance.state_dir / "broker.toml", environ={}))
    gateway = settings_of("gateway", directory / "gateway")
    del gateway["databases.gateway"]
    gateway["endpoint"] |= {"advertise": ["tcp://gateway"], "listen": ["127.0.0.1:0"], "message_forwarding": True}
    script = route("b", "billing", "billing") + route("o", "orders", "orders")
    script += "GRANT CONNECT ON ENDPOINT::[gateway] TO [public]; GRANT SEND ON SERVICE::[*] TO [CN=*];" * is_granted
    (directory / "gateway" / "scripts.d" / "s.sql").write_text(script)
    runs.append(configured(directory / "gateway", gateway | {"routes": {"files": ["scripts.d/*.sql"]}}))
    kept, _ = survey_all([dry_run(one, now=NOW) for one in runs])
    return kept


@pytest.mark.parametrize(
    ("is_bound", "problem"),
    [
        (
            False,
            "orders lacks permissions for dialogs that begin over billing -> gateway -> orders; answers there need",
        ),
        (True, "messages over billing -> gateway -> orders are refused: orders lacks permissions"),
    ],
)
def test_a_grant_that_only_dialogs_need_that_begin_there_is_no_refusal(
    tmp_path: Path, problem: str, *, is_bound: bool
) -> None:
    found = between_two(tmp_path, is_granted=False, is_bound=is_bound)

    [one] = [one for one in found if one.subject == "orders, orders" and one.lint in PERMISSIONS]
    assert one.problem.startswith(problem)


def test_every_grant_that_a_path_lacks_is_a_statement_to_run(tmp_path: Path) -> None:
    connect, send = "GRANT CONNECT ON ENDPOINT::", "GRANT SEND ON SERVICE::"
    at_gateway = f"{connect}[gateway] TO [CN=orders]; {send}[billing] TO [CN=orders];"
    at_gateway += f" {connect}[gateway] TO [CN=billing]; {send}[orders] TO [CN=billing];"

    found = between_two(tmp_path, is_granted=False)

    assert ["billing, billing", "billing, msdb", "orders, orders", "orders, msdb"] == [
        one.subject for one in found if one.lint in PERMISSIONS and "gateway" not in one.subject
    ]  # what fails dialogs before what delays them
    assert [
        f"billing, billing: USE [billing]; {send}[billing] TO [CN=orders];",
        f"billing, msdb: USE [msdb]; {connect}[billing] TO [CN=gateway]; {send}[billing] TO [CN=gateway];",
        f"gateway, msdb: USE [msdb]; {at_gateway}",
        f"orders, msdb: USE [msdb]; {connect}[orders] TO [CN=gateway]; {send}[orders] TO [CN=gateway];",
        f"orders, orders: USE [orders]; {send}[orders] TO [CN=billing];",
    ] == sorted(
        f"{one.subject}: USE {str(one.hint).partition(': USE ')[2]}" for one in found if one.lint in PERMISSIONS
    )


def test_a_path_with_all_its_grants_lacks_nothing(tmp_path: Path) -> None:
    assert [] == [one for one in between_two(tmp_path, is_granted=True) if one.lint in PERMISSIONS]


def test_where_nobody_proves_anything_a_grant_is_lacking_as_soon_as_there_is_another(found: Find) -> None:
    """The first GRANT of an instance without certificates shuts out what comes back, that of a database all others."""
    grant = "GRANT SEND ON SERVICE::[Billing] TO [{}];\n"
    begins, via = (
        Site("orders", "", service("Orders") + THERE, ORDERS),
        gateway("g", *GOOD_ROUTES, grant.format("public")),
    )

    told = [one for one in found(begins, via, billing(BACK + grant.format("CN=x"))) if "missing-grant" in one]

    hints = "USE [db]; GRANT SEND ON SERVICE::[Billing]", "USE [msdb]; GRANT SEND ON SERVICE::[Orders]"
    assert [f"{hint} TO [public];" for hint in hints] == [one[one.index("USE [") :] for one in told]


@pytest.mark.parametrize(
    ("there", "led", "granted", "lacking"),
    [
        (THERE, TO_BILLING, "Billing", "Orders"),  # missing-return-route
        (DEFAULT, TO_BILLING, "Billing", "Orders"),
        (THERE, TO_ORDERS, "Orders", "Billing"),  # dead-end
    ],
)
def test_where_a_route_and_its_grant_are_missing_one_command_makes_both(
    found: Find, there: str, led: str, granted: str, lacking: str
) -> None:
    via = gateway("g", led, f"GRANT SEND ON SERVICE::[{granted}] TO [public];\n")

    [told] = [one for one in found(orders(there), via, billing(DEFAULT)) if "CREATE ROUTE" in one]

    made = f"ADDRESS = 'tcp://{lacking.lower()}:4022'; GRANT SEND ON SERVICE::[{lacking}] TO [public];"
    assert made in told


def test_a_deny_that_refuses_a_path_is_told_with_what_lifts_it(found: Find) -> None:
    begins = Site("orders", "", service("Orders") + THERE, ORDERS)
    grant, deny = "GRANT SEND ON SERVICE::[*] TO public;\n", "DENY SEND ON SERVICE::[{}] TO public;\n"
    via, target = gateway("g", *GOOD_ROUTES, grant, deny.format("Bill*")), billing(BACK + deny.format("Billing"))

    told = [one for one in found(begins, via, target) if "missing-grant" in one]

    for problem, lifted in (
        (
            "db refuses dialogs that begin over orders -> g -> billing by DENY",
            "[db]; REVOKE SEND ON SERVICE::[Billing]",
        ),
        ("over orders -> g -> billing are refused: msdb has DENY", "[msdb]; REVOKE SEND ON SERVICE::[Bill*]"),
    ):
        [one] = [one for one in told if problem in one]
        assert "if that is not meant, with broker sql" in one
        assert one.endswith(f"USE {lifted} FROM [public];")


@pytest.mark.parametrize(("granted", "count"), [("X", 2), ("Billing", 1), ("Billing], [Orders", 0)])
def test_a_service_that_routes_of_last_resort_lead_to_needs_a_grant_to_someone(
    found: Find, granted: str, count: int
) -> None:
    last = route("ToGateway", None, "g")
    grants = "".join(f"GRANT SEND ON SERVICE::[{one}] TO [public];\n" for one in granted.split("], ["))
    sites = Site("orders", "", service("Orders") + last, ORDERS), gateway("g", *GOOD_ROUTES, grants)

    told = [one for one in found(*sites, billing(last)) if "missing-grant" in one]

    assert count == sum(one.count("GRANT SEND ON SERVICE::[") for one in told)


def test_every_certificate_that_an_instance_or_a_database_does_not_know_is_told(tmp_path: Path) -> None:
    found = [one for one in between_two(tmp_path, is_granted=True, is_bound=True) if one.lint == "unknown-certificate"]

    def lacks(where: str, of: str, file: str, to: str, effect: str = "no connection is made") -> str:
        copy = f"copy {tmp_path}/{file} into {tmp_path}/{to}, next to the files that are there"
        return f"{where} lacks the certificate of {of}: {effect}; {copy}"

    sealing = "dialogs with 'orders' cannot be sealed: no certificate of CN=orders is among the peers of this database"
    refused = "its dialogs are refused"
    assert [
        ("billing, billing", f"{sealing}; add it to databases.billing.peers"),
        ("billing, msdb", lacks("endpoint.peers", "gateway", "gateway/tls/gateway.pem", "billing/tls/peers")),
        ("gateway, msdb", lacks("endpoint.peers", "billing", "billing/tls/billing.pem", "gateway/tls/peers")),
        ("gateway, msdb", lacks("endpoint.peers", "orders", "orders/tls/orders.pem", "gateway/tls/peers")),
        ("orders, msdb", lacks("endpoint.peers", "gateway", "gateway/tls/gateway.pem", "orders/tls/peers")),
        (
            "orders, orders",
            lacks(
                "databases.orders.peers",
                "billing",
                "billing/dialog/billing.dialog.pem",
                "orders/dialog/peers",
                refused,
            ),
        ),
    ] == sorted((one.subject, one.sentence) for one in found)
