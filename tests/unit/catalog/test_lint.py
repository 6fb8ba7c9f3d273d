"""What is legal and probably not meant, each with its place, and what comes near it and is in order."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.catalog.diagnostics import Diagnostic
from broker.catalog.dry_run import DryRun, dry_run
from broker.catalog.lint import differing_names, survey
from broker.catalog.unscripted import IMPORT_AGAIN
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.routing.address import parse_address
from broker.routing.route import Route, RouteRow
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.principal import parse_principal
from broker.store.sqlite import database, metadata
from tests.support.certificates import make

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
QUEUE = "CREATE QUEUE Q;\n"
SERVICE = f"{QUEUE}CREATE SERVICE S ON QUEUE Q;\n"
OUT = "CREATE ROUTE out WITH ADDRESS = 'tcp://x';\n"
TRANSPORT = "CREATE ROUTE t WITH ADDRESS = 'TRANSPORT';\n"
CONTRACTS = f"CREATE MESSAGE TYPE T;\nCREATE CONTRACT [//shop/C] (T SENT BY ANY);\n{QUEUE}"
IN = "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'LOCAL';\n"
LOCAL_ONLY = 'listen = ["127.0.0.1:4022"]\n'
OPEN = 'listen = ["127.0.0.1:4023", "0.0.0.0:4022"]\n'
ADVERTISED = f"{LOCAL_ONLY}advertise = ['tcp://one.example']\n"
FORWARDING = f"{LOCAL_ONLY}message_forwarding = true\n"
CERTIFICATE = (
    f"{LOCAL_ONLY}encryption = 'required'\nauthentication = 'certificate'\ncertificate = 'a'\nprivate_key = 'a'\n"
    "trust = ['a']\n"
)
GOOD = "GRANT CONNECT ON ENDPOINT::one TO [CN=*];\nGRANT SEND ON SERVICE::S TO [CN=orders];\n"
UNKNOWN: dict[str, Any] = {"several_targets": lambda _home, _service: None, "unanswered": ()}  # of other instances
Concerns = Callable[..., list[Diagnostic]]


@pytest.fixture
def concerns(load: Callable[[str], Settings], tmp_path: Path) -> Concerns:
    """The concerns about an instance with the database `a`, its script, msdb's, and lines of its `[endpoint]`."""

    def surveying(
        msdb: str = "", a: str = SERVICE, endpoint: str = LOCAL_ONLY, scripts: str = "scripts = ['a.sql']", **how: Any
    ) -> list[Diagnostic]:
        (tmp_path / "msdb.sql").write_text(msdb)
        (tmp_path / "a.sql").write_text(a)
        text = (
            f"[instance]\nname = 'one'\nstate_dir = '.'\n[routes]\nfiles = ['msdb.sql']\n"
            f"[databases.a]\npath = 'a.db'\n{scripts}\n[endpoint]\n{endpoint}"
        )
        run = dry_run(load(text), now=NOW)
        assert [] == run.errors
        return list(survey(run, **(UNKNOWN | how)))

    return surveying


def lines(found: list[Diagnostic], directory: Path) -> list[str]:
    """Without directory and caret."""
    return [str(one).splitlines()[0].replace(f"{directory}/", "") for one in found]


# What is told, in one sentence: place and code, and the remedy.
TOLD: dict[str, tuple[dict[str, str], str, str]] = {
    "a remark on a table": (
        {"a": f"{SERVICE}CREATE ROUTE [r] WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n"},
        "a.sql:3:14: weight-unused: the WEIGHT of [r]",
        "name the BROKER_INSTANCE it leads to",
    ),
    "a duplicate": (
        {"msdb": "".join(f"CREATE ROUTE {name} WITH ADDRESS = 'tcp://x';\n" for name in "st"), "endpoint": FORWARDING},
        "msdb.sql:2:14: duplicate-route: [t] counts as one with [s]",
        "leave [t] out of its script, and with broker sql -c broker.toml: USE [msdb]; DROP ROUTE [t];",
    ),
    "a lifetime in a script": (
        {"a": f"{SERVICE}CREATE ROUTE r WITH LIFETIME = 60, ADDRESS = 'tcp://x';\n"},
        "a.sql:3:32: lifetime-renewed: the LIFETIME of [r]",
        "give it with ALTER ROUTE to the running instance",
    ),
    "a drop of a name in another case": (
        {"msdb": "DROP ROUTE [autocreatedlocal];"},
        "msdb.sql:1:12: names-differ-in-case",
        "write [AutoCreatedLocal]",
    ),
    "a name without an address for TRANSPORT": (
        {"a": SERVICE + TRANSPORT},
        "a.sql:2:16: no-transport-address: this database sends by TRANSPORT",
        "name it tcp://host:4022/Name, with an address of this instance, or give the instance that answers it a route",
    ),
    "a name that is almost an address": (
        {"a": f"{QUEUE}CREATE SERVICE [tcp:/host/S] ON QUEUE Q;\n"},
        "a.sql:2:16: no-transport-address: 'tcp:/host/S' looks as if it began with an address",
        "name it tcp://host:4022/Name",
    ),
    "services behind the automatic route": (
        {"endpoint": OPEN},
        "broker.toml:10:29: exposed-services: [AutoCreatedLocal] lets every peer that reaches 0.0.0.0:4022",
        "drop it there (USE msdb; DROP ROUTE [AutoCreatedLocal];)",
    ),
    "services behind another route of last resort": (
        {"msdb": "DROP ROUTE AutoCreatedLocal;\nCREATE ROUTE door WITH ADDRESS = 'LOCAL';\n", "endpoint": OPEN},
        "msdb.sql:2:14: exposed-services: [door] lets every peer",
        "drop it there (USE msdb; DROP ROUTE [door];)",
    ),
    "routes that forward while forwarding is off": (
        {"msdb": f"CREATE ROUTE a WITH SERVICE_NAME = 'T', ADDRESS = 'tcp://x';\n{TRANSPORT}"},
        "msdb.sql:1:14: forwarding-off: [a] and 1 more routes of msdb lead out of this instance",
        "set message_forwarding = true, or drop them",
    ),
    "one route that forwards while forwarding is off": (
        {"msdb": OUT},
        "msdb.sql:1:14: forwarding-off: [out] leads out of this instance",
        "set message_forwarding = true, or drop them",
    ),
    "a named database that nothing leaves": (
        {"msdb": IN},
        "broker.toml:6:1: missing-return-route: msdb lets others in to 'S'",
        "CREATE ROUTE in a",
    ),
    "an advertised instance that nothing leaves": (
        {"endpoint": ADVERTISED},
        "broker.toml:6:1: missing-return-route: this instance advertises itself to others for 'S'",
        "CREATE ROUTE in a",
    ),
    "a contract that is almost another one": (
        {"a": f"{CONTRACTS}CREATE SERVICE S ON QUEUE Q ([DEFAULT], [//shop/C], [//shop/c]);\n"},
        "a.sql:4:16: undeclared-contract: 'S' names the contract '//shop/c'",
        "write [//shop/C], or CREATE CONTRACT [//shop/c]",
    ),
    "a contract that is added later": (
        {"a": f"{CONTRACTS}CREATE SERVICE S ON QUEUE Q ([//shop/C]);\nALTER SERVICE S (ADD CONTRACT X);\n"},
        "a.sql:4:16: undeclared-contract: 'S' names the contract 'X'",
        "; CREATE CONTRACT [X]",
    ),
    "no GRANT CONNECT": (
        {"msdb": "GRANT SEND ON SERVICE::S TO [CN=orders]", "endpoint": CERTIFICATE},
        "broker.toml:12:18: nobody-may-connect",
        "USE msdb; GRANT CONNECT ON ENDPOINT::[one] TO [CN=orders]",
    ),
    "no GRANT SEND": (
        {"msdb": "GRANT CONNECT ON ENDPOINT::one TO [CN=*]", "endpoint": CERTIFICATE},
        "broker.toml:12:18: nobody-may-send",
        "USE msdb; GRANT SEND ON SERVICE::[S] TO [PRINCIPAL]",
    ),
    "a rule about certificates where none is shown": (
        {"msdb": "GRANT SEND ON SERVICE::S TO public;\nGRANT SEND ON SERVICE::S TO [CN=a];"},
        "msdb.sql:2:24: grant-unused: GRANT SEND ON SERVICE::[S] TO [CN=a] applies to no peer",
        'set authentication = "certificate"',
    ),
    "a first rule about certificates where none is shown": (
        {"msdb": "GRANT CONNECT ON ENDPOINT::one TO [CN=a];"},
        "msdb.sql:1:28: grant-unused: GRANT CONNECT ON ENDPOINT::[one] TO [CN=a] applies to no peer",
        'are refused; set authentication = "certificate", or USE [msdb]; GRANT CONNECT ON ENDPOINT::[one] TO [public]',
    ),
    "a rule about certificates in a database without one": (
        {"a": f"{SERVICE}GRANT SEND ON SERVICE::S TO [CN=a];\n"},
        "a.sql:3:24: grant-unused: GRANT SEND ON SERVICE::[S] TO [CN=a] applies to no sender: databases.a.certificate",
        "are refused; set databases.a.certificate, or USE [a]; GRANT SEND ON SERVICE::[S] TO [public]",
    ),
    "a grant of everything to all": (
        {"msdb": f"{GOOD}GRANT SEND ON SERVICE::[*] TO public;", "endpoint": CERTIFICATE},
        "msdb.sql:3:24: grant-to-all",
        "name the principals, or the services that all may send to",
    ),
    "a permission on a name in another case": (
        {"msdb": f"{GOOD}GRANT SEND ON SERVICE::s TO [CN=orders];", "endpoint": CERTIFICATE},
        "msdb.sql:3:24: names-differ-in-case: GRANT SEND ON SERVICE::[s] TO [CN=orders] is not about 'S'",
        "write [S]",
    ),
}


@pytest.mark.parametrize(("what", "place", "remedy"), TOLD.values(), ids=TOLD)
def test_what_is_probably_not_meant_is_told(
    concerns: Concerns, tmp_path: Path, what: dict[str, str], place: str, remedy: str
) -> None:
    [line] = lines(concerns(**what), tmp_path)

    assert line.startswith(place), line
    assert remedy in line


QUIET: dict[str, dict[str, Any]] = {
    "a database that is complete in itself": {},
    "a drop of nothing": {"msdb": "DROP ROUTE r;"},
    "a drop that was done": {"msdb": "DROP ROUTE AutoCreatedLocal;\nDROP ROUTE autocreatedlocal;"},
    "a drop in another case after one": {"msdb": f"{IN}DROP ROUTE r;\nDROP ROUTE R;"},
    "a name with an address": {"a": f"{QUEUE}CREATE SERVICE [tcp://host:4022/S] ON QUEUE Q;\n{TRANSPORT}"},
    "TRANSPORT that was dropped": {"a": f"{SERVICE}{TRANSPORT}DROP ROUTE t;\n"},
    "a name that begins like an address": {"a": f"{QUEUE}CREATE SERVICE tcpdump ON QUEUE Q;\n"},
    "a closed door": {"msdb": "DROP ROUTE AutoCreatedLocal;", "endpoint": OPEN},
    "nothing to expose": {"a": "", "endpoint": OPEN},
    "no listener": {"endpoint": "listen = []\n"},
    "loopback alone": {"endpoint": 'listen = ["localhost:4022", "[::1]:4022"]\n'},
    "a service that is named": {"msdb": IN, "a": SERVICE + OUT, "endpoint": OPEN},
    "peers that need a permission": {"msdb": GOOD, "endpoint": CERTIFICATE.replace(LOCAL_ONLY, OPEN)},
    "forwarding on": {"msdb": OUT, "endpoint": FORWARDING},
    "LOCAL where forwarding is on": {"msdb": IN, "a": SERVICE + OUT, "endpoint": FORWARDING},
    "a named database with a way out": {"msdb": IN, "a": SERVICE + OUT},
    "an advertised one with a way out": {
        "a": f"{SERVICE}CREATE ROUTE out WITH SERVICE_NAME = 'T', ADDRESS = 'tcp://x';",
        "endpoint": ADVERTISED,
    },
    "an advertised one that lets none in": {"msdb": "DROP ROUTE AutoCreatedLocal;", "endpoint": ADVERTISED},
    "an advertised one without services": {"a": "", "endpoint": ADVERTISED},
    "what is told already": {"msdb": IN, "unanswered": ["a"]},
    "contracts where none is made": {"a": f"{QUEUE}CREATE SERVICE S ON QUEUE Q (C, D);\n"},
    "a pattern that is not surely wider": {
        "msdb": GOOD + "GRANT SEND ON SERVICE::[S*] TO a; DENY SEND ON SERVICE::[T*] TO a",
        "endpoint": CERTIFICATE,
    },
}


def test_a_database_made_again_gets_its_partner_files_again(concerns: Concerns, tmp_path: Path) -> None:
    """A route that is written by hand has the name of what an import would make."""
    for name in ("one", "partner-x"):
        make(name).store(tmp_path, name)
    files = "certificate = 'one.pem'\nprivate_key = 'one.key'\npeers = ['partner-*.pem']\n"
    endpoint = f"{ADVERTISED}encryption = 'required'\nauthentication = 'certificate'\n{files}"

    [line] = lines(concerns(msdb=GOOD, endpoint=endpoint), tmp_path)

    assert line.startswith("broker.toml:6:1: missing-return-route: ")
    assert line.endswith(IMPORT_AGAIN)


def test_peers_whose_certificates_are_named_are_in_the_statement(concerns: Concerns, tmp_path: Path) -> None:
    for name in ("one", "peer", *(f"q{number:02}" for number in range(12))):
        make(name).store(tmp_path, name)
    files = "certificate = 'one.pem'\nprivate_key = 'one.key'\npeers = ['*.pem']\n"
    endpoint = f"{LOCAL_ONLY}encryption = 'required'\nauthentication = 'certificate'\n{files}"

    first, _ = lines(concerns(endpoint=endpoint), tmp_path)

    assert "USE msdb; GRANT CONNECT ON ENDPOINT::[one] TO [CN=peer]; GRANT CONNECT" in first
    assert first.endswith("TO [CN=q08]; and 3 more")


@pytest.mark.parametrize("what", QUIET.values(), ids=QUIET)
def test_what_is_in_order_is_not_told(concerns: Concerns, tmp_path: Path, what: dict[str, Any]) -> None:
    assert [] == lines(concerns(**what), tmp_path)


@pytest.mark.parametrize(
    ("deny", "is_overruled"),
    [
        ("SEND ON SERVICE::[S*] TO [CN=orders]", True),
        ("SEND ON SERVICE::[*] TO public", True),
        ("SEND ON SERVICE::[S*] TO public", True),
        ("SEND ON SERVICE::T TO public", False),
        ("SEND ON SERVICE::S TO [CN=other]", False),
    ],
)
def test_grant_that_is_taken_back_as_a_whole_permits_nothing(
    concerns: Concerns, deny: str, *, is_overruled: bool
) -> None:
    told = [one.problem for one in concerns(msdb=f"{GOOD}DENY {deny};", endpoint=CERTIFICATE)]

    assert is_overruled == any("permits nothing: DENY SEND" in problem for problem in told)


GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
LOCAL_T = "CREATE ROUTE r WITH SERVICE_NAME = 'T', ADDRESS = 'LOCAL';\n"
LOCAL_OTHER = f"CREATE ROUTE r WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{GUID}', ADDRESS = 'LOCAL';"


@pytest.mark.parametrize(
    ("script", "scripts", "is_told"),
    [
        (LOCAL_T, "scripts = ['a.sql']", True),
        (LOCAL_T, "", False),  # the application may create it
        (LOCAL_OTHER, "scripts = ['a.sql']", False),  # it may be the GUID that this database gets
        (LOCAL_OTHER, "scripts = ['a.sql']\nbroker_instance = '00000000-0000-0000-0000-000000000007'", True),
    ],
)
def test_local_to_an_absent_service_is_told_when_that_is_certain(
    concerns: Concerns, script: str, scripts: str, *, is_told: bool
) -> None:
    assert is_told == any(one.lint == "local-service-absent" for one in concerns(msdb=script, scripts=scripts))


def test_several_targets_are_told_of_the_database_whose_routes_are_known_to_lead_there(
    concerns: Concerns, tmp_path: Path
) -> None:
    two = "".join(f"CREATE ROUTE {one} WITH SERVICE_NAME = 'T', ADDRESS = 'tcp://{one}';\n" for one in "xy")
    known = {("msdb", "T"): ""}
    told = concerns(msdb=two, a=two, several_targets=lambda home, service: known.get((home.name, service)))

    assert ["msdb.sql:2:14"] == [one.split(": ")[0] for one in lines(told, tmp_path) if "several-targets" in one]


def test_what_is_in_no_script_is_dropped_at_its_own_instance(concerns: Concerns, tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        metadata.put_routes(db, [RouteRow.of(Route("hand", parse_address("tcp://x"), "T"))])

        metadata.put_queue(db, "Old", is_receive_enabled=True)
        for name in "abcd":
            rule = PermissionRule(Permission.SEND, "S", parse_principal(name), PermissionState.GRANT)
            metadata.put_permission(db, rule)

    found = lines(concerns(), tmp_path)
    queue, told = [one.partition(": not-in-scripts: ")[2] for one in found if "not-in-scripts" in one]

    few = ", ".join(f"GRANT SEND ON SERVICE::[S] TO [{name}]" for name in "ab")
    problem = f"the route [hand], {few} and 2 more are in no script: removed from one, or made by broker sql"
    prune = "broker reload -c broker.toml --prune, which drops every route, binding and permission that no script names"
    assert told == f"{problem}; write them into a script; or, if none is needed, drop them: {prune}"
    assert queue.endswith("drop it, with broker sql -c broker.toml: USE [a]; DROP QUEUE [Old];")


def test_of_duplicates_the_one_in_no_script_is_dropped_with_its_weight_kept(concerns: Concerns, tmp_path: Path) -> None:
    far = "00000000-0000-0000-0000-000000000007"
    with closing(database.open_store(tmp_path / "a.db")) as db:
        hand = Route("hand", parse_address("tcp://x"), "T", UUID(far), weight=5)
        metadata.put_routes(db, [RouteRow.of(hand)])
    light = f"CREATE ROUTE light WITH SERVICE_NAME = 'T', BROKER_INSTANCE = '{far}', ADDRESS = 'tcp://x';\n"

    found = lines(concerns(a=SERVICE + light), tmp_path)
    [duplicate], [unscripted] = (
        [one for one in found if code in one] for code in ("duplicate-route", "not-in-scripts")
    )

    run = "with broker sql -c broker.toml: USE [a];"
    kept = "ALTER ROUTE [light] WITH WEIGHT = 5; DROP ROUTE [hand]; write that WEIGHT into the script, too"
    assert duplicate.endswith(f"is in no script, and has the WEIGHT that counts, 5; {run} {kept}")
    assert unscripted.endswith(f"write it into a script; or, if it is not needed, drop it, {run} DROP ROUTE [hand];")


@pytest.mark.parametrize(("binding", "count"), [("partner:far", 0), ("own", 2)])
def test_the_grant_of_a_partner_is_not_missed_in_a_script_though_its_certificate_is_gone(
    concerns: Concerns, tmp_path: Path, binding: str, count: int
) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        metadata.put_binding(db, RemoteServiceBinding(binding, "T", "CN=far"))
        rule = PermissionRule(Permission.SEND, "S", parse_principal("CN=far"), PermissionState.GRANT)
        metadata.put_permission(db, rule)

    found = [one for one in lines(concerns(), tmp_path) if "not-in-scripts" in one]

    assert count == sum(one.count("[own]") + one.count("GRANT SEND") for one in found)


def test_a_route_that_expired_in_the_file_is_told(concerns: Concerns, tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        old = Route("Old", parse_address("tcp://x"), "T", lifetime=datetime(2025, 2, 1, tzinfo=UTC))
        metadata.put_routes(db, [RouteRow.of(old)])

    (told,) = lines(concerns(), tmp_path)

    assert told.startswith("broker.toml:7:8: expired-route: [Old] expired at 2025-02-01 00:00:00 UTC")


# --- names that differ in case ---


NEVER = "differ only in case, so they are two services and never match each other"


def instance(directory: Path, name: str, msdb: str = "", script: str = "") -> DryRun:
    home = directory / name
    home.mkdir()
    (home / "msdb.sql").write_text(msdb)
    (home / "db.sql").write_text(script)
    (home / "broker.toml").write_text(
        f"[instance]\nname = '{name}'\nstate_dir = '.'\n[routes]\nfiles = ['msdb.sql']\n"
        "[databases.db]\npath = 'a.db'\nscripts = ['db.sql']\n"
    )
    return dry_run(load_settings(home / "broker.toml", environ={}), now=NOW)


def told(directory: Path, *instances: DryRun) -> list[str]:
    found = lines(list(differing_names(instances)), directory)
    return [line.removesuffix("; write both the same, unless two services are meant") for line in found]


def service(*names: str) -> str:
    return QUEUE + "".join(f"CREATE SERVICE [{name}] ON QUEUE Q;\n" for name in names)


def route(name: str, to: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = 'tcp://x';\n"


@pytest.mark.parametrize(
    ("msdb", "script", "expected"),
    [
        (route("r", "orders"), service("Orders"), "msdb.sql:1:14: {code}'orders' here and 'Orders' at a/db.sql:2:16"),
        ("", service("S", "s"), "db.sql:3:16: {code}'s' here and 'S' at a/db.sql:2:16"),
        (
            "",
            route("r", "T") + route("q", "t") + route("p", "t"),
            "db.sql:2:14: {code}'t' here and 'T' at a/db.sql:1:14",
        ),
    ],
)
def test_within_one_instance_a_name_is_told_once(tmp_path: Path, msdb: str, script: str, expected: str) -> None:
    found = told(tmp_path, instance(tmp_path, "a", msdb, script))

    assert [f"a/{expected.format(code='names-differ-in-case: ')} {NEVER}"] == found


def test_between_instances_a_name_is_told_on_each_that_has_it_with_both_places(tmp_path: Path) -> None:
    """The hosted spelling is right, wherever it is given."""
    a = instance(tmp_path, "a", script=service("I"))
    g = instance(tmp_path, "g", msdb=route("i", "i") + route("same", "I") + route("j", "J"))
    h = instance(tmp_path, "h", msdb="-- one\n" + route("i", "i"))

    rest = f"names-differ-in-case: 'i' here and 'I' at a/db.sql:2:16 {NEVER}"

    assert [f"g/msdb.sql:1:14: {rest}", f"h/msdb.sql:2:14: {rest}"] == told(tmp_path, g, a, h)


def test_a_route_that_has_expired_is_not_told(tmp_path: Path) -> None:
    a = instance(tmp_path, "a", msdb=route("i", "i"), script=service("I"))
    a.msdb.routes = {"i": replace(a.msdb.routes["i"], lifetime=a.now)}

    assert [] == told(tmp_path, a)
