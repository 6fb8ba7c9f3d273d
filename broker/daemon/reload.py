"""Part of `broker.config.settings`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.admin.server import PreparedListeners
from broker.catalog.check import _refused, journal_errors, tracing_errors
from broker.catalog.identities import credentials_of
from broker.config.reload_diff import Difference
from broker.config.settings import Settings
from broker.config.values import ListenAddress, clash
from broker.errors import ListenFailedError
from broker.net.certificates import security_of
from broker.net.listener import Listener
from broker.net.peers import Tuning, largest_frame, refresh_narrow
from broker.net.quotas import PeerLimits, Timeouts
from broker.net.tls import Security
from broker.observe.logs import reconfigure_logging
from broker.security.session import DialogCredentials

if TYPE_CHECKING:
    from broker.daemon.instance import Instance
    from broker.forwarding.pool import Limits
    from broker.journal.writer import JournalPlan


def journal_plan(settings: Settings) -> JournalPlan | None:
    """
    What the writer is told; None without a journal. The directory is made.

    Raises:
        SettingError: what stands in the way of one.
    """
    journal = settings.journal
    for error in (*journal_errors(settings), *tracing_errors(settings)):
        raise error
    if journal.directory is None:
        return None
    try:
        journal.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(settings, f'"{journal.directory}" cannot be made: {error.strerror}') from error
    from broker.journal.writer import JournalPlan  # noqa: PLC0415

    return JournalPlan(
        directory=journal.directory,
        instance=settings.instance.name,
        sample=journal.sample,
        buffer_bytes=journal.buffer_size,
        file_bytes=journal.file_size,
        file_seconds=journal.file_age,
        keep_bytes=journal.keep_size,
        keep_seconds=journal.keep_age,
    )


# --- limits_made ---
# Part of `broker.config.settings`.


def peer_limits(settings: Settings) -> PeerLimits:
    """The same as the links take them."""
    limits = settings.limits
    return PeerLimits(
        connections=limits.connections,
        connections_per_peer=limits.connections_per_peer,
        reserved_connections=limits.reserved_connections,
        handshakes=limits.handshakes,
        bytes_per_second=limits.bytes_per_second,
        messages_per_second=limits.messages_per_second,
        pool_share=limits.pool_share,
    )


def pass_limits(settings: Settings, largest: int) -> Limits:
    """What bounds the pass; `largest` bytes of a frame that any peer was told it may send."""
    from broker.forwarding.pool import Limits  # noqa: PLC0415

    endpoint = settings.endpoint
    return Limits(
        pool_bytes=endpoint.message_forward_size,
        max_frame=largest,
        max_hops=endpoint.max_hops,
        share_percent=endpoint.message_forward_share,
        hold_seconds=endpoint.message_lifetime_max,
    )


def timeouts_of(settings: Settings) -> Timeouts:
    """How long a peer may take for what."""
    endpoint = settings.endpoint
    return Timeouts(endpoint.handshake_timeout, endpoint.connect_timeout, endpoint.backpressure)


# --- reloading ---
# What a reload swaps in a running instance: everything is made ready beside what is in use, then all of it is
# swapped.
#
# The order at the end is the order in which things depend on each other: what the pass may take before the links that
# feed it, certificates before listeners. It is one turn of the loop, but for what is only given back behind it.


_TLS = frozenset({"encryption", "authentication", "certificate", "private_key", "trust", "peers"})
_IDENTITY = frozenset({"certificate", "private_key", "peers"})


@dataclass(slots=True)
class Ready:
    """
    What was made ready for other settings.

    Shape: `security` None where the files of the endpoint are the same; `listeners` with the addresses they were
    configured by, of which `new` do not accept yet; `credentials` of databases that have other files.
    """

    settings: Settings
    admin: PreparedListeners
    security: Security | None = None
    listeners: list[tuple[ListenAddress, Listener]] = field(default_factory=list)
    new: list[Listener] = field(default_factory=list)
    plan: JournalPlan | None = None
    credentials: dict[str, DialogCredentials] = field(default_factory=dict)


async def make_ready(
    instance: Instance, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack
) -> Ready:
    """
    Make ready for these settings, beside what is in use; `undo` takes it back.

    Raises:
        SettingError, ListenFailedError: it cannot be.
    """
    ready = Ready(settings, await instance.admin.prepare(settings, undo))
    if any(one.path[0] == "endpoint" and one.path[1] in _TLS for one in changed):
        ready.security = await asyncio.to_thread(security_of, settings)
    _bind(instance, ready, undo)
    if any(one.path[0] == "journal" for one in changed):
        ready.plan = await asyncio.to_thread(journal_plan, settings)
    for name in {str(one.path[1]) for one in changed if one.path[0] == "databases" and one.path[-1] in _IDENTITY}:
        ready.credentials[name] = await asyncio.to_thread(credentials_of, settings, name)
    return ready


def _bind(instance: Instance, ready: Ready, undo: AsyncExitStack) -> None:
    """A listener for each address: one that is there, else a new one, which does not accept yet."""
    left = list(instance.bound)
    for address in ready.settings.endpoint.listen:
        same = next((one for one in left if one[0] == address), None)
        if same is not None:
            left.remove(same)
            ready.listeners.append(same)
            continue
        try:
            listener = instance.listener(address)
        except ListenFailedError as error:
            raise _explained(error, address, [one for one, _ in instance.bound]) from error
        undo.callback(listener.release)
        ready.listeners.append((address, listener))
        ready.new.append(listener)


def _explained(error: ListenFailedError, address: ListenAddress, own: Sequence[ListenAddress]) -> ListenFailedError:
    """The same; where the address is taken by this very instance, with that said."""
    for one in own:
        if clash(one, address):
            taken = error.problem.partition(";")[0]
            problem = f"{taken}, by this instance's own {one}; take another port, or restart the instance"
            return ListenFailedError(error.address, problem)
    return error


async def swap_in(instance: Instance, ready: Ready) -> None:
    """From now on these settings hold. Does not fail."""
    settings, before = ready.settings, instance.settings
    peers, forwarder = instance.peers, instance.forwarder
    gone = [one for one in instance.bound if one not in ready.listeners]
    own = instance.own()
    instance.settings = settings
    if settings.observe != before.observe:
        observe = settings.observe
        reconfigure_logging(log_format=observe.log_format, level=observe.log_level, instance=settings.instance.name)
    if ready.plan is not None and instance.journal is not None:
        instance.journal.use(ready.plan)
    links = list(peers.links.values())
    largest = largest_frame(links, settings.endpoint.max_frame)
    forwarder.limit(pass_limits(settings, largest))
    refresh_narrow(links, largest)
    instance.bound = ready.listeners
    for listener in ready.new:
        listener.start()
    if ready.security is not None:
        instance.certificates.use(settings, ready.security)
    heartbeat_ms = int(settings.endpoint.heartbeat * 1000)
    timeouts, limits = timeouts_of(settings), peer_limits(settings)
    tuning = Tuning(settings.endpoint.max_frame, heartbeat_ms, instance.addresses(), timeouts, limits)
    peers.apply(tuning, instance.certificates.security)
    if instance.own() != own:
        forwarder.add_own_addresses(instance.own(), asyncio.get_running_loop().time(), *(own - instance.own()))
    instance.databases.use(settings)
    instance.admin.carry_out(ready.admin)
    instance.on_catalog()
    for _, listener in gone:
        listener.release()
    await instance.databases.adopt(ready.credentials)
