"""
Checks of several settings together: settings that contradict each other, and allowed settings that are inadvisable.

Both are functions of the settings alone; checks that need files, ports or databases are in `broker.catalog.check`. A
finding names the key to change first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations

from broker.config.admin_access import HolderError, HolderKind, parse_holder
from broker.config.schema import SettingFinding
from broker.config.settings import BYTES_MIN, MESSAGES_MIN, AdminSettings, Settings
from broker.config.toml import KeyPath, dotted
from broker.config.units import render_duration, render_size
from broker.config.values import ListenAddress, clash
from broker.errors import SettingError
from broker.protocol.layout import (
    HEADER_BYTES,
    HEADERS_MAX,
    HEADERS_MAX_BYTES,
    NAME_MAX_BYTES,
    SEAL_MAX_BYTES,
    SILENCE_FACTOR,
)

SOCKET_PATH_MAX_BYTES = 107  # sun_path of Linux, without its final zero
# The most bytes of a frame besides the payload of a fragment: the header and both service names, and in the envelope
# the names of contract and message type with their MessagePack keys and the time of sending.
FRAME_OVERHEAD_BYTES = HEADER_BYTES + 4 * NAME_MAX_BYTES + 64 + SEAL_MAX_BYTES
_HEADERS_BYTES = HEADERS_MAX_BYTES + 6 * HEADERS_MAX  # of a message that has all it may have, with their lengths


def contradictions(settings: Settings) -> list[SettingFinding]:
    """Return the findings that make these settings unusable, although each alone is allowed. Paths must be absolute."""
    return [
        *_same_listeners(settings),
        *_same_databases(settings),
        *_roles(settings),
        *_tls(settings),
        *_dialog_sizes(settings),
        *_journal(settings),
        *_limits(settings),
        *_admin(settings.admin),
    ]


def setting_warnings(settings: Settings) -> list[SettingError]:
    """Return a warning for each setting that is allowed but inadvisable, sorted by place."""
    return settings.report(unwise_settings(settings))


def unwise_settings(settings: Settings) -> list[SettingFinding]:
    """What is allowed and probably not meant."""
    return [
        *_idle_instance(settings),
        *_open_endpoint(settings),
        *_half_tls(settings),
        *_odd_sizes_and_times(settings),
        *_odd_admin(settings.admin),
    ]


def loopback_told(admin: AdminSettings) -> str:
    """Return, as a sentence, the role that all users of this machine have although no key says so; or empty."""
    if admin.listen is None or not admin.listen.is_loopback or "loopback_role" in admin.given:
        return ""
    return f"every user of this machine has the role {admin.loopback_role} on {admin.listen}"


def _found(key: str, problem: str, hint: str) -> SettingFinding:
    return SettingFinding(tuple(key.split(".")), problem, hint)


# --- contradictions ------------------------------------------------------------------------------------------


def _same_listeners(settings: Settings) -> Iterator[SettingFinding]:
    """Two listeners on one port."""
    listeners: list[tuple[KeyPath, ListenAddress | None]] = [
        *((("endpoint", "listen", number), address) for number, address in enumerate(settings.endpoint.listen)),
        (("admin", "listen"), settings.admin.listen),
        (("observe", "listen"), settings.observe.listen),
    ]
    for (first, one), (second, other) in combinations(listeners, 2):
        if one is not None and other is not None and clash(one, other):
            problem = f'"{other}" is taken by {dotted(first)} = "{one}"'
            yield SettingFinding(second, problem, "give each listener its own port")


def _same_databases(settings: Settings) -> Iterator[SettingFinding]:
    """Names that are not free, one file for two databases, one broker instance for two databases."""
    for name in settings.databases:
        if name.lower() == "msdb" or not 1 <= len(name) <= 128 or not name.isprintable():
            problem = "is not a name for a database" if name.lower() != "msdb" else "is the name of the instance's own"
            hint = "choose another name of 1 to 128 printable characters"
            yield SettingFinding(("databases", name), problem, hint)
    for (first, one), (second, other) in combinations(settings.databases.items(), 2):
        taken = dotted(("databases", first))
        if os.path.normpath(one.path) == os.path.normpath(other.path):
            hint = "give each database its own file"
            problem = f'"{other.path}" is also the file of {taken}'
            yield SettingFinding(("databases", second, "path"), problem, hint)
        if one.broker_instance is not None and one.broker_instance == other.broker_instance:
            hint = "give one of them another GUID; a copied database must not keep the one of its original"
            problem = f"error 9772: {taken} has the same broker_instance"
            yield SettingFinding(("databases", second, "broker_instance"), problem, hint)


def _roles(settings: Settings) -> Iterator[SettingFinding]:
    """A command that decides the role, and what needs one."""
    for name, database in settings.databases.items():
        path, mirroring = ("databases", name), database.mirroring
        if mirroring == "command" and not database.role_command:
            hint = 'name the program in role_command, or set mirroring = "lock"'
            yield SettingFinding((*path, "mirroring"), 'is "command", and there is no role_command', hint)
        if mirroring != "command" and database.role_command:
            hint = 'set mirroring = "command", or leave it out'
            yield SettingFinding((*path, "role_command"), f'is not used with mirroring = "{mirroring}"', hint)
        if database.role_timeout <= database.role_interval:
            interval = render_duration(database.role_interval)
            problem = f"is not above role_interval = {interval}: a principal would step down between two runs"
            yield SettingFinding((*path, "role_timeout"), problem, "raise it, or lower role_interval")


def _tls(settings: Settings) -> Iterator[SettingFinding]:
    """What TLS needs, and what needs TLS."""
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled":
        if endpoint.authentication == "certificate":
            hint = 'set encryption = "required", or authentication = "none"'
            yield _found("endpoint.authentication", "certificates are shown over TLS only, which is disabled", hint)
        return
    for key in ("certificate", "private_key"):
        if getattr(endpoint, key) is None:
            hint = f'name the file in {key}, or set encryption = "disabled"'
            yield _found("endpoint.encryption", f'is "{endpoint.encryption}", and there is no {key}', hint)
    if endpoint.authentication == "certificate" and not (endpoint.trust or endpoint.peers):
        hint = "name in trust the CA of the peers, or in peers their certificates"
        yield _found("endpoint.authentication", "no certificate is trusted, so no peer could connect", hint)


def _dialog_sizes(settings: Settings) -> Iterator[SettingFinding]:
    endpoint, dialog = settings.endpoint, settings.dialog
    frame, size = f"endpoint.max_frame = {render_size(endpoint.max_frame)}", endpoint.message_forward_size
    room = endpoint.max_frame - FRAME_OVERHEAD_BYTES
    if dialog.fragment_size > room:
        problem = f"a fragment of {render_size(dialog.fragment_size)} and its header do not fit {frame}"
        yield _found("dialog.fragment_size", problem, f"allowed with this max_frame is {room} bytes")
    if dialog.resend_first > dialog.resend_cap:
        problem = f"{render_duration(dialog.resend_first)} is above resend_cap = {render_duration(dialog.resend_cap)}"
        yield _found("dialog.resend_first", problem, "lower it, or raise resend_cap")
    if size < endpoint.max_frame:
        problem = f"{render_size(size)} cannot hold one frame of {frame}"
        yield _found("endpoint.message_forward_size", problem, "raise it, or lower max_frame")
    else:
        yield from _share_of_pool(settings, "endpoint.message_forward_share", endpoint.message_forward_share)


def _share_of_pool(settings: Settings, key: str, percent: int) -> Iterator[SettingFinding]:
    """A share of the pool that cannot hold one frame."""
    endpoint = settings.endpoint
    share = endpoint.message_forward_size * percent // 100
    if share < endpoint.max_frame:
        frame = f"endpoint.max_frame = {render_size(endpoint.max_frame)}"
        problem = f"{percent} percent of message_forward_size are {share} bytes, which cannot hold one frame of {frame}"
        yield _found(key, problem, "raise it or message_forward_size, or lower max_frame")


def _journal(settings: Settings) -> Iterator[SettingFinding]:
    journal = settings.journal
    if 0 < journal.keep_size < journal.file_size:
        problem = f"keeps less than one file of file_size = {render_size(journal.file_size)}"
        yield _found("journal.keep_size", problem, "raise it, or lower file_size")
    if settings.tracing.enabled and journal.directory is None:
        hint = "name a directory; with journal.sample = 0 it keeps traced and dropped messages only"
        yield _found("tracing.enabled", "needs a journal, of whose records spans are made", hint)


def _limits(settings: Settings) -> Iterator[SettingFinding]:
    """Limits that leave nothing, or next to nothing."""
    limits = settings.limits
    if limits.connections and limits.reserved_connections >= limits.connections:
        problem = f"{limits.reserved_connections} of limits.connections = {limits.connections} leave no room for others"
        yield _found("limits.reserved_connections", problem, "lower it, or raise connections")
    for key, least, text in (
        ("bytes_per_second", BYTES_MIN, render_size(BYTES_MIN)),
        ("messages_per_second", MESSAGES_MIN, str(MESSAGES_MIN)),
    ):
        if 0 < getattr(limits, key) < least:
            problem = f"is below {text}: one read may bring more than that"
            yield _found(f"limits.{key}", problem, "raise it, or set 0 for no limit")
    if limits.pool_share and "pool_share" in limits.given:
        yield from _share_of_pool(settings, "limits.pool_share", limits.pool_share)


def _admin(admin: AdminSettings) -> Iterator[SettingFinding]:
    if (length := len(os.fsencode(admin.socket))) > SOCKET_PATH_MAX_BYTES:
        problem = f'"{admin.socket}" is {length} bytes long; a socket path has at most {SOCKET_PATH_MAX_BYTES}'
        yield _found("admin.socket", problem, "choose a shorter path, like /run/broker/admin.sock")
    if admin.listen is not None and not admin.listen.is_loopback and admin.certificate is None:
        problem = f'"{admin.listen}" can be reached from other machines, and there is no TLS'
        hint = 'name certificate and private_key in [admin], or listen on "127.0.0.1:PORT" and come through a tunnel'
        yield _found("admin.listen", problem, hint)
    if (admin.certificate is None) != (admin.private_key is None):
        there, missing = ("private_key", "certificate") if admin.certificate is None else ("certificate", "private_key")
        yield _found(f"admin.{there}", f"is set, and there is no {missing}", f"name the file in {missing}")
    for name in ("trust", "peers"):
        if getattr(admin, name) and admin.certificate is None:
            hint = "name certificate and private_key, or leave it out"
            yield _found(f"admin.{name}", "clients show certificates over TLS only", hint)
    for text in admin.roles:
        try:
            parse_holder(text)
        except HolderError as error:
            yield SettingFinding(("admin", "roles", text), str(error), "correct the name, or remove the line")


# --- inadvisable ---------------------------------------------------------------------------------------------


def _idle_instance(settings: Settings) -> Iterator[SettingFinding]:
    if not settings.endpoint.message_forwarding and not settings.databases:
        problem = "is false and there is no database: every message that arrives here is dropped"
        hint = "set it to true for a gateway, or add a [databases.NAME] section"
        yield _found("endpoint.message_forwarding", problem, hint)


def _open_endpoint(settings: Settings) -> Iterator[SettingFinding]:
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled":
        problem, hint = "accepts messages from every peer, unencrypted", "keep the port inside a trusted network"
    elif endpoint.encryption == "supported":
        problem = "accepts messages in plain text as well"
        hint = 'set encryption = "required" as soon as every peer has TLS'
    elif endpoint.authentication == "none":
        problem = "accepts messages from every peer, without a certificate"
        hint = 'set authentication = "certificate", or keep the port inside a trusted network'
    else:
        problem = hint = ""
    for number, address in enumerate(endpoint.listen):
        if problem and not address.is_loopback:
            yield SettingFinding(("endpoint", "listen", number), f'"{address}" {problem}', hint)
    for number, peer in enumerate(endpoint.advertise):
        if peer.host in {"0.0.0.0", "::"}:  # noqa: S104
            problem = f'"{peer}" means all interfaces; a peer that dials it reaches itself'
            yield SettingFinding(("endpoint", "advertise", number), problem, "write the name or address peers know")


def _half_tls(settings: Settings) -> Iterator[SettingFinding]:
    endpoint = settings.endpoint
    if endpoint.encryption == "supported" and endpoint.authentication == "certificate":
        hint = 'set encryption = "required" as soon as every peer has TLS'
        yield _found("endpoint.authentication", "peers that use plain text show no certificate", hint)
    trusting = [key for key in ("trust", "peers") if getattr(endpoint, key)]
    unused = trusting if endpoint.authentication == "none" else []
    if endpoint.encryption == "disabled":
        unused += [key for key in ("certificate", "private_key") if getattr(endpoint, key) is not None]
    for key in unused:
        needed = 'authentication = "certificate"' if key in trusting else 'encryption = "required"'
        yield _found(f"endpoint.{key}", "is not used", f"set {needed}, or leave it out")


def _odd_sizes_and_times(settings: Settings) -> Iterator[SettingFinding]:
    endpoint, dialog, drain = settings.endpoint, settings.dialog, settings.drain
    silence = SILENCE_FACTOR * endpoint.heartbeat
    if endpoint.handshake_timeout > silence:
        given_up = f"which is disconnected after {render_duration(silence)}"
        problem = f"an unknown peer may be silent for longer than a known one, {given_up}"
        yield _found("endpoint.handshake_timeout", problem, "lower it, or raise heartbeat")
    if dialog.time_to_live > dialog.resend_cap:
        problem = "copies of one message outlive the time between two sendings, and pile up where a route is slow"
        hint = f"stay at or below resend_cap = {render_duration(dialog.resend_cap)}"
        yield _found("dialog.time_to_live", problem, hint)
    if settings.databases and dialog.hop_limit > endpoint.max_hops:
        above = f"is above endpoint.max_hops = {endpoint.max_hops}"
        problem = f"{above}; gateways set up like this one stop such messages earlier"
        yield _found("dialog.hop_limit", problem, "lower it, or raise max_hops on every gateway")
    room = endpoint.max_frame - FRAME_OVERHEAD_BYTES
    if room - _HEADERS_BYTES < dialog.fragment_size <= room:
        size = render_size(dialog.fragment_size)
        hint = f"with this max_frame at most {room - _HEADERS_BYTES} bytes leave room"
        yield _found(
            "dialog.fragment_size", f"of {size} leaves a message no room for all the headers it may have", hint
        )
    if 0 < drain.timeout <= drain.announce:
        problem = f"leaves nothing of drain.timeout ({render_duration(drain.timeout)}) for messages that wait"
        yield _found("drain.announce", problem, "make it shorter")


def _odd_admin(admin: AdminSettings) -> Iterator[SettingFinding]:
    of_kind = {text: parse_holder(text).kind for text in admin.roles}
    local = [text for text, kind in of_kind.items() if kind in {HolderKind.USER, HolderKind.GROUP}]
    if local and not admin.socket_group:
        hint = "name in socket_group the group that shall open it"
        problem = "cannot open the socket, which has mode 0600"
        yield SettingFinding(("admin", "roles", local[0]), problem, hint)
    shown = [text for text, kind in of_kind.items() if kind is HolderKind.CERTIFICATE]
    if shown and not (admin.trust or admin.peers):
        hint = "name in trust the CA of the clients, or in peers their certificates"
        yield SettingFinding(("admin", "roles", shown[0]), "no certificate of a client is requested", hint)
    if admin.certificate is not None and admin.listen is None:
        yield _found("admin.certificate", "is not used without listen", "set listen, or leave it out")
    if by_default := loopback_told(admin):
        hint = 'set it to "viewer" or "none", or say "admin" if every user of this machine is to have that role'
        yield _found("admin.loopback_role", f"is not set: {by_default}", hint)
