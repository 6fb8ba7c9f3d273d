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
from tests.support.certificates import DAY, authority, make
from tests.support.hurried import Place, place

EX_TEMPFAIL, EX_CONFIG = 75, 78
NO_DATABASE = "hello, this is a text, and not a short one"


def tls(one: Place, begins: timedelta = -DAY, ends: timedelta = DAY) -> None:
    pair = make("a", "127.0.0.1", by=authority(), begins=begins, ends=ends)
    pair.store(one.directory, "a")
    files = 'encryption = "required"\ncertificate = "a.pem"\nprivate_key = "a.key"\n'
    one.replace("[observe]", f"{files}[observe]")


def tls_without_a_key(one: Place) -> None:
    tls(one)
    one.replace('private_key = "a.key"\n', "")


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


def msdb_is_locked(one: Place) -> None:
    """As a daemon holds it; kept by a descriptor of this process, which the end of a socket closes."""
    one.state.mkdir()
    keeper = socket.socket()
    descriptor = os.open(one.state / "msdb.db.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(descriptor, keeper.fileno())
    os.close(descriptor)
    fcntl.flock(keeper.fileno(), fcntl.LOCK_EX)
    one.held.append(keeper)


def database_is_a_copy(one: Place) -> None:
    orders(one)
    one.sql(store(one), "UPDATE broker_database SET file_number = 1, starts = 1")


def database_lost_its_file(one: Place) -> None:
    orders(one)
    one.file("state/orders.db-wal", b"x" * 100)


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
    "wrong script": (
        both(lambda one: one.file("r.sql", "CREATE ROUT r;\n"), lambda one: one.add("[routes]", 'files = ["r.sql"]')),
        EX_CONFIG,
        "incorrect syntax near 'ROUT'; expected",
    ),
    "no key": (tls_without_a_key, EX_CONFIG, "there is no private_key; name the file in private_key"),
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
    "admin port taken": (
        lambda one: one.add("[admin]", f'listen = "127.0.0.1:{one.take_port()}"'),
        EX_TEMPFAIL,
        "Address already in use; stop what listens there",
    ),
    "socket is answered": (socket_is_answered, EX_TEMPFAIL, "another instance answers there"),
    "tokens": (tokens_that_others_may_read, EX_CONFIG, "its mode is 0644; chmod 600"),
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
    "msdb is locked": (msdb_is_locked, EX_TEMPFAIL, "another daemon has it open"),
    "copy": (database_is_a_copy, EX_CONFIG, "error 9772: the file is a copy"),
    "log alone": (database_lost_its_file, EX_TEMPFAIL, "put the file back next to it"),
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
