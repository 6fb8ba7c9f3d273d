"""Permissions that are missing, do nothing, or give everything away: each with its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from broker.catalog.diagnostics import Diagnostic
from broker.catalog.dry_run import DryRun, dry_run
from broker.catalog.lint import differing_names, shown, survey, survey_grants
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.routing.address import parse_address
from broker.routing.route import Route, row_of
from broker.store.sqlite import database, metadata

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
CERTIFICATE = (
    "encryption = 'required'\nauthentication = 'certificate'\ncertificate = 'a'\nprivate_key = 'a'\ntrust = ['a']\n"
)
GOOD = "GRANT CONNECT ON ENDPOINT::one TO [CN=*];\nGRANT SEND ON SERVICE::S TO [CN=orders];\n"
Found = Callable[..., list[str]]


@pytest.fixture
def found(load: Callable[[str], Settings], tmp_path: Path) -> Found:
    """What is told about msdb's script, without the directory and the caret."""

    def finding(msdb: str, endpoint: str = CERTIFICATE) -> list[str]:
        (tmp_path / "msdb.sql").write_text(msdb)
        (tmp_path / "a.sql").write_text("CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q;")
        text = (
            f"[instance]\nname = 'one'\nstate_dir = '.'\n[routes]\nfiles = ['msdb.sql']\n"
            f"[databases.a]\npath = 'a.db'\nscripts = ['a.sql']\n[endpoint]\n{endpoint}"
        )
        run = dry_run(load(text), now=NOW)
        assert [] == run.errors
        return [str(one).splitlines()[0].replace(f"{tmp_path}/", "") for one in survey_grants(run)]

    return finding


def test_good_grants_have_nothing_to_tell(found: Found) -> None:
    assert [] == found(GOOD)
    assert [] == found("", "")


def test_endpoint_that_lets_nobody_in_is_told_with_the_statement(found: Found) -> None:
    connect, send = found("DENY CONNECT ON ENDPOINT::one TO public")

    assert "nobody-may-connect: peers prove who they are by certificate, and no GRANT CONNECT of msdb says" in connect
    assert connect.endswith("; USE msdb; GRANT CONNECT ON ENDPOINT::[one] TO [PRINCIPAL]")
    assert "nobody-may-send" in send
    assert send.endswith("; USE msdb; GRANT SEND ON SERVICE::[SERVICE] TO [PRINCIPAL]")


def test_rule_about_certificates_where_nobody_shows_one_does_nothing(found: Found) -> None:
    (told,) = found("GRANT SEND ON SERVICE::S TO public;\nGRANT SEND ON SERVICE::S TO [CN=a];", "")

    assert told.startswith("msdb.sql:2:24: grant-unused: GRANT SEND ON SERVICE::[S] TO [CN=a] applies to no peer")


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
def test_grant_that_is_taken_back_as_a_whole_permits_nothing(found: Found, deny: str, *, is_overruled: bool) -> None:
    told = found(f"{GOOD}DENY {deny};")

    assert is_overruled == any("permits nothing: DENY SEND" in line for line in told)


def test_pattern_is_overruled_only_by_what_is_surely_wider(found: Found) -> None:
    told = found(
        "GRANT CONNECT ON ENDPOINT::one TO a; GRANT SEND ON SERVICE::[S*] TO a; DENY SEND ON SERVICE::[T*] TO a"
    )

    assert [] == told


def test_grant_of_everything_to_everybody_is_told(found: Found) -> None:
    (told,) = found(f"{GOOD}GRANT SEND ON SERVICE::[*] TO public;")

    assert told.startswith("msdb.sql:3:24: grant-to-all: GRANT SEND ON SERVICE::[*] TO [public] lets every peer send")


def test_name_in_another_case_is_told_with_the_right_one(found: Found) -> None:
    (told,) = found(f"{GOOD}GRANT SEND ON SERVICE::s TO [CN=orders];")

    assert "names-differ-in-case: GRANT SEND ON SERVICE::[s] TO [CN=orders] is not about 'S'" in told
    assert told.endswith("write [S]")


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
    return dry_run(load_settings(home / "broker.toml", environ={}), now=datetime(2025, 3, 1, 12, tzinfo=UTC))


def told(directory: Path, *instances: DryRun) -> list[str]:
    lines = [str(one).splitlines()[0].replace(f"{directory}/", "") for one in differing_names(instances)]
    return [line.removesuffix("; write both the same, unless two services are meant") for line in lines]


def service(*names: str) -> str:
    return "CREATE QUEUE Q;\n" + "".join(f"CREATE SERVICE [{name}] ON QUEUE Q;\n" for name in names)


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
    g = instance(tmp_path, "g", msdb=route("i", "i"))
    h = instance(tmp_path, "h", msdb="-- one\n" + route("i", "i"))

    rest = f"names-differ-in-case: 'i' here and 'I' at a/db.sql:2:16 {NEVER}"

    assert [f"g/msdb.sql:1:14: {rest}", f"h/msdb.sql:2:14: {rest}"] == told(tmp_path, g, a, h)


def test_names_written_alike_are_not_told(tmp_path: Path) -> None:
    a = instance(tmp_path, "a", script=service("I"))
    g = instance(tmp_path, "g", msdb=route("i", "I") + route("j", "J"))

    assert [] == told(tmp_path, a, g)


def test_a_route_that_has_expired_is_not_told(tmp_path: Path) -> None:
    a = instance(tmp_path, "a", msdb=route("i", "i"), script=service("I"))
    old = a.msdb.routes["i"]
    a.msdb.routes = {"i": replace(old, lifetime=a.now)}

    assert [] == told(tmp_path, a)


def test_a_name_that_was_in_the_file_stands_where_the_file_is_named(tmp_path: Path) -> None:
    first = instance(tmp_path, "a", script=service("I", "i"))
    db = first.databases["db"]
    db.service_statements.clear()

    (concern,) = differing_names([first])

    assert concern.span is not None
    assert (tmp_path / "a" / "broker.toml", 7) == (Path(concern.span.source), concern.span.line)


# --- one instance ---


SERVICE = "CREATE QUEUE Q;\nCREATE SERVICE S ON QUEUE Q;\n"
LOCAL_ONLY = 'listen = ["127.0.0.1:4022"]\n'
Survey: TypeAlias = Callable[..., list[str]]


@pytest.fixture
def concerns(load: Callable[[str], Settings], tmp_path: Path) -> Callable[..., list[Diagnostic]]:
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
        return list(survey(dry_run(load(text), now=NOW), **how))

    return surveying


@pytest.fixture
def found_of_survey(concerns: Callable[..., list[Diagnostic]], tmp_path: Path) -> Survey:
    """The same as lines, without directory, caret and what to do."""

    def finding(*args: str, **kwargs: Any) -> list[str]:
        lines = [str(one).splitlines()[0].replace(f"{tmp_path}/", "") for one in concerns(*args, **kwargs)]
        return [line.rpartition("; ")[0] if "DROP ROUTE [" not in line else line.split("; drop")[0] for line in lines]

    return finding


def test_a_quiet_instance_has_nothing_to_tell(found_of_survey: Survey) -> None:
    assert [] == found_of_survey()


def test_a_remark_on_a_table_gets_its_place(concerns: Callable[..., list[Diagnostic]], tmp_path: Path) -> None:
    (one,) = concerns(a=f"{SERVICE}CREATE ROUTE [r] WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n")

    assert str(one) == (
        f"{tmp_path}/a.sql:3:14: weight-unused: the WEIGHT of [r] has no effect: shares are between broker instances,"
        " and it names none; name the BROKER_INSTANCE it leads to, or leave WEIGHT out\n"
        "CREATE ROUTE [r] WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n"
        "             ^^^"
    )


# --- LOCAL to what is not here ---

LOCAL_T = "CREATE ROUTE r WITH SERVICE_NAME = 'T', ADDRESS = 'LOCAL';\n"
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
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
    found_of_survey: Survey, script: str, scripts: str, *, is_told: bool
) -> None:
    lines = found_of_survey(msdb=script, scripts=scripts)

    assert is_told == any(" local-service-absent: [r] leads " in line for line in lines)


# --- several targets that are known to be one ---


def test_several_ways_to_one_target_are_cleared_for_their_database_alone(found_of_survey: Survey) -> None:
    two = "".join(f"CREATE ROUTE {one} WITH SERVICE_NAME = 'T', ADDRESS = 'tcp://{one}';\n" for one in "xy")
    cleared = found_of_survey(
        msdb=two, a=two, is_one_target=lambda database, service: (database.name, service) == ("a", "T")
    )

    assert ["msdb.sql:2:14"] == [line.split(": ")[0] for line in cleared if "several-targets" in line]


# --- lifetimes ---


def test_a_lifetime_in_a_script_begins_anew(found_of_survey: Survey) -> None:
    script = f"{SERVICE}CREATE ROUTE r WITH LIFETIME = 60, ADDRESS = 'tcp://x';\n"

    expected = (
        "a.sql:3:32: lifetime-renewed: the LIFETIME of [r] starts again whenever the script runs, which is at every"
        " start"
    )

    assert [expected] == found_of_survey(a=script)


def test_a_route_that_expired_in_the_file_is_told(found_of_survey: Survey, tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        old = Route("Old", parse_address("tcp://x"), "T", lifetime=datetime(2025, 2, 1, tzinfo=UTC))
        metadata.put_routes(db, [row_of(old)])

    expected = "broker.toml:7:8: expired-route: [Old] expired at 2025-02-01 00:00:00 UTC, so it is no longer used"

    assert [expected] == found_of_survey()


# --- names ---


def test_a_drop_that_finds_the_name_in_another_case_is_told(found_of_survey: Survey) -> None:
    expected = (
        "msdb.sql:1:12: names-differ-in-case: DROP ROUTE finds no 'autocreatedlocal', and [AutoCreatedLocal] stays:"
        " they differ in case"
    )

    assert [expected] == found_of_survey(msdb="DROP ROUTE [autocreatedlocal];")


@pytest.mark.parametrize(
    "msdb",
    [
        "DROP ROUTE r;",
        "DROP ROUTE AutoCreatedLocal;\nDROP ROUTE autocreatedlocal;",
        "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'LOCAL';\nDROP ROUTE r;\nDROP ROUTE R;",
    ],
)
def test_a_drop_that_finds_nothing_is_the_way_of_scripts(found_of_survey: Survey, msdb: str) -> None:
    assert [] == found_of_survey(msdb=msdb)


# --- TRANSPORT ---

TRANSPORT = "CREATE ROUTE t WITH ADDRESS = 'TRANSPORT';\n"


UNUSABLE = "this database sends by TRANSPORT, and an answer to 'S' by TRANSPORT finds no address"
MISSPELT = "'tcp:/host/S' looks as if it began with an address, and TRANSPORT finds none in it"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (SERVICE + TRANSPORT, [f"a.sql:2:16: no-transport-address: {UNUSABLE}"]),
        (
            "CREATE QUEUE Q;\nCREATE SERVICE [tcp:/host/S] ON QUEUE Q;\n",
            [f"a.sql:2:16: no-transport-address: {MISSPELT}"],
        ),
        ("CREATE QUEUE Q;\nCREATE SERVICE [tcp://host:4022/S] ON QUEUE Q;\n" + TRANSPORT, []),
        (SERVICE + TRANSPORT + "DROP ROUTE t;\n", []),
        ("CREATE QUEUE Q;\nCREATE SERVICE tcpdump ON QUEUE Q;\n", []),
    ],
)
def test_names_that_transport_cannot_use_are_told(found_of_survey: Survey, script: str, expected: list[str]) -> None:
    assert expected == found_of_survey(a=script)


# --- what msdb lets in ---

OPEN = 'listen = ["127.0.0.1:4023", "0.0.0.0:4022"]\n'


def test_services_behind_the_automatic_route_are_exposed(
    concerns: Callable[..., list[Diagnostic]], tmp_path: Path
) -> None:
    (one,) = concerns(endpoint=OPEN)

    assert str(one) == (
        f"{tmp_path}/broker.toml:10:29: exposed-services: [AutoCreatedLocal] lets every peer that reaches 0.0.0.0:4022"
        " begin conversations with 'S'; drop it there (USE msdb; DROP ROUTE [AutoCreatedLocal];) and name with ADDRESS"
        " = 'LOCAL' each service that others may begin with; answers to what begins here need no route in msdb"
    )


def test_another_route_of_last_resort_exposes_as_well(found_of_survey: Survey) -> None:
    script = "DROP ROUTE AutoCreatedLocal;\nCREATE ROUTE door WITH ADDRESS = 'LOCAL';\n"

    expected = (
        "msdb.sql:2:14: exposed-services: [door] lets every peer that reaches 0.0.0.0:4022 begin conversations with 'S'"
    )

    assert [expected] == found_of_survey(msdb=script, endpoint=OPEN)


@pytest.mark.parametrize(
    ("msdb", "a", "endpoint"),
    [
        ("DROP ROUTE AutoCreatedLocal;", SERVICE, OPEN),
        ("", "", OPEN),
        ("", SERVICE, "listen = []\n"),
        ("", SERVICE, 'listen = ["localhost:4022", "[::1]:4022"]\n'),
        (
            "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'LOCAL';",
            SERVICE + "CREATE ROUTE out WITH ADDRESS = 'tcp://x';",
            OPEN,
        ),
    ],
)
def test_what_is_closed_or_meant_is_not_exposed(found_of_survey: Survey, msdb: str, a: str, endpoint: str) -> None:
    assert [] == found_of_survey(msdb=msdb, a=a, endpoint=endpoint)


def test_services_are_not_exposed_where_peers_need_a_permission(found_of_survey: Survey) -> None:
    files = 'certificate = "a.pem"\nprivate_key = "a.key"\ntrust = ["ca.pem"]\n'
    told = found_of_survey(
        a=SERVICE, endpoint=OPEN + 'encryption = "required"\nauthentication = "certificate"\n' + files
    )

    assert [True, False] == [any(name in one for one in told) for name in ("nobody-may-connect", "exposed-services")]


# --- forwarding ---


def test_routes_that_forward_while_forwarding_is_off_are_told_once(found_of_survey: Survey) -> None:
    msdb = "CREATE ROUTE a WITH SERVICE_NAME = 'T', ADDRESS = 'tcp://x';\nCREATE ROUTE b WITH ADDRESS = 'TRANSPORT';\n"

    expected = (
        "msdb.sql:1:14: forwarding-off: [a] and 1 more routes of msdb lead out of this instance, and"
        " endpoint.message_forwarding is false: what takes them is dropped (9792); set message_forwarding = true, or"
        " drop them"
    )

    assert [expected] == found_of_survey(msdb=msdb)


def test_one_route_is_one(found_of_survey: Survey) -> None:
    (line,) = found_of_survey(msdb="CREATE ROUTE a WITH ADDRESS = 'tcp://x';")

    assert "[a] leads out of this instance" in line


@pytest.mark.parametrize(
    ("msdb", "more"),
    [
        ("CREATE ROUTE a WITH ADDRESS = 'tcp://x';", "message_forwarding = true\n"),
        ("CREATE ROUTE a WITH SERVICE_NAME = 'S', ADDRESS = 'LOCAL';", "message_forwarding = true\n"),
    ],
)
def test_routes_that_are_used_are_not_told(found_of_survey: Survey, msdb: str, more: str) -> None:
    out = "CREATE ROUTE out WITH ADDRESS = 'tcp://x';"

    assert [] == found_of_survey(msdb=msdb, a=SERVICE + out, endpoint=LOCAL_ONLY + more)


# --- no way back ---

NAMED = "CREATE ROUTE r WITH SERVICE_NAME = 'S', ADDRESS = 'LOCAL';"
ADVERTISED = f"{LOCAL_ONLY}advertise = ['tcp://one.example']\n"


@pytest.mark.parametrize(
    ("msdb", "endpoint", "why"),
    [
        (NAMED, LOCAL_ONLY, "msdb lets others in to"),
        ("", ADVERTISED, "this instance advertises itself to others for"),
    ],
)
def test_a_database_that_others_reach_and_nothing_leaves_is_told(
    found_of_survey: Survey, msdb: str, endpoint: str, why: str
) -> None:
    expected = (
        f"broker.toml:6:1: missing-return-route: {why} 'S', and no route of its database leads out: no acknowledgement,"
        " no answer"
    )

    assert [expected] == found_of_survey(msdb=msdb, endpoint=endpoint)


@pytest.mark.parametrize(
    ("msdb", "a", "endpoint"),
    [
        ("", SERVICE, LOCAL_ONLY),  # complete in itself
        (NAMED, SERVICE + "CREATE ROUTE out WITH ADDRESS = 'tcp://x';", LOCAL_ONLY),
        ("", SERVICE + "CREATE ROUTE out WITH SERVICE_NAME = 'T', ADDRESS = 'tcp://x';", ADVERTISED),
        ("DROP ROUTE AutoCreatedLocal;", SERVICE, ADVERTISED),
        ("", "", ADVERTISED),
    ],
)
def test_a_database_that_can_answer_or_is_not_reached_is_not_told(
    found_of_survey: Survey, msdb: str, a: str, endpoint: str
) -> None:
    assert [] == found_of_survey(msdb=msdb, a=a, endpoint=endpoint)


def test_what_is_told_already_is_not_told_again(found_of_survey: Survey) -> None:
    assert [] == found_of_survey(msdb=NAMED, unanswered=["a"])


def test_a_few_names_are_shown_and_the_rest_is_counted() -> None:
    assert ("'a'", "'a', 'b', 'c' and 2 more") == (shown(["a"]), shown("edcba"))


CONTRACTS = "CREATE MESSAGE TYPE T;\nCREATE CONTRACT [//shop/C] (T SENT BY ANY);\nCREATE QUEUE Q;\n"


def test_contract_that_nothing_makes_is_told_where_others_are_made(concerns: Callable[..., list[Diagnostic]]) -> None:
    service = "CREATE SERVICE S ON QUEUE Q ([DEFAULT], [//shop/C], [//shop/c], Far);\n"

    told = [(one.lint, one.span.line if one.span else None, one.hint) for one in concerns(a=CONTRACTS + service)]

    assert told == [
        ("undeclared-contract", 4, "write [//shop/C], or CREATE CONTRACT [//shop/c]"),
        ("undeclared-contract", 4, "CREATE CONTRACT [Far]"),
    ]


def test_contracts_are_not_missed_where_none_is_made(found_of_survey: Survey) -> None:
    assert [] == found_of_survey(a="CREATE QUEUE Q;\nCREATE SERVICE S ON QUEUE Q (C, D);\n")


def test_contract_added_later_counts_as_named(found_of_survey: Survey) -> None:
    script = f"{CONTRACTS}CREATE SERVICE S ON QUEUE Q ([//shop/C]);\nALTER SERVICE S (ADD CONTRACT X);\n"

    problem = "'S' names the contract 'X', which no statement makes: it is not checked"
    assert [f"a.sql:4:16: undeclared-contract: {problem}"] == found_of_survey(a=script)
