"""What a check of a configuration finds on this machine, by itself and with others."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from broker.catalog.check import admin_errors, check_files, check_running, check_settings
from broker.catalog.database_files import NOT_RUNNING, UNASKED, RunningInstance, real
from broker.catalog.dry_run import dry_run
from broker.config.admin_access import AdminRole, new_token
from broker.config.settings import Settings
from broker.store.sqlite.database import lock_store, open_store
from tests.support.certificates import authority, make

QUIET = 'state_dir = "state"\n[observe]\nlisten = ""\n[endpoint]\nlisten = []\n'
SAMPLES = Path(__file__).parents[3] / "config"


def nobody(_: Settings) -> RunningInstance:
    """Nothing runs."""
    return NOT_RUNNING


@pytest.fixture
def found(load: Any, tmp_path: Path) -> Callable[..., list[str]]:
    """What a check of `[instance]` and the lines given finds, without the directory."""

    def checking(text: str, *, offline: bool = True) -> list[str]:
        settings = load(f"[instance]\n{text}")
        owner = UNASKED if offline else NOT_RUNNING
        errors = check_settings(settings, dry_run(settings, now=datetime.now(UTC)), owner)
        return [str(error).replace(f"{tmp_path}/", "").replace(str(tmp_path), ".") for error in errors]

    return checking


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 on which somebody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield int(listener.getsockname()[1])


def test_instance_that_could_start_has_no_errors(found: Any, tmp_path: Path) -> None:
    """And the check leaves nothing behind."""
    (tmp_path / "a.sql").write_text("CREATE ROUTE [R] WITH ADDRESS = 'LOCAL';\nGO\n")
    text = f"{QUIET}[routes]\nfiles = ['*.sql']\n[databases.a]\npath = 'a.db'\nscripts = ['a.sql']\n"

    assert found(text, offline=False) == []
    assert {"a.sql", "broker.toml"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("names", [["gateway.toml"], ["endpoint.toml"], ["gateway.toml", "endpoint.toml"]])
def test_sample_files_pass_but_for_the_open_port(names: list[str], tmp_path: Path) -> None:
    environ = {"BROKER_INSTANCE__STATE_DIR": str(tmp_path)}

    report = check_files([SAMPLES / name for name in names], environ=environ)

    assert ([], []) == (report.errors, report.concerns)
    assert ["endpoint.listen[0]"] * len(names) == [warning.key for warning in report.warnings]


def test_everything_wrong_comes_in_one_report_in_the_order_of_places(found: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.sql").write_text("DROP ROUTE [R];\nCREATE ROUT x;\nGO\nDROP QUEUE;\n")
    text = (
        'state_dir = "broker.toml/below"\n'
        "[routes]\nfiles = ['none.sql', 'bad.sql']\n"
        "[databases.a]\npath = '/nowhere/a.db'\nscripts = ['none.sql']\n"
        "[endpoint]\nencryption = 'disabled'\n"
    )

    lines = found(text)

    assert [line.split(";")[0][: line.find("error 102") + 9 if "error 102" in line else None] for line in lines] == [
        "bad.sql:2:8: routes.files[1]: error 102",
        "bad.sql:4:11: routes.files[1]: error 102",
        'broker.toml:2:13: instance.state_dir: "broker.toml" is not a directory',
        'broker.toml:4:10: routes.files[0]: "none.sql" does not exist, or is not a regular file',
        'broker.toml:6:8: databases.a.path: the directory "/nowhere" does not exist',
        'broker.toml:7:12: databases.a.scripts[0]: "none.sql" does not exist, or is not a regular file',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (QUIET.replace('"state"', '"/proc/broker"'), 'broker.toml:2:13: instance.state_dir: "/proc" cannot be written'),
        (f"{QUIET}[admin]\nsocket = '/proc/broker/a'\n", 'broker.toml:8:10: admin.socket: "/proc" cannot be written'),
        (f"{QUIET}[admin]\nsocket = 'run/admin.sock'\n", 'broker.toml:8:10: admin.socket: "state/'),
        (f"{QUIET}[admin]\nsocket = 'file'\n", 'broker.toml:8:10: admin.socket: "state/'),
        (f"{QUIET}[databases.a]\npath = '/proc/x.db'\n", 'broker.toml:8:8: databases.a.path: "/proc" cannot be'),
        (f"{QUIET}[journal]\ndirectory = 'file'\n", 'broker.toml:8:13: journal.directory: "state/file" is not a'),
    ],
)
def test_place_that_cannot_be_written_is_found(found: Any, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "file").touch()

    (line,) = found(text)

    assert line.startswith(problem)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.touch, None),  # SQLite takes an empty file for an empty database
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(84)), '"x.db" is not an SQLite file'),
        (lambda path: path.write_bytes(b"hello, this is a text"), '"x.db" is not an SQLite file'),
        (Path.mkdir, '"x.db" is not a regular file'),
    ],
)
def test_database_file_is_recognised(
    found: Any, tmp_path: Path, make: Callable[[Path], object], problem: str | None
) -> None:
    make(tmp_path / "x.db")

    lines = found(f"{QUIET}[databases.a]\npath = '{tmp_path}/x.db'\n")

    assert [problem] * (problem is not None) == [line.split(": ", 2)[2].split(";")[0] for line in lines]


def test_damage_within_a_database_is_found(found: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(open_store(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = db.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek(4 * page)
        file.write(b"\xff" * page)

    (line,) = found(f"{QUIET}[databases.a]\npath = '{path}'\n")

    assert "databases.a.path" in line
    assert "the file is damaged" in line


@pytest.mark.parametrize(
    ("problem", "told"),
    [(None, "the byte 0xff is not UTF-8"), (PermissionError(13, "Permission denied"), "cannot be read: Permission")],
)
def test_script_that_cannot_be_read_is_found(
    found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception | None, told: str
) -> None:
    (tmp_path / "a.sql").write_bytes(b"-- \xff")
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "a.sql" and problem is not None:
            raise problem
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)

    (line,) = found(f"{QUIET}[routes]\nfiles = ['a.sql']\n")

    assert "routes.files[0]: " in line
    assert told in line


def _listening(address: str) -> str:
    return f'state_dir = "state"\n[observe]\nlisten = ""\n[endpoint]\nlisten = ["{address}"]\n'


def test_taken_port_is_found_unless_offline(found: Any, taken: int) -> None:
    (line,) = found(_listening(f"127.0.0.1:{taken}"), offline=False)

    expected = f'broker.toml:6:11: endpoint.listen[0]: cannot listen on "127.0.0.1:{taken}": Address already in use; '
    assert line.startswith(expected)
    assert found(_listening(f"127.0.0.1:{taken}"), offline=True) == []
    assert found(_listening("localhost:0"), offline=False) == []


UNKNOWN = Mock(side_effect=socket.gaierror(-2, "Name or service not known"))


def test_host_that_does_not_resolve_is_found(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", UNKNOWN)

    (line,) = found(_listening("nowhere.invalid:4022") + "encryption = 'disabled'\n", offline=False)

    assert 'cannot listen on "nowhere.invalid:4022": Name or service not known' in line


@pytest.mark.parametrize(
    ("text", "key"),
    [("[ro", "TOML"), ("[endpoint]\nmax_hops = 0\n", "endpoint.max_hops"), ("x = 1\n", "x"), (None, "")],
)
def test_while_the_settings_are_wrong_nothing_else_is_checked_but_the_next_ones(
    tmp_path: Path, text: str | None, key: str
) -> None:
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    files[1].write_text(f"[instance]\n{QUIET}max_hopps = 3\n")
    if text is not None:
        files[0].write_text(text)

    report = check_files(files, environ={}, owner_of=lambda _: pytest.fail("nobody is asked"))

    expected = [key or str(files[0]), "endpoint.max_hopps"]
    assert expected == [error.key for error in report.errors]
    assert expected == [one.key for one in report.waiting if one.problem == "scripts and everything else"]


SHADOWED = "-- one\nCREATE ROUTE a WITH ADDRESS = 'tcp://a';\nCREATE ROUTE t WITH ADDRESS = 'TRANSPORT';\n"


@pytest.mark.parametrize("mistake", ["", "CREATE ROUT x;\n"])
def test_scripts_that_are_right_are_asked_what_they_mean_and_others_are_not(
    load: Any, tmp_path: Path, mistake: str
) -> None:
    (tmp_path / "a.sql").write_text(SHADOWED + mistake)
    settings = load(f"[instance]\n{QUIET}message_forwarding = true\n[routes]\nfiles = ['a.sql']\n")

    report = check_running(settings)

    found = [(one.lint, one.span.line) for one in report.concerns if one.span]
    assert ([] if mistake else [("shadowed-route", 3)]) == found
    assert ["routes.files[0]"] * bool(mistake) == [error.key for error in report.errors]
    assert report == replace(check_files([tmp_path / "broker.toml"], environ={}), skipped=[])


ROUTES = (
    "CREATE ROUTE a WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://a.invalid';\n"
    "CREATE ROUTE b WITH SERVICE_NAME = 'B', ADDRESS = 'tcp://127.0.0.1';\n"
)


def test_offline_names_what_it_has_not_looked_at(load: Any, tmp_path: Path, taken: int) -> None:
    (tmp_path / "a.sql").write_text(ROUTES)
    load(f"[instance]\n{_listening(f'127.0.0.1:{taken}')}[routes]\nfiles = ['a.sql']\n")

    report = check_files([tmp_path / "broker.toml"], environ={})

    assert [
        ("endpoint.listen[0]", f'whether "127.0.0.1:{taken}" can be bound'),
        ("admin.socket", f'whether another instance answers on "{tmp_path}/state/admin.sock"'),
        ("routes", "whether the names of next hops resolve: a.invalid"),
    ] == [(one.key, one.problem) for one in report.skipped]
    assert ([], []) == (report.errors, [one for one in report.concerns if one.lint == "name-unresolved"])


def test_names_of_next_hops_are_asked_for(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.sql").write_text(ROUTES)
    load(f"[instance]\n{QUIET}message_forwarding = true\n[routes]\nfiles = ['a.sql']\n")
    monkeypatch.setattr(socket, "getaddrinfo", UNKNOWN)

    report = check_files([tmp_path / "broker.toml"], environ={}, owner_of=nobody)

    [line] = [one.span and one.span.line for one in report.concerns if one.lint == "name-unresolved"]
    assert ([], [], 1) == (report.skipped, report.errors, line)


def test_ports_and_files_of_the_running_instance_are_its_own(load: Any, tmp_path: Path, taken: int) -> None:
    settings = load(f"[instance]\n{_listening(f'127.0.0.1:{taken}')}")
    state_dir, path = settings.instance.state_dir, tmp_path / "broker.toml"
    state_dir.mkdir()
    lock = lock_store(state_dir / "msdb.db")
    own = RunningInstance(state_dir, settings.endpoint.listen, frozenset({real(state_dir / "msdb.db")}))

    asked, other = (check_files([path], environ={}, owner_of=one) for one in (lambda _: own, nobody))

    os.close(lock)
    assert ([], [state_dir]) == (asked.errors, asked.running)
    assert ["instance.state_dir", "endpoint.listen[0]"] == [one.key for one in other.errors]
    assert [] == other.running


def test_kernels_and_flags_count_as_at_the_start(load: Any, tmp_path: Path) -> None:
    load(f"[instance]\n{QUIET}")
    path, flags = tmp_path / "broker.toml", {"endpoint.max_hops": "300"}

    kernel = check_files([path], environ={"BROKER_KERNEL": "rust"})
    flag = check_files([path], environ={}, overrides=flags)

    assert ["BROKER_KERNEL", "endpoint.max_hops (flag)"] == [error.key for error in (*kernel.errors, *flag.errors)]


def test_what_is_unwise_on_this_machine_is_warned_of(load: Any, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "databases.json").write_text("{}")
    os.utime(tmp_path / "state" / "databases.json", (4e9, 4e9))
    text = f"[instance]\n{QUIET}[routes]\nfiles = ['*.sql']\n[databases.a]\npath = 'a.db'\nmirroring = 'command'\n"
    load(f"{text}role_command = ['/no/such/program']\n")

    report = check_files([tmp_path / "broker.toml"], environ={})

    keys = ["instance.state_dir", "routes.files[0]", "databases.a.role_command"]
    assert ([], sorted(keys)) == (report.errors, sorted(one.key for one in report.warnings))


def test_disk_that_is_not_mounted_is_found(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.catalog.database_files.mount_problem", lambda path: '"/disk" is not mounted')

    (line,) = found(QUIET)

    assert line.startswith('broker.toml:2:13: instance.state_dir: "/disk" is not mounted: mount it, then start again; ')


# --- admin access ---


TLS = 'certificate = "gateway.pem"\nprivate_key = "gateway.key"\n'


@pytest.fixture
def told(load: Any, tmp_path: Path) -> Callable[[str], list[str]]:
    """What a check of these lines of `[admin]` finds, next to a certificate and its CA."""
    ca = authority()
    make("gateway", "127.0.0.1", by=ca).store(tmp_path, "gateway")
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    return lambda admin: [str(one) for one in admin_errors(load(f"[instance]\nstate_dir = '.'\n[admin]\n{admin}"))]


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('[admin.roles]\n"user:no-such-user" = "viewer"', "there is no user 'no-such-user' on this machine"),
        ('[admin.roles]\n"group:no-such-group" = "viewer"', "there is no group 'no-such-group' on this machine"),
        ('socket_group = "no-such-group"', "there is no group 'no-such-group' on this machine"),
        ('listen = "127.0.0.1:0"\nloopback_role = "none"', "no client can use"),
        (f'{TLS}listen = "0.0.0.0:0"', "no client can use"),
        (
            'listen = "127.0.0.1:0"\ncertificate = "none.pem"\nprivate_key = "broker.toml"',
            "cannot be read: No such file",
        ),
        (f'{TLS}listen = "127.0.0.1:0"\ntrust = ["none*.pem"]', "no such file"),
        ('tokens = "/proc/tokens"', "cannot be written"),
        ('audit = "/proc/audit"', "cannot be written"),
    ],
)
def test_what_the_machine_does_not_have_is_found_by_a_check(told: Any, admin: str, problem: str) -> None:
    [error] = told(admin)

    assert problem in error


def test_a_token_is_a_way_in_unless_others_may_read_it(told: Any, tmp_path: Path) -> None:
    new_token(tmp_path / "tokens", "ci", AdminRole.VIEWER, now=datetime(2026, 11, 22, tzinfo=UTC), expires_at=None)
    assert [] == told(f'{TLS}listen = "0.0.0.0:0"')

    (tmp_path / "tokens").chmod(0o644)

    assert "may be used by others" in str(*told(f'{TLS}listen = "0.0.0.0:0"'))


@pytest.mark.parametrize(
    "admin", ["", 'listen = "127.0.0.1:0"', f'{TLS}listen = "0.0.0.0:0"\ntrust = ["ca.pem"]', 'socket_group = "0"']
)
def test_good_settings_are_good(told: Any, admin: str) -> None:
    assert [] == told(admin)
