"""The command completion: what makes a shell complete the words of `broker`."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Any

import click

from broker.cli.options import examples, with_exit_code

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


# --- group ---
# The command `broker` and the table of its commands.
#
# `serve` runs the daemon in the foreground; the others talk to a running one over its admin socket, or work on a
# database file. What a machine reads goes to standard output, everything else to standard error.
#
# A command is imported when it is named, so that none pays for another. Whatever is slow to import is imported by the
# command that needs it, in its function: docs/terminal.md has the figures, tests/unit/cli/test_start_up.py the list.
#
# Exit codes: 0 success; 1 error; 2 usage; 3 not found; 4 daemon unreachable; 5 not permitted; 6 refused because it
# would
# do harm; 7 timed out; `serve` also 75 (port taken, store locked) and 78 (bad configuration).


# Name of the command: the module that has it under this name, and the first sentence of its help.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("broker.cli.serve", "Run one instance in the foreground: gateway, endpoint or both."),
    "check": ("broker.cli.check", "Find everything wrong with a configuration, and what is unwise."),
    "config": ("broker.cli.config", "Show the settings in force, where they came from, and their schema."),
    "explain": ("broker.cli.explain", "Show where a message would go, and why."),
    "send": ("broker.cli.dialogs", "Begin a dialog, send, and print the conversation handle."),
    "receive": ("broker.cli.dialogs", "Take messages from a queue and print them."),
    "sql": ("broker.cli.sql", "Carry out a statement or script, or a SELECT over the views."),
    "status": ("broker.cli.status", "Show the state of a running instance at a glance."),
    "reload": ("broker.cli.running", "Have a running instance read its configuration again, as SIGHUP does."),
    "drain": ("broker.cli.running", "Have an instance leave in good order, and follow it until it has gone."),
    "health": ("broker.cli.status", "Ask whether an instance is live, ready or started."),
    "top": ("broker.cli.status", "Show the state of a running instance again and again."),
    "routes": ("broker.cli.routes", "Plan a change of routes."),
    "database": ("broker.cli.database", "Keep, renew or clear a database file that was copied."),
    "bench": ("broker.cli.bench", "Measure this installation, and compare with an earlier run."),
    "run": ("broker.cli.serve", "Run the readers of a Python module."),
    "quarantine": ("broker.cli.quarantine", "Look at dialogs whose message makes its reader fail, and settle them."),
    "certs": ("broker.cli.certs", "Make, show and renew keys and certificates."),
    "partner": ("broker.cli.partner", "Exchange partner files, so that two instances trust each other."),
    "why": ("broker.cli.why", "Tell where a conversation or message is, why, and what to do."),
    "dialogs": ("broker.cli.dialogs", "Look at all dialogs of a database together."),
    "flows": ("broker.cli.flows", "Look at journals: what became of dialog frames."),
    "pipeline": ("broker.cli.pipeline", "Ask the journals of many instances, with Spark."),
    "token": ("broker.cli.token", "Make, list and revoke tokens of the admin API."),
    "completion": ("broker.cli.main", "Print what makes a shell complete the words of this program."),
}

LASTING = frozenset({"bench", "pipeline", "run", "serve"})  # they stay, or run what others wrote
GARBAGE = 50_000  # objects that a command may leave to the collector before it looks: most make 20,000 in all


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when somebody asks for it."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command | None] = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        command = self._known[name]
        if command is None:
            command = self._known[name] = getattr(import_module(COMMANDS[name][0]), name.replace("-", "_"))
            assert isinstance(command, click.Command), f"{name} is no command of {COMMANDS[name][0]}"
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _Program(click.Group):
    """The group `broker`, whose help needs none of its commands."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> Any:
        """Run; without `args` as the whole program, of which the collector need not look at what is loaded by then."""
        if args is None:
            gc.freeze()
            if LASTING.isdisjoint(sys.argv[1:2]):
                gc.set_threshold(GARBAGE)
                atexit.register(gc.freeze)  # else Python looks at all of it once more before it ends
        return super().main(args, *rest, **more)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, by name."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(
    cls=_Program,
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="broker", prog_name="broker")
def main() -> None:
    """
    A Service-Broker-style message router and forwarder.

    Exit codes: 0 success, 1 error, 2 usage, 3 not found, 4 daemon unreachable, 5 not permitted, 6 refused because it
    would do harm, 7 timed out; serve also 75 (port taken, store locked) and 78 (bad configuration).
    """
