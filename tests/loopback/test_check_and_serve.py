"""
Whatever keeps `serve` from starting, `check` tells before; where `serve` starts, `check` finds nothing.

Real processes: each mistake of a hurried operator is tried with both commands, on a directory of its own. The message
says what is wrong and what to do, the exit code is the documented one, and there is never a traceback.
"""

import fcntl
import os
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli import main
from broker.store.sqlite.database import open_store
from tests.support.certificates import DAY, authority, make
from tests.support.forked import FORK_SERVER

SERVE_SECONDS = 60.0
GOOD = """\
[instance]
name = "a"
state_dir = "state"
[endpoint]
listen = ["127.0.0.1:0"]
[observe]
listen = ""
"""


@dataclass
class Place:
    """
    The directory of an instance that would start. Shape: `text` of its configuration; `environ` added to the variables.
    """

    directory: Path
    text: str = GOOD
    environ: dict[str, str] = field(default_factory=dict)
    held: list[socket.socket] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.directory / "broker.toml"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def add(self, *lines: str) -> None:
        self.text += "".join(f"{line}\n" for line in lines)

    def replace(self, old: str, new: str) -> None:
        assert old in self.text
        self.text = self.text.replace(old, new)

    def file(self, name: str, data: str | bytes = b"", mode: int = 0o600) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        path.chmod(mode)
        return path

    def take_port(self) -> int:
        """A port on which somebody listens until `close`."""
        self.held.append(socket.create_server(("127.0.0.1", 0)))
        return int(self.held[-1].getsockname()[1])

    def write(self) -> None:
        self.config.write_text(self.text, encoding="utf-8")

    def serve(self) -> tuple[int, str]:
        """Exit code of an instance that cannot start, and what it said; its working directory is this one."""
        return command("serve", "-c", str(self.config), environ=self.environ, directory=self.directory)

    def check(self) -> tuple[int, str]:
        """The same of the check, in this process."""
        result = CliRunner().invoke(main, ["check", "-c", str(self.config)], env=self.environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, result.output


def command(*arguments: str, environ: dict[str, str] | None = None, directory: Path) -> tuple[int, str]:
    """Exit code of the program as a process, and all it wrote."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    with tempfile.NamedTemporaryFile() as told:
        environ = {**inherited, **(environ or {})}
        process = FORK_SERVER.start(arguments, Path(told.name), environ, directory=directory)
        try:
            return process.wait(SERVE_SECONDS), told.read().decode(errors="backslashreplace")
        finally:
            process.kill()


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


def changed(path: Path, values: str) -> None:
    """Change the row of a database that no daemon has open."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE broker_database SET {values}")


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
    changed(store(one), "file_number = 1, starts = 1")


def database_lost_its_file(one: Place) -> None:
    orders(one)
    one.file("state/orders.db-wal", b"x" * 100)


def tls_of_a_missing_key(one: Place) -> None:
    tls(one)
    (one.directory / "a.key").unlink()


def tls_with_another_key(one: Place) -> None:
    tls(one)
    make("b", by=authority()).store(one.directory, "b")
    one.replace("a.key", "b.key")


def database_of_another_identity(one: Place) -> None:
    orders(one, 'broker_instance = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"')
    store(one)


def wrong_script(one: Place) -> None:
    one.file("r.sql", "CREATE ROUT r;\n")
    one.add("[routes]", 'files = ["r.sql"]')


# The mistake, the exit code of `serve`, what `serve` says, and what `check` says where that differs.
CASES: dict[str, tuple[Callable[[Place], Any], int, str] | tuple[Callable[[Place], Any], int, str, str]] = {
    "unknown key": (lambda one: one.replace("listen =", "lisen ="), EX_CONFIG, 'did you mean "listen"?'),
    "half a file": (
        lambda one: one.replace(one.text[one.text.index("127") :], ""),
        EX_CONFIG,
        "broker.toml:5:11: TOML: a string is not closed; end it with the quote",
    ),
    "wrong script": (wrong_script, EX_CONFIG, "incorrect syntax near 'ROUT'; expected"),
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
    "another key": (tls_with_another_key, EX_CONFIG, "is not the key of"),
    "msdb is newer": (
        lambda one: changed(store(one, "msdb.db"), "schema_version = 99"),
        EX_TEMPFAIL,
        "this release knows",
    ),
    "identity": (database_of_another_identity, EX_TEMPFAIL, "the configuration says 5B0F3C1E-"),
    "missing key": (tls_of_a_missing_key, EX_CONFIG, "a.key: cannot be read: No such file or directory; name a file"),
}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for sock in found.held:
        sock.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.promise("The check passes, and the start fails")
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


def test_serve_of_nothing_tells_how_to_begin(tmp_path: Path) -> None:
    code, words = command("serve", directory=tmp_path)

    begin = "\n".join(line for line in words.splitlines() if not line.startswith("{"))
    assert EX_CONFIG == code
    assert begin.startswith("nothing says what to run: name a configuration file with -c FILE or in BROKER_CONFIG")
    (tmp_path / "broker.toml").write_text(begin[begin.index("[instance]") :])
    assert 0 == command("check", "-c", "broker.toml", "--offline", directory=tmp_path)[0]


@pytest.mark.parametrize("options", ["size=64k", "size=1m,ro"], ids=["full", "read-only"])
def test_disk_that_takes_nothing_is_told(one: Place, options: str) -> None:
    where = one.directory / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(where)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        if "ro" not in options:
            (where / "ballast").write_bytes(bytes(60 * 1024))
        one.replace('"state"', f'"{where}"')
        one.write()
        code, words = one.serve()
    finally:
        subprocess.run(["umount", "-l", where], check=True)

    assert (EX_TEMPFAIL, False) == (code, "Traceback" in words)
    told = ("disk is full: free some space", "No space left", "Read-only file system")
    assert any(text in words for text in told)
