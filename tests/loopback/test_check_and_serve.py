"""
Whatever keeps `serve` from starting, `check` tells before; where `serve` starts, `check` finds nothing.

Real processes: each mistake of a hurried operator is tried with both commands, on a directory of its own. The message
says what is wrong and what to do, the exit code is the documented one, and there is never a traceback.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.store.sqlite.database import open_store
from examples.demo.topology import Topology
from tests.support.certificates import DAY, authority, make
from tests.support.hurried import Place, command, place

EX_TEMPFAIL, EX_CONFIG = 75, 78
NO_DATABASE = "hello, this is a text, and not a short one"
PLAIN_TEXT = ("[observe]", 'encryption = "disabled"\n[observe]')


def tls(one: Place, begins: timedelta = -DAY, ends: timedelta = DAY) -> None:
    pair = make("a", "127.0.0.1", by=authority(), begins=begins, ends=ends)
    pair.store(one.directory, "a")
    files = 'encryption = "required"\ncertificate = "a.pem"\nprivate_key = "a.key"\n'
    one.replace("[observe]", f"{files}[observe]")


def tls_without_a_key(one: Place) -> None:
    tls(one)
    one.replace('private_key = "a.key"\n', "")


def tls_of_a_missing_key(one: Place) -> None:
    tls(one)
    (one.directory / "a.key").unlink()


def tls_with_another_key(one: Place) -> None:
    tls(one)
    make("b", by=authority()).store(one.directory, "b")
    one.replace("a.key", "b.key")


def listening_at(address: str) -> Callable[[Place], None]:
    def listen(one: Place) -> None:
        one.replace("127.0.0.1:0", address)
        one.replace(*PLAIN_TEXT)

    return listen


def socket_is_answered(one: Place) -> None:
    one.state.mkdir()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(one.state / "admin.sock"))
    sock.listen()
    one.held.append(sock)


def tokens_that_others_may_read(one: Place) -> None:
    one.file("state/tokens", "", mode=0o644)
    one.add("[admin]", 'listen = "127.0.0.1:0"')


def store(one: Place, name: str = "orders.db") -> Path:
    """A database as a daemon leaves it."""
    one.state.mkdir(exist_ok=True)
    open_store(one.state / name).close()
    return one.state / name


def orders(one: Place, *lines: str) -> Path:
    one.add("[databases.orders]", 'path = "orders.db"', *lines)
    return one.state / "orders.db"


def msdb_is_damaged(one: Place) -> None:
    data = bytearray(store(one, "msdb.db").read_bytes())
    data[4096:8192] = b"\xff" * 4096
    one.file("state/msdb.db", bytes(data))


def msdb_is_locked(one: Place) -> None:
    """As a daemon holds it; kept by a descriptor of this process, which the end of a socket closes."""
    one.state.mkdir()
    keeper = socket.socket()
    descriptor = os.open(one.state / "msdb.db.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(descriptor, keeper.fileno())
    os.close(descriptor)
    fcntl.flock(keeper.fileno(), fcntl.LOCK_EX)
    one.held.append(keeper)


def record_is_damaged(one: Place) -> None:
    store(one, "msdb.db")
    one.file("state/databases.json", '{"half": ')


def database_of_another_identity(one: Place) -> None:
    orders(one, 'broker_instance = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"')
    store(one)


def database_is_a_copy(one: Place) -> None:
    orders(one)
    one.sql(store(one), "UPDATE broker_database SET file_number = 1, starts = 1")


def database_lost_its_file(one: Place) -> None:
    orders(one)
    one.file("state/orders.db-wal", b"x" * 100)


def database_has_two_names(one: Place) -> None:
    orders(one)
    os.link(store(one), one.directory / "other.db")


def both(*steps: Callable[[Place], Any]) -> Callable[[Place], None]:
    def mistake(one: Place) -> None:
        for step in steps:
            step(one)

    return mistake


# The mistake, the exit code of `serve`, what `serve` says, and what `check` says where that differs.
CASES: dict[str, tuple[Callable[[Place], Any], int, str] | tuple[Callable[[Place], Any], int, str, str]] = {
    "unknown key": (lambda one: one.replace("listen =", "lisen ="), EX_CONFIG, 'did you mean "listen"?'),
    "half a file": (
        lambda one: one.replace(one.text[one.text.index("127") :], ""),
        EX_CONFIG,
        "broker.toml:5:12: TOML: Unterminated string; correct the syntax",
    ),
    "several": (lambda one: one.add("[dialog]", "window = 0"), EX_CONFIG, "dialog.window: 0 is out of range; allowed"),
    "no script": (lambda one: one.add("[routes]", 'files = ["none.sql"]'), EX_CONFIG, '/none.sql" does not exist'),
    "wrong script": (
        both(lambda one: one.file("r.sql", "CREATE ROUT r;\n"), lambda one: one.add("[routes]", 'files = ["r.sql"]')),
        EX_CONFIG,
        "incorrect syntax near 'ROUT'; expected",
    ),
    "plain text": (
        lambda one: one.replace("127.0.0.1:0", "0.0.0.0:0"),
        EX_CONFIG,
        'set encryption = "required" with certificate and private_key',
    ),
    "no key": (tls_without_a_key, EX_CONFIG, "there is no private_key; name the file in private_key"),
    "missing key": (tls_of_a_missing_key, EX_CONFIG, "a.key: cannot be read: No such file or directory; name a file"),
    "another key": (tls_with_another_key, EX_CONFIG, "is not the key of"),
    "expired": (lambda one: tls(one, begins=-2 * DAY, ends=-DAY), EX_CONFIG, "UTC; renew it"),
    "of tomorrow": (
        lambda one: tls(one, begins=DAY, ends=2 * DAY),
        EX_TEMPFAIL,
        "UTC; set the clock of this machine, which says 2",
    ),
    "port taken": (
        lambda one: one.replace("127.0.0.1:0", f"127.0.0.1:{one.take_port()}"),
        EX_TEMPFAIL,
        "Address already in use; stop what listens there",
    ),
    "another machine": (
        listening_at("203.0.113.1:4022"),
        EX_TEMPFAIL,
        "choose an address of this machine (see ip address)",
    ),
    "no host": (
        listening_at("no-such-host.invalid:4022"),
        EX_TEMPFAIL,
        "correct the name, or write an address",
    ),
    "admin port taken": (
        lambda one: one.add("[admin]", f'listen = "127.0.0.1:{one.take_port()}"'),
        EX_TEMPFAIL,
        "Address already in use; stop what listens there",
    ),
    "socket is a file": (
        lambda one: one.file("state/admin.sock"),
        EX_TEMPFAIL,
        "the file exists and is not a socket",
    ),
    "socket is answered": (socket_is_answered, EX_TEMPFAIL, "another instance answers there"),
    "long socket": (
        lambda one: one.add("[admin]", f'socket = "/run/{"x" * 110}.sock"'),
        EX_CONFIG,
        "a socket path has at most 107; choose a shorter path",
    ),
    "no group": (
        lambda one: one.add("[admin]", 'socket_group = "no-such-group"'),
        EX_CONFIG,
        "there is no group 'no-such-group' on this machine; make the group",
    ),
    "tokens": (tokens_that_others_may_read, EX_CONFIG, "its mode is 0644; chmod 600"),
    "state is a file": (lambda one: one.file("state"), EX_CONFIG, "is not a directory; create it for the user"),
    "state in /proc": (
        lambda one: one.replace('"state"', '"/proc/broker"'),
        EX_TEMPFAIL,
        '"/proc" cannot be written: ',
    ),
    "msdb is a text": (
        lambda one: one.file("state/msdb.db", NO_DATABASE),
        EX_TEMPFAIL,
        "put back a backup",
        "is not an SQLite file; move it away",
    ),
    "msdb is newer": (
        lambda one: one.sql(store(one, "msdb.db"), "UPDATE broker_database SET schema_version = 99"),
        EX_TEMPFAIL,
        "this release knows",
    ),
    "msdb is damaged": (
        msdb_is_damaged,
        EX_TEMPFAIL,
        "the file is damaged: stop all programs that use it, and put back a",
    ),
    "msdb is locked": (msdb_is_locked, EX_TEMPFAIL, "another daemon has it open"),
    "record": (record_is_damaged, EX_TEMPFAIL, "restore it, or remove it"),
    "directory": (lambda one: orders(one).mkdir(parents=True), EX_CONFIG, "is not a regular file"),
    "no directory": (
        lambda one: one.add("[databases.orders]", 'path = "/no/such/directory/orders.db"'),
        EX_TEMPFAIL,
        'directory" does not exist',
    ),
    "identity": (database_of_another_identity, EX_TEMPFAIL, "the configuration says 5b0f3c1e-"),
    "copy": (database_is_a_copy, EX_CONFIG, "error 9772: the file is a copy"),
    "log alone": (database_lost_its_file, EX_TEMPFAIL, "put the file back next to it"),
    "two names": (database_has_two_names, EX_TEMPFAIL, "remove the others; a symbolic link does no harm"),
    "one file": (
        lambda one: one.add("[databases.a]", 'path = "a.db"', "[databases.b]", 'path = "./a.db"'),
        EX_CONFIG,
        "is also the file of databases.a; give each database its own",
    ),
    "kernel": (
        lambda one: one.environ.update(BROKER_KERNEL="rust"),
        EX_CONFIG,
        "'rust' is not a kernel; say compiled or python, or nothing",
    ),
    "variable": (
        lambda one: one.environ.update(BROKER_ENDPOINT__MAX_HOPZ="4"),
        EX_CONFIG,
        "endpoint.max_hopz (BROKER_ENDPOINT__MAX_HOPZ): unknown key; did you",
    ),
}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as found:
        yield found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_keeps_serve_from_starting_is_told_by_check(one: Place, case: tuple[Any, ...]) -> None:
    mistake, code, said, *checked = case
    mistake(one)
    one.write()

    found, report = one.check()
    served, words = one.serve()

    assert (code, 1) == (served, found), f"{words}\n{report}"
    assert said in words
    assert (checked or [said])[0] in report
    assert "Traceback" not in words + report


def test_check_changes_nothing(one: Place) -> None:
    one.write()
    before = sorted(path.name for path in one.directory.rglob("*"))

    one.check()

    assert before == sorted(path.name for path in one.directory.rglob("*"))


def test_check_beside_the_running_instance_finds_its_ports_and_files_its_own(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        daemon = net.add("a", forwarding=True, databases=["orders"])
        net.start()
        checking = ["check", "-c", str(daemon.config)]
        environ = daemon.environ
        elsewhere = {**environ, "BROKER_INSTANCE__STATE_DIR": str(tmp_path / "other")}

        code, report = command(*checking, environ=environ, directory=tmp_path)
        offline, untold = command(*checking, "--offline", environ=environ, directory=tmp_path)
        copied, taken = command(*checking, environ=elsewhere, directory=tmp_path)
        second, words = command("serve", "-c", str(daemon.config), environ=environ, directory=tmp_path)
        daemon.stop()
        after, again = command(*checking, environ=environ, directory=tmp_path)

    assert (0, True, False) == (code, "note: an instance runs from " in report, "Traceback" in report), report
    assert (EX_TEMPFAIL, 0) == (second, after), words
    assert (0, True) == (offline, "whether it is this instance that has them open" in untold), untold
    assert (1, True) == (copied, "endpoint.listen[0]: cannot listen on " in taken), taken
    assert "note: an instance runs from " not in again
