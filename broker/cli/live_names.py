"""
What a shell is offered where an option takes a name that lives in a running instance: services, databases.

The instance is the one that the words before name, or the environment. Somebody waits with a finger on the Tab key: an
instance that does not answer at once, and a mistake in the words before, offer nothing and say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from broker.cli.access import admin_client
from broker.errors import BrokerError

ASK_SECONDS = 1.0

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def live_names(*kinds: str) -> Complete:
    """What completes a value to the names of these kinds, those of `broker.cli.name_completion.Names`."""

    def complete(context: click.Context, _parameter: click.Parameter, word: str) -> list[str]:
        from broker.cli.name_completion import Names  # noqa: PLC0415 - see the docstring of broker.cli.group

        try:
            client = admin_client(context.params.get("config"), context.params.get("socket"), timeout=ASK_SECONDS)
        except (BrokerError, click.UsageError):
            return []

        def ask(question: str) -> Sequence[Sequence[Any]]:
            rows: Sequence[Sequence[Any]] = client.sql(question)["rows"]
            return rows

        names = Names(ask)
        return sorted({name for kind in kinds for name in names.of(kind) if name.startswith(word)})

    return complete
