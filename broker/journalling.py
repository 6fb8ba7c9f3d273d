"""
The journal of an instance and what is made of it, opened as the settings say.

Each needs libraries that are extras of the installation, and is imported only where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.control.config import Settings
from broker.control.journal_made import journal_plan
from broker.forwarding.kernel_choice import KERNEL_VARIABLE
from broker.forwarding.way import FrameOrigin

if TYPE_CHECKING:
    from broker.journal.journal import Journal
    from broker.tracing.tracing import Tracing

DISABLED = "OTEL_SDK_DISABLED"  # of the environment: OpenTelemetry does nothing at all


def open_journal(settings: Settings, adjacent_of: Callable[[FrameOrigin], str]) -> Journal | None:
    """
    Where the pass records what it does, at work; None without one.

    Raises:
        SettingError: what stands in the way of it.
    """
    plan = journal_plan(settings)
    if plan is None:
        return None
    from broker.journal.journal import Journal  # noqa: PLC0415 - needs pyarrow: 60 MiB and a quarter of a second

    plan = replace(plan, decoder=os.environ.get(KERNEL_VARIABLE, ""))
    journal = Journal(plan, adjacent_of=adjacent_of, follower=_open_tracing(settings))
    journal.start()
    return journal


def _open_tracing(settings: Settings) -> Tracing | None:
    if not settings.tracing.enabled or os.environ.get(DISABLED, "").strip().lower() == "true":
        return None
    from broker.tracing.tracing import Tracing  # noqa: PLC0415 - needs OpenTelemetry: 7 MiB and a fifth of a second

    try:
        return Tracing(settings.instance.name)
    except ValueError as error:
        hint = "see the OTEL_* variables of the environment"
        raise settings.error(("tracing", "enabled"), f"OpenTelemetry refuses to begin: {error}", hint) from error
