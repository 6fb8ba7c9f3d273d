"""
The command `broker`, the table of its commands, and the completion of its words in a shell.

`serve` runs the daemon in the foreground; the others talk to a running one over its admin socket, or work on a database
file. Output for programs goes to standard output, all other to standard error.

The module of a command is imported when the command is named: `status` must not wait for the imports of `serve`.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import BashComplete, get_completion_class

from broker.cli.exit_codes import exit_codes
from broker.cli.options import Command
from broker.daemon.early_signal import end_on_signal

PROGRAM, VARIABLE = "broker", "_BROKER_COMPLETE"  # the variable that click reads

# Name of the command: the module that has it under this name, and the first sentence of its help.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("broker.cli.serve", "Run one instance in the foreground: gateway, endpoint or both."),
    "check": ("broker.cli.check", "Report all errors and risks of a configuration."),
    "config": ("broker.cli.config", "Show the settings in force, their origins, and their schema."),
    "explain": ("broker.cli.explain", "Show where a message would go, and why."),
    "send": ("broker.cli.dialogs", "Begin a dialog, send, and print the conversation handle."),
    "receive": ("broker.cli.dialogs", "Take messages from a queue and print them."),
    "sql": ("broker.cli.sql", "Run a statement or script, or a SELECT over the views."),
    "status": ("broker.cli.status", "Show the state of a running instance at a glance."),
    "reload": ("broker.cli.reload", "Reload the configuration of a running instance, as SIGHUP does."),
    "drain": ("broker.cli.drain", "Drain an instance, and wait until it has ended."),
    "health": ("broker.cli.health", "Ask whether an instance is live, ready or started."),
    "top": ("broker.cli.status", "Show the state of a running instance, refreshed."),
    "routes": ("broker.cli.routes", "Plan a change of routes."),
    "database": ("broker.cli.database", "Keep, renew or clear a database file that was copied."),
    "bench": ("broker.cli.bench", "Measure running instances: messages a second, and latencies."),
    "run": ("broker.cli.run", "Run message readers (the daemon is `broker serve`)."),
    "quarantine": ("broker.cli.quarantine", "List, resume, skip and end dialogs that a failing message stopped."),
    "certs": ("broker.cli.certs", "Make, show and renew keys and certificates."),
    "partner": ("broker.cli.partner", "Exchange partner files, so that two instances trust each other."),
    "why": ("broker.cli.why", "Show where a conversation or message is, why, and what to do."),
    "dialogs": ("broker.cli.dialogs", "Summarize, end, or send again the dialogs of a database."),
    "journal": ("broker.cli.journal", "Show journals: what became of dialog frames."),
    "pipeline": ("broker.cli.pipeline", "Evaluate the journals of many instances, with Spark."),
    "token": ("broker.cli.token", "Make, list and revoke tokens of the admin API."),
    "completion": ("broker.cli.main", "Print the completion script of a shell."),
}


OLD_NAMES: Mapping[str, str] = {"flows": "broker.cli.journal"}  # kept for a release, with a warning

# The sections of the help.
SECTIONS: Mapping[str, str] = {
    "Run an instance": "serve check config status top health reload drain",
    "Send and receive": "send receive run quarantine dialogs",
    "Find out": "why explain sql journal pipeline",
    "Set up": "routes certs partner token database",
    "Tools": "bench completion",
}


class _Commands(UserDict[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys([*COMMANDS, *OLD_NAMES]))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            module = OLD_NAMES[name] if name in OLD_NAMES else COMMANDS[name][0]
            self.data[name] = getattr(import_module(module), name)
        return self.data[name]


class _Program(click.Group):
    """The group `broker`, whose help needs none of its commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command; SIGTERM ends `serve` with 0 from here on, also in a container, while it is imported."""
        if cmd_name == "serve":
            end_on_signal()
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what it raises becomes a sentence and an exit code."""
        with exit_codes():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, by what they are for."""
        del ctx
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names.split()])


@click.group(
    cls=_Program,
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(package_name="service-broker", prog_name="broker")
def main() -> None:
    """
    A Service-Broker-style message router and forwarder.

    Exit codes: 0 success, 1 error, 2 usage, 3 not found, 4 daemon unreachable, 5 not permitted, 6 refused because it
    would do harm, 7 timed out; serve also 75 (port taken, store locked) and 78 (bad configuration). Two differ: reload
    ends with 2 when the configuration is wrong, and health with 0 to 3 as monitoring plugins do (2 not ready).
    """


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """
    Print the completion script of a shell.

    It completes commands, options, their values, and some names of the running instance. The shell runs `broker` for
    each word, so `broker` has to be in its path. Exit codes: 0 printed, 2 no such shell.

    Examples:
        broker completion bash > /etc/bash_completion.d/broker
        eval "$(broker completion zsh)"
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells above"
    maker = kind(main, {}, PROGRAM, VARIABLE)
    # click would ask the bash of this machine for its version; the script may be for another machine.
    click.echo(maker.source_template % maker.source_vars() if isinstance(maker, BashComplete) else maker.source())
