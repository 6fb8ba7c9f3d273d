"""The command `broker`, run inside the test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from broker.cli import main


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """Its exit code, and what it wrote to standard output and to standard error."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
