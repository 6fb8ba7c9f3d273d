"""Everything a hurried operator does: a directory that is set up wrongly, one mistake at a time."""

from __future__ import annotations

import os
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from click.testing import CliRunner

from broker.cli import main
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

    def close(self) -> None:
        for sock in self.held:
            sock.close()

    def write(self) -> None:
        self.config.write_text(self.text, encoding="utf-8")

    def broker(self, *arguments: str, seconds: float = SERVE_SECONDS) -> tuple[int, str]:
        """Exit code of a command, and what it said; its working directory is this one."""
        return command(*arguments, environ=self.environ, directory=self.directory, seconds=seconds)

    def serve(self) -> tuple[int, str]:
        """As `broker`; for an instance that cannot start."""
        return self.broker("serve", "-c", str(self.config))

    def check(self, *options: str) -> tuple[int, str]:
        """As `broker`, in this process: nothing of it depends on being one of its own."""
        result = CliRunner().invoke(main, ["check", "-c", str(self.config), *options], env=self.environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, result.output

    def sql(self, database: Path, statement: str) -> None:
        """Change a file that no daemon has open."""
        with closing(sqlite3.connect(database)) as db, db:
            db.execute(statement)


def command(
    *arguments: str, environ: dict[str, str] | None = None, directory: Path, seconds: float = SERVE_SECONDS
) -> tuple[int, str]:
    """Exit code of the program in a process of its own, and all it wrote."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    with tempfile.NamedTemporaryFile() as told:
        environ = {**inherited, **(environ or {})}
        process = FORK_SERVER.start(arguments, Path(told.name), environ, directory=directory)
        try:
            return process.wait(seconds), told.read().decode(errors="backslashreplace")
        finally:
            process.kill()


@contextmanager
def place(directory: Path) -> Iterator[Place]:
    """A directory to put wrong."""
    found = Place(directory)
    try:
        yield found
    finally:
        found.close()


# --- the mistakes ---------------------------------------------------------------------------------------------

Mistake = Callable[[Place], None]


def _tls(one: Place, *, begins: timedelta = -DAY, ends: timedelta = DAY) -> None:
    pair = make("a", "127.0.0.1", by=authority(), begins=begins, ends=ends)
    certificate, key = pair.store(one.directory, "a")
    one.replace(
        "[observe]",
        f'encryption = "required"\ncertificate = "{certificate.name}"\nprivate_key = "{key.name}"\n[observe]',
    )


def _database(one: Place, *lines: str) -> Path:
    one.add("[databases.orders]", 'path = "orders.db"', *lines)
    return one.state / "orders.db"


def _store(one: Place, name: str = "orders.db") -> Path:
    """A database as a daemon leaves it."""
    from broker.store.sqlite.database import open_store

    one.state.mkdir(exist_ok=True)
    path = one.state / name
    open_store(path).close()
    return path


def unknown_key(one: Place) -> None:
    one.replace("listen =", "lisen =")


def half_written_file(one: Place) -> None:
    one.text = one.text[: one.text.index("127")]


def several_mistakes(one: Place) -> None:
    one.add("[limits]", 'handshakes = "many"', "[dialog]", "window = 0")


def no_such_script(one: Place) -> None:
    one.add("[routes]", 'files = ["none.sql"]')


def wrong_script(one: Place) -> None:
    one.file("r.sql", "CREATE ROUT r;\n")
    one.add("[routes]", 'files = ["r.sql"]')


def plain_text_not_spelled_out(one: Place) -> None:
    one.replace("127.0.0.1:0", "0.0.0.0:0")


def certificate_without_key(one: Place) -> None:
    _tls(one)
    one.replace('private_key = "a.key"\n', "")


def key_without_certificate(one: Place) -> None:
    _tls(one)
    one.replace('certificate = "a.pem"\n', "")


def missing_key_file(one: Place) -> None:
    _tls(one)
    (one.directory / "a.key").unlink()


def key_of_another_certificate(one: Place) -> None:
    _tls(one)
    make("b", by=authority()).store(one.directory, "b")
    one.replace("a.key", "b.key")


def swapped_certificate_and_key(one: Place) -> None:
    _tls(one)
    one.replace('certificate = "a.pem"\nprivate_key = "a.key"', 'certificate = "a.key"\nprivate_key = "a.pem"')


def key_with_a_password(one: Place) -> None:
    _tls(one)
    pair = make("a", "127.0.0.1", by=authority())
    one.file("a.pem", pair.pem)
    one.file("a.key", pair.key_pem("secret"))


def expired_certificate(one: Place) -> None:
    _tls(one, begins=-2 * DAY, ends=-DAY)


def certificate_of_tomorrow(one: Place) -> None:
    _tls(one, begins=DAY, ends=2 * DAY)


def database_certificate_without_key(one: Place) -> None:
    make("a", by=authority()).store(one.directory, "d")
    _database(one, 'certificate = "d.pem"')


def port_taken(one: Place) -> None:
    one.replace("127.0.0.1:0", f"127.0.0.1:{one.take_port()}")


def port_of_another_machine(one: Place) -> None:
    one.replace("127.0.0.1:0", "203.0.113.1:4022")
    one.replace("[observe]", 'encryption = "disabled"\n[observe]')


def name_that_does_not_resolve(one: Place) -> None:
    one.replace("127.0.0.1:0", "no-such-host.invalid:4022")
    one.replace("[observe]", 'encryption = "disabled"\n[observe]')


def observe_port_taken(one: Place) -> None:
    one.replace('[observe]\nlisten = ""', f'[observe]\nlisten = "127.0.0.1:{one.take_port()}"')


def admin_port_taken(one: Place) -> None:
    one.add("[admin]", f'listen = "127.0.0.1:{one.take_port()}"')


def socket_is_a_file(one: Place) -> None:
    one.file("state/admin.sock")


def socket_is_answered(one: Place) -> None:
    one.state.mkdir()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(one.state / "admin.sock"))
    sock.listen()
    one.held.append(sock)


def socket_in_no_directory(one: Place) -> None:
    one.add("[admin]", f'socket = "{one.directory}/run/admin.sock"')


def socket_path_too_long(one: Place) -> None:
    one.add("[admin]", f'socket = "/run/{"x" * 110}.sock"')


def unknown_group(one: Place) -> None:
    one.add("[admin]", 'socket_group = "no-such-group"')


def unknown_user(one: Place) -> None:
    one.add("[admin.roles]", '"user:no-such-user" = "viewer"')


def tokens_that_others_may_read(one: Place) -> None:
    one.file("state/tokens", "", mode=0o644)
    one.add("[admin]", 'listen = "127.0.0.1:0"')


def tokens_of_another_format(one: Place) -> None:
    one.file("state/tokens", '{"format": 2}\n')
    one.add("[admin]", 'listen = "127.0.0.1:0"')


def state_is_a_file(one: Place) -> None:
    one.file("state")


def state_below_a_file(one: Place) -> None:
    one.file("disk")
    one.replace('"state"', '"disk/state"')


def state_in_proc(one: Place) -> None:
    one.replace('"state"', '"/proc/broker"')


def msdb_is_no_database(one: Place) -> None:
    one.file("state/msdb.db", "hello, this is a text, and not a short one")


def msdb_is_newer(one: Place) -> None:
    one.sql(_store(one, "msdb.db"), "UPDATE broker_database SET schema_version = 99")


def msdb_is_of_no_release(one: Place) -> None:
    one.sql(_store(one, "msdb.db"), "UPDATE broker_database SET schema_version = 0")


def msdb_is_damaged(one: Place) -> None:
    data = bytearray(_store(one, "msdb.db").read_bytes())
    data[4096:8192] = b"\xff" * 4096
    one.file("state/msdb.db", bytes(data))


def msdb_is_locked(one: Place) -> None:
    one.state.mkdir()
    _lock(one, one.state / "msdb.db.lock")


def _lock(one: Place, path: Path) -> None:
    """As a daemon holds it; kept by a descriptor of this process."""
    import fcntl

    keeper = socket.socket()  # gives a descriptor that `close` closes
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(descriptor, keeper.fileno())
    os.close(descriptor)
    fcntl.flock(keeper.fileno(), fcntl.LOCK_EX)
    one.held.append(keeper)


def record_is_damaged(one: Place) -> None:
    _store(one, "msdb.db")
    one.file("state/databases.json", '{"half": ')


def database_is_no_database(one: Place) -> None:
    _database(one)
    one.file("state/orders.db", "hello, this is a text, and not a short one")


def database_is_a_directory(one: Place) -> None:
    _database(one).mkdir(parents=True)


def database_is_a_device(one: Place) -> None:
    one.add("[databases.orders]", 'path = "/dev/null"')


def database_in_no_directory(one: Place) -> None:
    one.add("[databases.orders]", 'path = "/no/such/directory/orders.db"')


def database_is_newer(one: Place) -> None:
    _database(one)
    one.sql(_store(one), "UPDATE broker_database SET schema_version = 99")


def database_is_locked(one: Place) -> None:
    path = _database(one)
    one.state.mkdir()
    _lock(one, Path(f"{path}.lock"))


def database_of_another_identity(one: Place) -> None:
    _database(one, 'broker_instance = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"')
    _store(one)


def database_is_a_copy(one: Place) -> None:
    _database(one)
    path = _store(one)
    one.sql(path, "UPDATE broker_database SET file_number = 1, starts = 1")


def database_lost_its_file(one: Place) -> None:
    _database(one)
    one.file("state/orders.db-wal", b"x" * 100)


def database_has_two_names(one: Place) -> None:
    _database(one)
    os.link(_store(one), one.directory / "other.db")


def two_databases_one_file(one: Place) -> None:
    one.add("[databases.a]", 'path = "a.db"', "[databases.b]", 'path = "./a.db"')


def journal_in_a_file(one: Place) -> None:
    one.file("flows")
    one.add("[journal]", f'directory = "{one.directory}/flows"')


def unknown_kernel(one: Place) -> None:
    one.environ["BROKER_KERNEL"] = "rust"


def variable_of_no_key(one: Place) -> None:
    one.environ["BROKER_ENDPOINT__MAX_HOPZ"] = "4"


def variable_that_is_no_text(one: Place) -> None:
    one.environ["BROKER_INSTANCE__NAME"] = "caf\udce9"


def no_role_command(one: Place) -> None:
    _database(one, 'mirroring = "command"', 'role_command = ["/no/such/program"]')
