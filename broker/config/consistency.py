"""
What single values cannot say: settings that contradict each other, and settings that are legal but unwise.

Both are pure functions of the settings; whatever has to look at files, ports or databases is in `check.py`. A finding
names the key to change first and every other key it depends on, so that a report about half-wrong settings can leave
out what follows from a value that was refused anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from broker.config.settings import _ENABLED, _LISTEN, _LOOPBACK, BYTES_MIN, MESSAGES_MIN, AdminSettings
from broker.config.toml import KeyPath, dotted
from broker.config.units import render_duration, render_size
from broker.config.values import HolderError, HolderKind, ListenAddress, SettingFinding, clash, parse_holder
from broker.errors import SettingError
from broker.protocol.layout import (
    HEADER_BYTES,
    HEADERS_MAX,
    HEADERS_MAX_BYTES,
    NAME_MAX_BYTES,
    SEAL_MAX_BYTES,
    SILENCE_FACTOR,
)

if TYPE_CHECKING:
    from broker.config.settings import Settings


# --- admin_consistency ---
# Part of `broker.config.settings`.


def admin_contradictions(admin: AdminSettings) -> Iterator[SettingFinding]:
    """What makes the section unusable, although each value by itself is allowed."""
    certificate, key = ("admin", "certificate"), ("admin", "private_key")
    if admin.listen is not None and not admin.listen.is_loopback and admin.certificate is None:
        problem = f'"{admin.listen}" can be reached from other machines, and there is no TLS'
        hint = f"name certificate and private_key in [admin], or listen on {_LOOPBACK} and come through a tunnel"
        yield SettingFinding(_LISTEN, problem, hint, (certificate,))
    if (admin.certificate is None) != (admin.private_key is None):
        there, missing = (key, "certificate") if admin.certificate is None else (certificate, "private_key")
        yield SettingFinding(
            there, f"is set, and there is no {missing}", f"name the file in {missing}", (certificate, key)
        )
    for name in ("trust", "peers"):
        if getattr(admin, name) and admin.certificate is None:
            hint = "name certificate and private_key, or leave it out"
            yield SettingFinding(("admin", name), "clients show certificates over TLS only", hint, (certificate,))
    for text in admin.roles:
        try:
            parse_holder(text)
        except HolderError as error:
            yield SettingFinding(("admin", "roles", text), str(error), "correct the name, or remove the line")


def admin_oddities(admin: AdminSettings) -> Iterator[SettingFinding]:
    """What is allowed and probably not meant."""
    holders = {text: parse_holder(text) for text in admin.roles}
    local = [text for text, holder in holders.items() if holder.kind in {HolderKind.USER, HolderKind.GROUP}]
    if local and not admin.socket_group:
        hint = "name in socket_group the group that shall open it"
        yield SettingFinding(("admin", "roles", local[0]), "cannot open the socket, which has mode 0600", hint)
    shown = [text for text, holder in holders.items() if holder.kind is HolderKind.CERTIFICATE]
    if shown and not (admin.trust or admin.peers):
        hint = "name in trust the CA of the clients, or in peers their certificates"
        yield SettingFinding(
            ("admin", "roles", shown[0]), "no certificate of a client is asked for", hint, (("admin", "trust"),)
        )
    if admin.certificate is not None and admin.listen is None:
        yield SettingFinding(
            ("admin", "certificate"), "is not used without listen", "set listen, or leave it out", (_LISTEN,)
        )
    if loopback_told(admin):
        hint = 'set it to "viewer" or "none", or say "admin" if every user of this machine is to have that role'
        yield SettingFinding(("admin", "loopback_role"), f"is not set: {loopback_told(admin)}", hint, (_LISTEN,))


def loopback_told(admin: AdminSettings) -> str:
    """The role that everybody on this machine has though no key says so, as a sentence of a status; else empty."""
    if admin.listen is None or not admin.listen.is_loopback or "loopback_role" in admin.given:
        return ""
    return f"every user of this machine has the role {admin.loopback_role} on {admin.listen}"


# --- drain_consistency ---
# Part of `broker.config.settings`.


def drain_oddities(settings: Settings) -> Iterator[SettingFinding]:
    """What is allowed and probably not meant."""
    drain = settings.drain
    if 0 < drain.timeout <= drain.announce:
        yield SettingFinding(
            ("drain", "announce"),
            f"leaves nothing of drain.timeout ({render_duration(drain.timeout)}) for what is held",
            "make it shorter",
            (("drain", "timeout"),),
        )


# --- limit_consistency ---
# Part of `broker.config.settings`.


def limit_contradictions(settings: Settings) -> Iterator[SettingFinding]:
    """Limits that leave nothing, or next to nothing."""
    limits, endpoint = settings.limits, settings.endpoint
    connections = ("limits", "connections")
    if limits.connections and limits.reserved_connections >= limits.connections:
        problem = f"{limits.reserved_connections} of limits.connections = {limits.connections} leave no room for others"
        yield SettingFinding(
            ("limits", "reserved_connections"), problem, "lower it, or raise connections", (connections,)
        )
    if 0 < limits.bytes_per_second < BYTES_MIN:
        problem = f"is below {render_size(BYTES_MIN)}: one read may bring more than that"
        yield SettingFinding(("limits", "bytes_per_second"), problem, "raise it, or set 0 for no limit")
    if 0 < limits.messages_per_second < MESSAGES_MIN:
        problem = f"is below {MESSAGES_MIN}: one read may bring more than that"
        yield SettingFinding(("limits", "messages_per_second"), problem, "raise it, or set 0 for no limit")
    part = endpoint.message_forward_size * limits.pool_share // 100
    if limits.pool_share and "pool_share" in limits.given and part < endpoint.max_frame:
        problem = (
            f"{limits.pool_share} percent of message_forward_size are {part} bytes, which cannot hold one "
            f"frame of endpoint.max_frame = {render_size(endpoint.max_frame)}"
        )
        also = (("endpoint", "message_forward_size"), ("endpoint", "max_frame"))
        yield SettingFinding(
            ("limits", "pool_share"), problem, "raise it or message_forward_size, or lower max_frame", also
        )


# --- tracing_consistency ---
# Part of `broker.config.settings`.


def tracing_contradictions(settings: Settings) -> Iterator[SettingFinding]:
    """Spans are made of records of the journal."""
    if settings.tracing.enabled and settings.journal.directory is None:
        hint = "name a directory; with journal.sample = 0 it keeps traced and dropped messages only"
        yield SettingFinding(
            _ENABLED, "needs a journal, of whose records spans are made", hint, (("journal", "directory"),)
        )


SOCKET_PATH_MAX_BYTES = 107  # sun_path of Linux, without its final zero
# What a frame carries beside the payload of a fragment: the header and both service names, and in the envelope the
# names of contract and message type with their MessagePack keys and the time of sending.
FRAME_OVERHEAD_BYTES = HEADER_BYTES + 4 * NAME_MAX_BYTES + 64 + SEAL_MAX_BYTES


_HEADERS_BYTES = HEADERS_MAX_BYTES + 6 * HEADERS_MAX  # of a message that has all it may have, with their lengths


def contradictions(settings: Settings) -> list[SettingFinding]:
    """What makes these settings unusable, although each by itself is allowed. Paths have to be absolute."""
    return [
        *_same_listeners(settings),
        *_same_databases(settings),
        *_roles(settings),
        *_socket_path(settings),
        *_tls(settings),
        *_dialog_sizes(settings),
        *_journal_sizes(settings),
        *tracing_contradictions(settings),
        *limit_contradictions(settings),
        *admin_contradictions(settings.admin),
    ]


def setting_warnings(settings: Settings) -> list[SettingError]:
    """What is legal but unwise, sorted by place."""
    return settings.report(unwise_settings(settings))


def unwise_settings(settings: Settings) -> list[SettingFinding]:
    """What is allowed and probably not meant."""
    return [
        *_idle_instance(settings),
        *_open_endpoint(settings),
        *_half_tls(settings),
        *_odd_times(settings),
        *_odd_hops(settings),
        *_odd_fragments(settings),
        *admin_oddities(settings.admin),
        *drain_oddities(settings),
    ]


def _odd_fragments(settings: Settings) -> Iterator[SettingFinding]:
    """Fragments that leave no room for the headers of their message."""
    room = settings.endpoint.max_frame - FRAME_OVERHEAD_BYTES
    if room - _HEADERS_BYTES < settings.dialog.fragment_size <= room:
        problem = (
            f"of {render_size(settings.dialog.fragment_size)} leaves a message no room for all the headers it may have"
        )
        hint = f"with this max_frame at most {room - _HEADERS_BYTES} bytes leave room"
        yield SettingFinding(("dialog", "fragment_size"), problem, hint, (("endpoint", "max_frame"),))


def _same_listeners(settings: Settings) -> Iterator[SettingFinding]:
    """Two listeners on one port."""
    listeners: list[tuple[KeyPath, ListenAddress]] = [
        (("endpoint", "listen", number), address) for number, address in enumerate(settings.endpoint.listen)
    ]
    if settings.admin.listen is not None:
        listeners.append((("admin", "listen"), settings.admin.listen))
    if settings.observe.listen is not None:
        listeners.append((("observe", "listen"), settings.observe.listen))
    for (first, one), (second, other) in combinations(listeners, 2):
        if clash(one, other):
            problem = f'"{other}" is taken by {dotted(first)} = "{one}"'
            yield SettingFinding(second, problem, "give each listener a port of its own", (first,))


def _same_databases(settings: Settings) -> Iterator[SettingFinding]:
    """Names that are not free, one file for two databases, one broker instance for two databases."""
    for name in settings.databases:
        if name.lower() == "msdb" or not 1 <= len(name) <= 128 or not name.isprintable():
            problem = "is no name for a database" if name.lower() != "msdb" else "is the name of the instance's own"
            yield SettingFinding(("databases", name), problem, "choose another name of 1 to 128 printable characters")
    for (first, one), (second, other) in combinations(settings.databases.items(), 2):
        if os.path.normpath(one.path) == os.path.normpath(other.path):
            problem = f'"{other.path}" is also the file of {dotted(("databases", first))}'
            hint = "give each database a file of its own"
            yield SettingFinding(("databases", second, "path"), problem, hint, (("databases", first, "path"),))
        if one.broker_instance is not None and one.broker_instance == other.broker_instance:
            problem = f"error 9772: {dotted(('databases', first))} has the same broker_instance"
            hint = "give one of them another GUID; a copied database must not keep the one of its original"
            also = ("databases", first, "broker_instance")
            yield SettingFinding(("databases", second, "broker_instance"), problem, hint, (also,))


def _roles(settings: Settings) -> Iterator[SettingFinding]:
    """A command that tells the role, and what asks for one."""
    for name, database in settings.databases.items():
        mirroring, command = ("databases", name, "mirroring"), ("databases", name, "role_command")
        if database.mirroring == "command" and not database.role_command:
            hint = 'name the program in role_command, or set mirroring = "lock"'
            yield SettingFinding(mirroring, 'is "command", and there is no role_command', hint, (command,))
        if database.mirroring != "command" and database.role_command:
            hint = 'set mirroring = "command", or leave it out'
            yield SettingFinding(command, f'is not used with mirroring = "{database.mirroring}"', hint, (mirroring,))
        if database.role_timeout <= database.role_interval:
            interval = render_duration(database.role_interval)
            problem = f"is not above role_interval = {interval}: a principal would step down between two runs"
            also = (("databases", name, "role_interval"),)
            yield SettingFinding(("databases", name, "role_timeout"), problem, "raise it, or lower role_interval", also)


def _socket_path(settings: Settings) -> Iterator[SettingFinding]:
    length = len(os.fsencode(settings.admin.socket))
    if length > SOCKET_PATH_MAX_BYTES:
        problem = f'"{settings.admin.socket}" is {length} bytes long; a socket path has at most {SOCKET_PATH_MAX_BYTES}'
        hint = "choose a shorter path, like /run/broker/admin.sock"
        yield SettingFinding(("admin", "socket"), problem, hint, (("instance", "state_dir"),))


def _dialog_sizes(settings: Settings) -> Iterator[SettingFinding]:
    endpoint, dialog = settings.endpoint, settings.dialog
    room = endpoint.max_frame - FRAME_OVERHEAD_BYTES
    if dialog.fragment_size > room:
        problem = (
            f"a fragment of {render_size(dialog.fragment_size)} and its header do not fit "
            f"endpoint.max_frame = {render_size(endpoint.max_frame)}"
        )
        hint = f"allowed with this max_frame is {room} bytes"
        yield SettingFinding(("dialog", "fragment_size"), problem, hint, (("endpoint", "max_frame"),))
    if dialog.resend_first > dialog.resend_cap:
        problem = f"{render_duration(dialog.resend_first)} is above resend_cap = {render_duration(dialog.resend_cap)}"
        yield SettingFinding(
            ("dialog", "resend_first"), problem, "lower it, or raise resend_cap", (("dialog", "resend_cap"),)
        )
    if endpoint.message_forward_size < endpoint.max_frame:
        problem = (
            f"{render_size(endpoint.message_forward_size)} cannot hold one frame of "
            f"endpoint.max_frame = {render_size(endpoint.max_frame)}"
        )
        hint = "raise it, or lower max_frame"
        yield SettingFinding(("endpoint", "message_forward_size"), problem, hint, (("endpoint", "max_frame"),))
        return
    share = endpoint.message_forward_size * endpoint.message_forward_share // 100
    if share < endpoint.max_frame:
        problem = (
            f"{endpoint.message_forward_share} percent of message_forward_size are {share} bytes, which cannot "
            f"hold one frame of endpoint.max_frame = {render_size(endpoint.max_frame)}"
        )
        hint = "raise it or message_forward_size, or lower max_frame"
        also = (("endpoint", "message_forward_size"), ("endpoint", "max_frame"))
        yield SettingFinding(("endpoint", "message_forward_share"), problem, hint, also)


def _journal_sizes(settings: Settings) -> Iterator[SettingFinding]:
    journal = settings.journal
    if 0 < journal.keep_size < journal.file_size:
        problem = f"keeps less than one file of file_size = {render_size(journal.file_size)}"
        yield SettingFinding(
            ("journal", "keep_size"), problem, "raise it, or lower file_size", (("journal", "file_size"),)
        )


def _tls(settings: Settings) -> Iterator[SettingFinding]:
    """What TLS needs, and what needs TLS."""
    endpoint = settings.endpoint
    encryption, authentication = ("endpoint", "encryption"), ("endpoint", "authentication")
    if endpoint.encryption == "disabled":
        if endpoint.authentication == "certificate":
            hint = 'set encryption = "required", or authentication = "none"'
            yield SettingFinding(
                authentication, "certificates are shown over TLS only, which is disabled", hint, (encryption,)
            )
        return
    for key in ("certificate", "private_key"):
        if getattr(endpoint, key) is None:
            hint = f'name the file in {key}, or set encryption = "disabled"'
            yield SettingFinding(
                encryption, f'is "{endpoint.encryption}", and there is no {key}', hint, (("endpoint", key),)
            )
    if endpoint.authentication == "certificate" and not (endpoint.trust or endpoint.peers):
        hint = "name in trust the CA of the peers, or in peers their certificates"
        yield SettingFinding(
            authentication, "nobody is trusted, so nobody could connect", hint, (("endpoint", "trust"),)
        )


def _idle_instance(settings: Settings) -> Iterator[SettingFinding]:
    if not settings.endpoint.message_forwarding and not settings.databases:
        problem = "is false and there is no database: every message that arrives here is dropped"
        hint = "set it to true for a gateway, or add a [databases.NAME] section"
        yield SettingFinding(("endpoint", "message_forwarding"), problem, hint)


def _open_endpoint(settings: Settings) -> Iterator[SettingFinding]:
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled":
        problem, hint = (
            "takes messages from everybody who reaches it, unencrypted",
            "keep the port inside a trusted network",
        )
    elif endpoint.encryption == "supported":
        problem = "takes messages in plain text as well"
        hint = 'set encryption = "required" as soon as every peer has TLS'
    elif endpoint.authentication == "none":
        problem = "takes messages from everybody who reaches it, and nobody proves who it is"
        hint = 'set authentication = "certificate", or keep the port inside a trusted network'
    else:
        problem = hint = ""
    for number, address in enumerate(endpoint.listen):
        if problem and not address.is_loopback:
            yield SettingFinding(("endpoint", "listen", number), f'"{address}" {problem}', hint)
    for number, peer in enumerate(settings.endpoint.advertise):
        if peer.host in {"0.0.0.0", "::"}:  # noqa: S104
            problem = f'"{peer}" means all interfaces; a peer that dials it reaches itself'
            yield SettingFinding(("endpoint", "advertise", number), problem, "write the name or address peers know")


def _half_tls(settings: Settings) -> Iterator[SettingFinding]:
    endpoint = settings.endpoint
    encryption = ("endpoint", "encryption")
    if endpoint.encryption == "supported" and endpoint.authentication == "certificate":
        problem = "peers that speak plain text prove nothing"
        hint = 'set encryption = "required" as soon as every peer has TLS'
        yield SettingFinding(("endpoint", "authentication"), problem, hint, (encryption,))
    trusting = [key for key in ("trust", "peers") if getattr(endpoint, key)]
    unused = trusting if endpoint.authentication == "none" else []
    if endpoint.encryption == "disabled":
        unused += [key for key in ("certificate", "private_key") if getattr(endpoint, key) is not None]
    for key in unused:
        needed = 'authentication = "certificate"' if key in trusting else 'encryption = "required"'
        yield SettingFinding(("endpoint", key), "is not used", f"set {needed}, or leave it out", (encryption,))


def _odd_times(settings: Settings) -> Iterator[SettingFinding]:
    endpoint, dialog = settings.endpoint, settings.dialog
    silence = SILENCE_FACTOR * endpoint.heartbeat
    if endpoint.handshake_timeout > silence:
        problem = f"a stranger may be silent longer than a peer, which is given up after {render_duration(silence)}"
        hint = "lower it, or raise heartbeat"
        yield SettingFinding(("endpoint", "handshake_timeout"), problem, hint, (("endpoint", "heartbeat"),))
    if dialog.time_to_live > dialog.resend_cap:
        problem = "copies of one message outlive the time between two sendings, and pile up where a route is slow"
        hint = f"stay at or below resend_cap = {render_duration(dialog.resend_cap)}"
        yield SettingFinding(("dialog", "time_to_live"), problem, hint, (("dialog", "resend_cap"),))


def _odd_hops(settings: Settings) -> Iterator[SettingFinding]:
    max_hops = settings.endpoint.max_hops
    if settings.databases and settings.dialog.hop_limit > max_hops:
        problem = f"is above endpoint.max_hops = {max_hops}; gateways set up like this one stop such messages earlier"
        hint = "lower it, or raise max_hops on every gateway"
        yield SettingFinding(("dialog", "hop_limit"), problem, hint, (("endpoint", "max_hops"),))
