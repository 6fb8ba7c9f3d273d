"""The command completion: what makes a shell complete the words of `broker`."""

from __future__ import annotations

import click

from broker.cli.exit_code import with_exit_code
from broker.cli.option import examples

PROGRAM, VARIABLE = "broker", "_BROKER_COMPLETE"  # the variable is the one that click looks at


@examples("""
broker completion bash > /etc/bash_completion.d/broker
eval "$(broker completion zsh)"
""")
@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@with_exit_code
def completion(shell: str) -> None:
    """
    Print what makes a shell complete the words of this program.

    Commands, options, their values, and some names that the running instance has. The shell runs `broker` for each
    word, so it has to be found in its path.
    Exit codes: 0 printed, 2 no such shell.
    """
    from click.shell_completion import BashComplete, get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells above"
    maker = kind(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE)
    # click asks the bash of this machine for its version; what is printed may be for another machine.
    click.echo(maker.source_template % maker.source_vars() if isinstance(maker, BashComplete) else maker.source())
