"""
Parts of an instance, made from the settings at its start and at a reload.

A reload makes the new parts ready next to those in use (`make_ready`). `Instance`, which holds the parts, then swaps
all of them at once, which does not fail.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from broker.admin.server import AdminListeners, AdminServer
from broker.catalog.check import journal_directory_error, journal_errors, tracing_errors
from broker.catalog.identities import credentials_of
from broker.config.reload_diff import Difference
from broker.config.settings import Settings
from broker.config.values import ListenAddress, clash
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogTuning
from broker.errors import ListenFailedError
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.kernels import KERNEL_VARIABLE
from broker.forwarding.pool import Limits
from broker.net.certificates import security_of
from broker.net.listener import Listener
from broker.net.tls import Security
from broker.routing.decide import Principals
from broker.security.session import DialogCredentials

if TYPE_CHECKING:  # they need libraries that are extras of the installation
    from broker.journal.spans import Tracing
    from broker.journal.writer import Journal, JournalPlan

OTEL_DISABLED = "OTEL_SDK_DISABLED"  # of the environment: OpenTelemetry does nothing at all
_TLS = frozenset({"encryption", "authentication", "certificate", "private_key", "trust", "peers"})
_IDENTITY = frozenset({"certificate", "private_key", "peers"})


# --- settings of the parts -----------------------------------------------------------------------------------


def pass_limits(settings: Settings, largest: int) -> Limits:
    """Return the limits of the forwarder; `largest` is the size of the largest frame that any peer may send."""
    endpoint = settings.endpoint
    return Limits(
        pool_bytes=endpoint.message_forward_size,
        max_frame=largest,
        max_hops=endpoint.max_hops,
        share_percent=endpoint.message_forward_share,
        hold_seconds=endpoint.message_lifetime_max,
    )


def dialog_tuning(settings: Settings) -> DialogTuning:
    """Return the parameters of conversations: resending, windows, fragments and travel limits."""
    dialog = settings.dialog
    return DialogTuning(
        backoff=Backoff(dialog.resend_first, dialog.resend_cap),
        travel=Travel(dialog.hop_limit, int(dialog.time_to_live * 1000)),
        window=dialog.window,
        fragment_size=dialog.fragment_size,
        window_bytes=dialog.window_size,
    )


def journal_plan(settings: Settings) -> JournalPlan | None:
    """
    Return the plan of the journal, and make its directory; None without a journal.

    Raises:
        SettingError: A setting of the journal or of tracing is wrong, or the directory cannot be made.
    """
    journal = settings.journal
    for error in (*journal_errors(settings), *tracing_errors(settings)):
        raise error
    if journal.directory is None:
        return None
    try:
        journal.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise journal_directory_error(settings, f'"{journal.directory}" cannot be made: {error.strerror}') from error
    from broker.journal.writer import JournalPlan  # noqa: PLC0415 - an extra

    decoder = os.environ.get(KERNEL_VARIABLE, "")
    return JournalPlan(instance=settings.instance.name, decoder=decoder, **structs.asdict(journal))


def open_journal(
    settings: Settings, *, adjacent_of: Callable[[FrameOrigin], str], principals: Callable[[], Principals]
) -> Journal | None:
    """
    Open and start the journal; None when there is none in the settings.

    Raises:
        SettingError: As `journal_plan`.
    """
    plan = journal_plan(settings)
    if plan is None:
        return None
    from broker.journal.writer import Journal  # noqa: PLC0415 - an extra

    journal = Journal(plan, adjacent_of=adjacent_of, principals=principals, tracing=_open_tracing(settings))
    journal.start()
    return journal


def _open_tracing(settings: Settings) -> Tracing | None:
    if not settings.tracing.enabled or os.environ.get(OTEL_DISABLED, "").strip().lower() == "true":
        return None
    from broker.journal.spans import Tracing  # noqa: PLC0415 - an extra

    try:
        return Tracing(settings.instance.name)
    except ValueError as error:
        hint = "see the OTEL_* variables of the environment"
        raise settings.error(("tracing", "enabled"), f"OpenTelemetry refuses to begin: {error}", hint) from error


# --- making ready --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """
    Parts that were made ready for other settings.

    Attributes:
        security: None where the certificates of the endpoint are the same.
        listeners: Those of the endpoint from then on; new ones do not accept yet.
        plan: Of the journal; None where its settings are the same.
        credentials: Of databases that have other files.
    """

    settings: Settings
    admin: AdminListeners
    security: Security | None
    listeners: list[Listener]
    plan: JournalPlan | None
    credentials: dict[str, DialogCredentials]


async def make_ready(
    settings: Settings,
    changed: Sequence[Difference],
    undo: AsyncExitStack,
    *,
    admin: AdminServer,
    listeners: Sequence[Listener],
    listen: Callable[[ListenAddress], Listener],
) -> Ready:
    """
    Make ready for these settings, next to what is in use.

    Args:
        settings: The new ones.
        changed: What is different about them.
        undo: Gives back what was made.
        admin: Prepares its own listeners.
        listeners: Those of the endpoint now.
        listen: Makes one more, which does not accept yet.

    Raises:
        SettingError, ListenFailedError: It is not possible.
    """
    paths = [one.path for one in changed]
    prepared = await admin.prepare(settings, undo)
    is_tls_new = any(path[0] == "endpoint" and path[1] in _TLS for path in paths)
    security = await asyncio.to_thread(security_of, settings) if is_tls_new else None
    found: list[Listener] = []
    left = list(listeners)
    for address in settings.endpoint.listen:
        same = next((one for one in left if one.configured == address), None)
        if same is not None:
            left.remove(same)
            found.append(same)
            continue
        try:
            listener = listen(address)
        except ListenFailedError as error:
            raise _explained(error, address, listeners) from error
        undo.callback(listener.release)
        found.append(listener)
    is_journal_new = any(path[0] == "journal" for path in paths)
    plan = await asyncio.to_thread(journal_plan, settings) if is_journal_new else None
    others = {str(path[1]) for path in paths if path[0] == "databases" and path[-1] in _IDENTITY}
    credentials = {name: await asyncio.to_thread(credentials_of, settings, name) for name in others}
    return Ready(settings, prepared, security, found, plan, credentials)


def _explained(error: ListenFailedError, address: ListenAddress, listeners: Sequence[Listener]) -> ListenFailedError:
    """Return the same error; if this instance already has the address, the error says so."""
    for own in (one.configured for one in listeners):
        if clash(own, address):
            taken = error.problem.partition(";")[0]
            problem = f"{taken}, by this instance's own {own}; take another port, or restart the instance"
            return ListenFailedError(error.address, problem)
    return error
