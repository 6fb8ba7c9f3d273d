"""What a hurried operator works on: a directory that can be set up wrongly, and commands as processes."""

from __future__ import annotations

import os
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from broker.cli import main
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
