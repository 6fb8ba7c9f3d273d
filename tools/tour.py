"""
The terminal session of the README: the tutorial's instances, real commands, what they really said, as a picture.

    python -m tools.tour docs/tour.svg

Whoever runs it has `broker` beside its Python, and the tutorial's ports free. No word of it is made up: every command
runs in a terminal of its own, and one that fails ends it.
"""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from examples.demo.topology import wait_for

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
FILES = re.compile(r"```(?:toml|sql)\n(?:#|--) (\S+\.(?:toml|sql))\n(.*?)```", re.DOTALL)
FONTS = re.compile(r"@font-face \{\{.*?\}\}\n *", re.DOTALL)  # nothing is fetched from anywhere
COLUMNS, ROWS = 108, 50
PATIENCE_SECONDS = 60.0

RUNNING = ("billing", "orders")
SESSION = (
    "# Two services run, each with a database of its own. The gateway between them does not.",
    """broker send -d orders/orders.db --from //shop/Orders --to //shop/Billing '{"order": 7}' > dialog""",
    "broker why $(cat dialog) -c orders.toml",
    "broker serve -c gateway.toml 2> gateway.log &",
    "broker receive -d billing/billing.db --queue BillingQueue --wait 30",
    """broker sql -c orders.toml 'SELECT entry, messages FROM sys.dm_broker_ledger'""",
    "broker explain --to //shop/Billing --incoming --socket gateway/admin.sock",
)


def main(target: Path) -> None:
    """Record it, and write the picture."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm-256color"}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack, Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        home = Path(name)
        for path, text in FILES.findall(TUTORIAL.read_text(encoding="utf-8")):
            (home / path).write_text(text, encoding="utf-8")
        for instance in RUNNING:
            stack.enter_context(_serving(f"broker serve -c {instance}.toml 2> {instance}.log", home, environ))
            _ready(instance, home, environ)
        for line in SESSION:
            if line.startswith("#"):
                console.print(Text(line, "dim"))
                continue
            console.print(Text.assemble(("$ ", "green"), (line, "bold")))
            if line.endswith("&"):
                stack.enter_context(_serving(line.removesuffix("&"), home, environ))
                _ready("gateway", home, environ)
            else:
                console.print(Text.from_ansi(_said(line, home, environ)), end="")
        form = FONTS.sub("", CONSOLE_SVG_FORMAT)
        console.save_svg(str(target), title="broker", theme=MONOKAI, code_format=form, unique_id="tour")


def _said(line: str, home: Path, environ: Mapping[str, str]) -> str:
    """
    What a line prints on a terminal.

    Raises:
        SystemExit: it failed.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = _popen(line, home, environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            read = os.read(ours, 1 << 16)
        except OSError:  # the terminal's other side was closed
            break
        if not read:
            break
        said += read
    os.close(ours)
    text = said.decode().replace("\r\n", "\n")
    if process.wait():
        raise SystemExit(f"{line} ended with {process.returncode}:\n{text}")
    return text


@contextmanager
def _serving(line: str, home: Path, environ: Mapping[str, str]) -> Iterator[None]:
    process = _popen(f"exec {line}", home, environ)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _popen(line: str, home: Path, environ: Mapping[str, str], **ends: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/bash", "-c", line], cwd=home, env=environ, **ends)  # type: ignore[call-overload,no-any-return]  # noqa: S603


def _ready(instance: str, home: Path, environ: Mapping[str, str]) -> None:
    def is_ready() -> bool:
        return not _popen(f"broker health ready -c {instance}.toml > /dev/null 2>&1", home, environ).wait()

    wait_for(is_ready, seconds=PATIENCE_SECONDS, what=f"{instance} is ready")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
