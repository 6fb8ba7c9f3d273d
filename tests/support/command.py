"""The command `broker`, run inside the test."""

import io
import subprocess
import sys
from collections.abc import Iterable

from click.testing import CliRunner, Result

from broker.cli import main
from broker.cli.output import Terminal, TextLine


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """Its exit code, and what it wrote to standard output and to standard error."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def printed(lines: Iterable[TextLine], *, width: int) -> str:
    """Lines of prose on a terminal of that width."""
    file = io.StringIO()
    Terminal(file, width=width).lines(lines)
    return file.getvalue()


_WITHOUT_PRIVILEGES = (
    "import ctypes, struct, sys\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "assert libc.capset(struct.pack('Ii', 0x20080522, 0), bytes(24)) == 0, ctypes.get_errno()\n"
    "from broker.cli import main\n"
    "main(sys.argv[1:], prog_name='broker')\n"
)


def run_without_privileges(*arguments: object) -> subprocess.CompletedProcess[str]:
    """
    The same in a process of its own that has no capabilities, so that the rights of files count for root too.

    Source: capset(2); the version is _LINUX_CAPABILITY_VERSION_3.
    """
    command = [sys.executable, "-c", _WITHOUT_PRIVILEGES, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
