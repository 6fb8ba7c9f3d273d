"""
The settings of the admin API: where it listens, who may do what there, and what is written down about it.

Whoever reaches the Unix socket is known by what the system says of the process at its other end. On a TCP port of
loopback nobody is known, so one role holds for all; on any other address everybody has to show a token or a
certificate, over TLS. What single values cannot say is found by `admin_contradictions` and `admin_oddities`, what only
the machine can say by `admin_errors`.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from broker.config import values as value
from broker.config.toml import KeyPath, KeyPositions, dotted
from broker.config.values import (
    ANY_NAME,
    GIVEN_WORDS,
    ROLE_WORDS,
    ListenAddress,
    Reload,
    Section,
    Setting,
    SettingFinding,
    ValueKind,
    refuse,
    section,
    sections,
    setting,
    settings_of,
    show,
)
from broker.conversation.frames import EARLY_WINDOW
from broker.errors import SettingError
from broker.protocol.layout import HOP_LIMIT, MAX_FRAME_RANGE
from broker.routing.address import NetworkAddress

_LISTEN: KeyPath = ("admin", "listen")
_LOOPBACK = '"127.0.0.1:PORT"'


def _roles() -> ValueKind:
    """A table of holders and their roles; which holders there are is looked at entry by entry, later."""

    def read(told: object) -> Mapping[str, str]:
        hint = 'write a table: [admin.roles] and below it "user:alice" = "operator"'
        if not isinstance(told, dict):
            raise refuse(f"{show(told)} is no table of roles", hint)
        for holder, role in told.items():
            if role not in GIVEN_WORDS:
                allowed = ", ".join(f'"{word}"' for word in GIVEN_WORDS)
                raise refuse(f"{show(role)} is no role for {show(holder)}", f"allowed is {allowed}")
        return dict(told)

    def from_text(text: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    allowed = f"table of holders, each with one of {', '.join(GIVEN_WORDS)}"
    schema = {"type": "object", "additionalProperties": {"enum": list(GIVEN_WORDS)}}
    return ValueKind(allowed, read, from_text, json_schema=schema)


def _group() -> ValueKind:
    writing = value.text("group", longest=64)

    def read(told: object) -> str:
        return "" if told == "" else str(writing.read(told))

    schema = writing.json_schema | {"minLength": 0}
    return ValueKind('name or number of a group, "" = none', read, json_schema=schema)


class AdminSettings(Section):
    """`[admin]`: where the instance is steered, and by whom."""

    socket: Annotated[Path, value.path()] = setting(
        "admin.sock",
        "Unix socket of the admin API. A relative path is relative to `instance.state_dir`.",
        reason="Who may write in the state directory may steer the instance. The system allows 107 bytes.",
        reload=Reload.LIVE,
    )
    socket_group: Annotated[str, _group()] = setting(
        "",
        "Group that may open the socket as well (mode 0660); its members may do what `roles` gives them. The directory "
        "of the socket has to let them through.",
        reason="None: the socket is for the instance's user and root, with mode 0600.",
        reload=Reload.LIVE,
    )
    listen: Annotated[ListenAddress | None, value.listen(may_be_off=True)] = setting(
        "",
        "TCP address of the admin API. Another one than loopback takes TLS, and a token or a client certificate of "
        "everybody.",
        reason="Off: the socket is enough for the commands.",
        reload=Reload.LIVE,
    )
    loopback_role: Annotated[Literal["none", "viewer", "operator", "admin"], value.choice(*ROLE_WORDS)] = setting(
        "admin",
        "What may be done over TCP from loopback by those who show neither token nor certificate.",
        reason="Nothing listens unless `listen` says so, and on many machines all users are one person. Where they are "
        "not, set it to none.",
        reload=Reload.LIVE,
    )
    certificate: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "PEM file with the certificate of `listen`, and behind it those between it and its CA; with one the port "
        "speaks TLS 1.3 only. Relative to the configuration file's directory.",
        reason="There is no file one could guess.",
        reload=Reload.LIVE,
    )
    private_key: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "PEM file with the key of `certificate`, without a password. Relative to the configuration file's directory.",
        reason="There is no file one could guess. Nobody but the instance's user should be able to read it.",
        reload=Reload.LIVE,
    )
    trust: Annotated[tuple[str, ...], value.list_of(value.text("path or pattern", longest=4096))] = setting(
        [],
        "PEM files, each a path or a pattern as in `routes.files`, with the CAs or the very certificates of clients. A "
        "certificate gives nothing by itself: `roles` says what its holder may do.",
        reason="Off: tokens are enough for most.",
        reload=Reload.LIVE,
    )
    peers: Annotated[tuple[str, ...], value.list_of(value.text("path or pattern", longest=4096))] = setting(
        [],
        "PEM files as in `trust`, with the very certificates of clients. What one of these certificates has issued is "
        "not trusted, also if it says that it is a CA.",
        reason="Off: as for `trust`. `openssl req -x509` makes certificates that say CA:TRUE.",
        reload=Reload.LIVE,
    )
    tokens: Annotated[Path, value.path()] = setting(
        "tokens",
        "File of token hashes, made by `broker token new`. A relative path is relative to `instance.state_dir`. Its "
        "changes count from the next request on.",
        reason="Beside the other things that only the instance's user may read.",
        reload=Reload.LIVE,
    )
    roles: Annotated[Mapping[str, str], _roles()] = setting(
        {},
        'Who may do what: `"user:NAME"`, `"group:NAME"`, `"token:NAME"` or `"certificate:CN=NAME"` = `"viewer"`, '
        '`"operator"` or `"admin"`. The highest of several counts; the role of a token here replaces the one that it '
        "was made with.",
        reason="The instance's user and root are admin; nobody else is anything unless it is said.",
        reload=Reload.LIVE,
    )
    audit: Annotated[Path, value.path()] = setting(
        "audit.jsonl",
        "File in which every change through the admin API is written down before it is made, one JSON object a line. A "
        "relative path is relative to `instance.state_dir`. Rotate it with logrotate.",
        reason="A change that cannot be written down is refused, so the file stands where the instance writes anyhow.",
        reload=Reload.LIVE,
    )


# --- what single values cannot say ---------------------------------------------------------------------------


# --- what only the machine can say ---------------------------------------------------------------------------


# --- draining ---
# The settings of how an instance leaves.


class DrainSettings(Section):
    """`[drain]`: what SIGTERM and `broker drain` begin."""

    announce: Annotated[float, value.duration("0s", "10m")] = setting(
        "5s",
        "How long an instance that drains takes new connections as before, while `/readyz` says that it is not ready. "
        "Only where `/readyz` was asked within the last minute; else nobody waits.",
        reason="Load balancers and orchestrators ask every few seconds, and send nobody more then.",
        reload=Reload.LIVE,
    )
    timeout: Annotated[float, value.duration("0s", "1h")] = setting(
        "25s",
        "How long a drain takes at most, `announce` included. What has not left then is dropped; its senders have it.",
        reason="Kubernetes kills after 30 s, and closing what is open takes a second or two.",
        reload=Reload.LIVE,
    )


# --- journal ---
# The settings of the journal, and whether a journal can be kept by them.
#
# What writes it needs pyarrow, which is an extra of the installation; nothing here imports it, so that an instance
# without a journal neither needs nor loads it.


ARROW_LIBRARY = "pyarrow"
_DIRECTORY = ("journal", "directory")


class JournalSettings(Section):
    """`[journal]`: a record of every visit of a message to this instance, in Parquet files."""

    directory: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "Directory for the files of the journal, created if missing; needs `pip install broker[journal]`. A relative "
        "path is relative to `instance.state_dir`. A reload takes another directory; to begin or end a journal takes a "
        "restart.",
        reason="Off: what happened to messages is data about those who send them, and takes room.",
        reload=Reload.LIVE,
    )
    sample: Annotated[float, value.fraction()] = setting(
        1.0,
        "Fraction of the dialogs whose messages are recorded, the same dialogs on every instance. Messages that are "
        "dropped, or carry the TRACE flag, are always recorded.",
        reason="A whole journal answers every question, at some 25 bytes of disk for each visit. 0.01 is enough for "
        "the times of routes that carry thousands of messages a second.",
        reload=Reload.LIVE,
    )
    buffer_size: Annotated[int, value.size(4 << 20, 4 << 30)] = setting(
        "32MiB",
        "Memory for records that are not in a file yet. A record that finds no room is shed and "
        "counted; the message goes on.",
        reason="150,000 records: what a busy gateway writes in the tenths of a second that a slow disk takes.",
        reload=Reload.RESTART,
    )
    file_size: Annotated[int, value.size(1 << 20, 4 << 30)] = setting(
        "64MiB",
        "Size at which a file is ended and appears.",
        reason="Small files cost their readers more than their rows do; larger ones are read by one core for long.",
        reload=Reload.LIVE,
    )
    file_age: Annotated[float, value.duration("1s", "1d")] = setting(
        "15m",
        "Time after which a file is ended and appears, however small it is. A crash loses what was recorded since.",
        reason="A hundred files a day and instance are read in seconds; nobody waits longer than this for news.",
        reload=Reload.LIVE,
    )
    keep_age: Annotated[float, value.duration("0s", "3650d")] = setting(
        "30d",
        "Age at which files of this instance are removed; 0s: none is for its age.",
        reason="A month is what capacity and incidents are usually looked at for.",
        reload=Reload.LIVE,
    )
    keep_size: Annotated[int, value.size(0, 1 << 50)] = setting(
        "10GiB",
        "Size of all files of this instance above which the oldest are removed; 0: none is for their size.",
        reason="Some 400 million visits; a journal must not fill the disk that the databases are on.",
        reload=Reload.LIVE,
    )


# --- handshakes ---
# Part of `broker.net.quotas`.


HANDSHAKES = 256  # each takes some 50 KiB, and a millisecond of its own


# --- limits ---
# The settings of what one peer, and all strangers together, may take of an instance.
#
# What single values cannot say is found by `limit_contradictions`.


BYTES_MIN = 64 * 1024  # a second: what one read may bring is then paid for within four seconds
MESSAGES_MIN = 100  # a second: as above, of the smallest messages within twenty
POOL_SHARE = 50  # percent, where peers prove who they are and nothing else is configured


class LimitSettings(Section):
    """`[limits]`: what peers may take; 0 = unlimited."""

    connections: Annotated[int, value.integer(0, 1_000_000, unit="connections")] = setting(
        10_000,
        "Connections to other instances at one time; never more than file descriptors allow, with some kept for "
        "the admin API, files and those who are dialled. One that has said no HELLO makes room for the next.",
        reason="Some 16 KiB each when idle.",
        reload=Reload.LIVE,
    )
    connections_per_peer: Annotated[int, value.integer(0, 1_000_000, unit="connections")] = setting(
        1000,
        "Connections that one peer may open: one principal, or one IP address where peers prove nothing.",
        reason="An instance opens one; many may come from behind one NAT.",
        reload=Reload.LIVE,
    )
    reserved_connections: Annotated[int, value.integer(0, 100_000, unit="connections")] = setting(
        100,
        "How many of `connections` are kept for known peers: who has proved who it is, or comes from an address that a "
        "route names, that was reached by dialling, or from which somebody has proved who it is.",
        reason="However many strangers come, the neighbours of a usual gateway still find room.",
        reload=Reload.LIVE,
    )
    handshakes: Annotated[int, value.integer(1, 65_536, unit="handshakes")] = setting(
        HANDSHAKES,
        "TLS handshakes at one time with those who connect, a quarter of them with one address that is not known. When "
        "there are too many, the one that has taken the longest is ended.",
        reason="Each takes some 50 KiB and a millisecond of the processor; a peer that means it is done within "
        "milliseconds.",
        reload=Reload.LIVE,
    )
    bytes_per_second: Annotated[int, value.size(0, 1 << 40)] = setting(
        0,
        "Bytes that are read from one peer in a second. One that sends more is not read for a while, so that nothing "
        "is lost; `broker status` tells for which limit a connection is slow.",
        reason="Off: how much a neighbour is to bring nobody can guess. Less than 64KiB is refused: what one read may "
        "bring would stand still for too long.",
        reload=Reload.LIVE,
    )
    messages_per_second: Annotated[int, value.integer(0, 10_000_000, unit="messages")] = setting(
        0,
        "Dialog frames (messages, fragments, acknowledgements) that are read from one peer in a second, as "
        "`bytes_per_second`.",
        reason="Off, as above. Less than 100 is refused, for the same reason.",
        reload=Reload.LIVE,
    )
    pool_share: Annotated[int, value.integer(0, 100, unit="percent")] = setting(
        0,
        "How much of `endpoint.message_forward_size` the messages that one peer has brought may take, whatever their "
        "next hops. Near it the peer is not read for a while, as by `endpoint.backpressure`; above it its messages are "
        "dropped as for a full pool, and it still has them.",
        reason="One peer that brings messages for next hops that are gone leaves half of the room to the others. Where "
        "peers prove nothing they are known by their IP addresses, which many may share.",
        reload=Reload.LIVE,
        said=f'{POOL_SHARE} with `endpoint.authentication = "certificate"`, else 0',
    )


def with_pool_share(settings: Settings) -> Settings:
    """The same settings, with `pool_share` worked out where it was not given."""
    if "pool_share" in settings.limits.given or settings.endpoint.authentication != "certificate":
        return settings
    return settings.with_values({"limits": settings.limits.with_values({"pool_share": POOL_SHARE})})


# --- tracing ---
# The setting of tracing, and whether spans can be made by it.
#
# What makes and sends them is an extra of the installation; nothing here imports it, so that an instance without
# tracing
# neither needs nor loads it. Where spans are sent is not ours to say: the OTEL_* variables of OpenTelemetry do.


OTLP_LIBRARY = "opentelemetry.exporter.otlp.proto.http"
_ENABLED = ("tracing", "enabled")


class TracingSettings(Section):
    """`[tracing]`: spans of OpenTelemetry for messages that carry a sampled trace."""

    enabled: Annotated[bool, value.flag()] = setting(
        False,
        "Make spans of messages with the TRACE flag and send them by OTLP over HTTP, as the `OTEL_*` variables of the "
        "environment say; needs `pip install broker[otel]` and a `[journal]`, whose records they are made of.",
        reason="Off: what happened to messages is data about those who send them, and there has to be a collector.",
        reload=Reload.RESTART,
    )


# --- config ---
# Every setting of one instance: its name, type, range, default, and why.
#
# This is the one page of numbers an operator can turn (those of the journal are in `journal.py`); the reference page
# is
# made from it. A model here is a value: loading and merging is `load.py`, checks across keys are `consistency.py`,
# what
# has to look outside is `check.py`. A key stands here only when the program obeys it.
#
# Paths: what people write (scripts, certificates) is relative to the configuration file's directory, what the program
# writes (databases, admin socket) is relative to `instance.state_dir`. `load_settings` hands out absolute paths only.


_PATTERNS = value.list_of(value.text("path or pattern", longest=4096))
_PATH = value.path()
_OPTIONAL_PATH = value.path(may_be_off=True)


def _host_name() -> str:
    """What the machine calls itself, made a valid name."""
    return "".join(filter(str.isprintable, os.uname().nodename))[:128] or "broker"


class InstanceSettings(Section):
    """`[instance]`: who this is."""

    name: Annotated[str, value.text("name", longest=128)] = setting(
        None,
        "Name of this instance in logs, metrics and in what it tells its peers. It identifies nothing.",
        reason="People know machines by their host names.",
        reload=Reload.RESTART,
        said="the host name",
        factory=_host_name,
    )
    state_dir: Annotated[Path, _PATH] = setting(
        "/var/lib/broker",
        "Directory for what the instance keeps: its identity, its databases, the admin socket. A relative path is "
        "relative to the configuration file's directory.",
        reason="The place Linux distributions give to a service's state.",
        reload=Reload.RESTART,
    )


class EndpointSettings(Section):
    """`[endpoint]`: what CREATE ENDPOINT ... FOR SERVICE_BROKER says."""

    listen: Annotated[tuple[ListenAddress, ...], value.list_of(value.listen())] = setting(
        ["0.0.0.0:4022"],
        "Addresses to accept other instances on; port 0 takes any free port, an empty list accepts nobody.",
        reason="4022 is the port every example of the original uses.",
        reload=Reload.LIVE,
    )
    advertise: Annotated[tuple[NetworkAddress, ...], value.list_of(value.advertised())] = setting(
        [],
        "Addresses under which peers reach this instance, told to each of them.",
        reason="Behind NAT or a load balancer the listening address is not the one peers dial; nothing can be guessed.",
        reload=Reload.RECONNECT,
    )
    reuse_port: Annotated[bool, value.flag()] = setting(
        default=False,
        description="Whether other instances of the same user on this machine may listen on the addresses of `listen` "
        "too, if they also set this (SO_REUSEPORT). The system gives each new connection to one of them. For gateways: "
        "an instance with `[databases.NAME]` needs addresses of its own.",
        reason="Two instances that are started with one configuration by mistake are told that the port is taken.",
        reload=Reload.RESTART,
    )
    encryption: Annotated[
        Literal["disabled", "supported", "required"], value.choice("disabled", "supported", "required")
    ] = setting(
        "disabled",
        "Whether connections are encrypted, with TLS 1.3. `supported` takes both kinds on one port, and dials in plain "
        "text only where a peer has no TLS. Plain text has to be spelled out: an instance that listens where other "
        "machines reach it does not start without this key.",
        reason="TLS needs a certificate, which nobody can guess. `supported` is for the time in which a network "
        "changes over: who can touch the traffic can have it plain.",
        reload=Reload.RECONNECT,
    )
    authentication: Annotated[Literal["none", "certificate"], value.choice("none", "certificate")] = setting(
        "none",
        "How a peer proves who it is: with `certificate` both sides show one, which has to be one in `trust` or "
        "`peers`, or lead to a CA in `trust`.",
        reason="Certificates need TLS.",
        reload=Reload.LIVE,
    )
    certificate: Annotated[Path | None, _OPTIONAL_PATH] = setting(
        "",
        "PEM file with this instance's certificate, and behind it those between it and its CA; needed for TLS. "
        "Relative to the configuration file's directory. Changed files are used within seconds, without a restart.",
        reason="There is no file one could guess.",
        reload=Reload.RECONNECT,
    )
    private_key: Annotated[Path | None, _OPTIONAL_PATH] = setting(
        "",
        "PEM file with the key of `certificate`, without a password; needed for TLS. Relative to the configuration "
        "file's directory.",
        reason="There is no file one could guess. Nobody but the instance's user should be able to read it.",
        reload=Reload.RECONNECT,
    )
    trust: Annotated[tuple[str, ...], _PATTERNS] = setting(
        [],
        "PEM files, each a path or a pattern as in `routes.files`, with CAs or with the very certificates of peers; "
        "this or `peers` is needed for `authentication`. Relative to the configuration file's directory.",
        reason="Whom to trust is nothing a program could know; the CAs of the web are not asked.",
        reload=Reload.LIVE,
    )
    peers: Annotated[tuple[str, ...], _PATTERNS] = setting(
        [],
        "PEM files as in `trust`, with the very certificates of peers. What one of these certificates has issued is "
        "not trusted, also if it says that it is a CA. Relative to the configuration file's directory.",
        reason="Off: one CA in `trust` is enough for most. `openssl req -x509` makes certificates that say CA:TRUE.",
        reload=Reload.LIVE,
    )
    message_forwarding: Annotated[bool, value.flag()] = setting(
        default=False,
        description="Whether messages that are for services elsewhere are forwarded; if not, they are dropped.",
        reason="Off as in the original: an instance becomes a gateway only on purpose.",
        reload=Reload.LIVE,
    )
    message_forward_size: Annotated[int, value.size(1 << 20, 64 << 30)] = setting(
        "64MiB",
        "Memory for messages that wait to be forwarded, headers included. A message that does not fit is dropped; its "
        "sender still has it.",
        reason="Half a second of a 1 Gbit/s link. The original's 10 MB is a sixth of that; less than 1 MiB would not "
        "hold one frame of the default size.",
        reload=Reload.LIVE,
    )
    message_forward_share: Annotated[int, value.integer(1, 100, unit="percent")] = setting(
        50,
        "How much of `message_forward_size` the messages for one next hop may take, or for one mirrored pair whose "
        "principal is not known. A message above it is dropped; its sender still has it.",
        reason="One next hop that is gone leaves half of the memory to all others.",
        reload=Reload.LIVE,
    )
    message_lifetime_max: Annotated[float, value.duration("1s", "1d")] = setting(
        "5m",
        "How long a message waits here for its next hop at most, even if its time to live is longer. Then it is "
        "dropped as `expired here`; its sender still has it, and sends it again.",
        reason="Senders send again at least every 64 s (`dialog.resend_cap`), so a longer wait only takes "
        "memory. Raise it where senders have a longer `resend_cap`.",
        reload=Reload.LIVE,
    )
    backpressure: Annotated[float, value.duration("0s", "10s")] = setting(
        "250ms",
        "How long a connection is not read at most, because what it brings finds no room; only then are messages "
        "dropped. 0s: they are dropped at once.",
        reason="A next hop that is slow for a moment costs nothing; one that is gone does not hold up for longer what "
        "its neighbours send to others.",
        reload=Reload.LIVE,
    )
    max_hops: Annotated[int, value.integer(1, 255, unit="hops")] = setting(
        HOP_LIMIT,
        "Hops after which this instance drops a message, whatever its sender allows.",
        reason="Ends loops; no sensible network of gateways is sixteen deep. The wire has one byte for it.",
        reload=Reload.LIVE,
    )
    max_frame: Annotated[int, value.size(*MAX_FRAME_RANGE)] = setting(
        "1MiB",
        "Largest frame this instance accepts, told to each peer.",
        reason="Sixteen fragments of the default size; every connection has a receive buffer of at least this.",
        reload=Reload.RECONNECT,
    )
    heartbeat: Annotated[float, value.duration("100ms", "1h")] = setting(
        "15s",
        "Silence after which a PING is sent, told to each peer; after three of them a silent peer is given up.",
        reason="A dead peer is noticed in 45 s; shorter than the idle time-out of common firewalls.",
        reload=Reload.RECONNECT,
    )
    handshake_timeout: Annotated[float, value.duration("100ms", "10m")] = setting(
        "10s",
        "Time a new connection has to complete its handshake before it is closed.",
        reason="Several round trips round the globe; longer only keeps strangers.",
        reload=Reload.RECONNECT,
    )
    connect_timeout: Annotated[float, value.duration("100ms", "10m")] = setting(
        "10s",
        "Time an attempt to reach a peer may take before the next address is tried.",
        reason="Three lost SYN packets are retried within it.",
        reload=Reload.RECONNECT,
    )


class RoutesSettings(Section):
    """`[routes]`: the instance's own route table, msdb.sys.routes."""

    files: Annotated[tuple[str, ...], _PATTERNS] = setting(
        [],
        "Scripts of route statements for msdb, each a path or a pattern (`*`, `?`, `[...]`, `**`), read in the order "
        "given and, within a pattern, of their names; relative to the configuration file's directory.",
        reason="Without a script msdb holds AutoCreatedLocal only.",
        reload=Reload.LIVE,
    )


class DatabaseSettings(Section):
    """`[databases.NAME]`: a database hosted here."""

    path: Annotated[Path, _PATH] = setting(
        ...,
        "The SQLite file, shared with the application, created if missing. A relative path is relative to "
        "`instance.state_dir`.",
        reason="There is no file one could guess.",
        reload=Reload.RESTART,
    )
    broker_instance: Annotated[UUID | None, value.guid()] = setting(
        None,
        "GUID that addresses this database. Left out: made once and kept in the file.",
        reason="Two databases with one GUID cannot both be here; a made one is unique.",
        reload=Reload.RESTART,
        said="made once",
    )
    scripts: Annotated[tuple[str, ...], _PATTERNS] = setting(
        [],
        "Scripts that create the queues, services and routes of this database; paths or patterns as in `routes.files`.",
        reason="An application may create everything itself.",
        reload=Reload.LIVE,
    )
    certificate: Annotated[Path | None, _OPTIONAL_PATH] = setting(
        "",
        "PEM file with what others know this database by: the certificate that signs, and behind it those that are "
        "sealed to; needed for sealed dialogs. Relative to the configuration file's directory. Changed files are used "
        "within seconds, without a restart.",
        reason="Without it dialogs are in clear, or anonymous from here.",
        reload=Reload.LIVE,
    )
    private_key: Annotated[Path | None, _OPTIONAL_PATH] = setting(
        "",
        "PEM file with the keys of `certificate`, without a password. Relative to the configuration file's directory.",
        reason="There is no file one could guess. Nobody but the instance's user should be able to read it.",
        reload=Reload.LIVE,
    )
    peers: Annotated[tuple[str, ...], _PATTERNS] = setting(
        [],
        "PEM files with the certificates of far databases, each a path or a pattern as in `routes.files`. Relative to "
        "the configuration file's directory.",
        reason="A far database is known by its very certificate; nobody vouches for it.",
        reload=Reload.LIVE,
    )
    mirroring: Annotated[Literal["off", "lock", "command"], value.choice("off", "lock", "command")] = setting(
        "off",
        "Who is the principal of this database: `off` this instance, always; `lock` whichever of the instances that "
        "share the file has its lock; `command` whoever `role_command` says.",
        reason="One instance for one file is the usual case.",
        reload=Reload.RESTART,
    )
    role_command: Annotated[tuple[str, ...], value.list_of(value.text("word", longest=4096))] = setting(
        [],
        'For `mirroring = "command"`: a program and its arguments, run without a shell, that prints `principal`, '
        "`principal EPOCH` or `mirror`.",
        reason="What replicates the file knows who may write to it; nothing can be guessed.",
        reload=Reload.LIVE,
    )
    role_interval: Annotated[float, value.duration("100ms", "1h")] = setting(
        "1s",
        "Pause between two runs of `role_command`.",
        reason="A change of roles is noticed within a second or so, for a few milliseconds of the machine.",
        reload=Reload.LIVE,
    )
    role_timeout: Annotated[float, value.duration("100ms", "1h")] = setting(
        "10s",
        "How long an answer of `role_command` holds, from the start of its run: a run that takes longer is ended, and "
        "a principal that nothing has confirmed for so long stores, sends and acknowledges nothing more and steps "
        "down. Above `role_interval` and two runs together.",
        reason="Some failed runs are survived; a principal that is cut off from what decides the roles, or stood "
        "still, ends within it.",
        reload=Reload.LIVE,
    )


class DialogSettings(Section):
    """`[dialog]`: how conversations that begin or end here behave."""

    resend_first: Annotated[float, value.duration("50ms", "1h")] = setting(
        "1s",
        "Time without an acknowledgement after which a message is first sent again; it doubles from there.",
        reason="Above any usual round trip, gateways and the 50 ms that an acknowledgement may wait included.",
        reload=Reload.LIVE,
    )
    resend_cap: Annotated[float, value.duration("50ms", "1h")] = setting(
        "64s",
        "Longest time between two sendings of the same message.",
        reason="Six doublings of 1s: an outage of a minute is over within two.",
        reload=Reload.LIVE,
    )
    time_to_live: Annotated[float, value.duration("100ms", "1d")] = setting(
        "60s",
        "How long one copy of a message may be on its way, all hops together.",
        reason="Just under `resend_cap`, so that in the steady state one copy is under way at a time.",
        reload=Reload.LIVE,
    )
    hop_limit: Annotated[int, value.integer(1, 255, unit="hops")] = setting(
        HOP_LIMIT,
        "Hops a message sent here may take.",
        reason="The same as `endpoint.max_hops`, which every gateway applies as well.",
        reload=Reload.LIVE,
    )
    fragment_size: Annotated[int, value.size(1 << 10, 15 << 20)] = setting(
        "64KiB",
        "Payload bytes of one fragment; a longer message is sent in several.",
        reason="Small enough that a large message does not hold up others, large enough that headers cost under 1 %.",
        reload=Reload.RESTART,
    )
    window: Annotated[int, value.integer(1, EARLY_WINDOW, unit="frames")] = setting(
        1024,
        "Frames of one dialog that may be sent and not yet acknowledged, at most; how many are adapts to the way.",
        reason="With messages of 1 KiB what a 1 Gbit/s link carries in 8 ms: several commits of the far side. Whatever "
        "is further ahead than the upper bound the far side would drop, out of sequence.",
        reload=Reload.LIVE,
    )
    window_size: Annotated[int, value.size(1 << 10, 32 << 20)] = setting(
        "8MiB",
        "Bytes of one dialog that may be sent and not yet acknowledged, at most; a single fragment always may.",
        reason="What 1 Gbit/s carries in 64 ms; eight such dialogs fill the 64 MiB that a database has loaded at most.",
        reload=Reload.LIVE,
    )


class ObserveSettings(Section):
    """`[observe]`: what the instance tells about itself."""

    listen: Annotated[ListenAddress | None, value.listen(may_be_off=True)] = setting(
        "127.0.0.1:9423",
        "Address of `/metrics`, `/livez`, `/readyz` and `/startupz`.",
        reason="A scraper beside the instance sees it, nobody else does.",
        reload=Reload.LIVE,
    )
    log_format: Annotated[Literal["auto", "json", "console"], value.choice("auto", "json", "console")] = setting(
        "auto",
        "Form of log lines on standard error; `auto` is `console` on a terminal, else `json`.",
        reason="Programs read JSON, people do not.",
        reload=Reload.LIVE,
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], value.choice("debug", "info", "warning", "error")
    ] = setting(
        "info",
        "Least severe level that is logged.",
        reason="`info` tells of changes of state only; nothing is logged per message above `debug`.",
        reload=Reload.LIVE,
    )


class Settings(Section):
    """
    The settings of one instance; made by `load_settings`, which also makes its paths absolute.

    Two are equal when every value is, wherever the values stood.
    """

    instance: InstanceSettings = section(InstanceSettings)
    endpoint: EndpointSettings = section(EndpointSettings)
    routes: RoutesSettings = section(RoutesSettings)
    databases: Mapping[str, DatabaseSettings] = sections()
    dialog: DialogSettings = section(DialogSettings)
    admin: AdminSettings = section(AdminSettings)
    observe: ObserveSettings = section(ObserveSettings)
    journal: JournalSettings = section(JournalSettings)
    limits: LimitSettings = section(LimitSettings)
    drain: DrainSettings = section(DrainSettings)
    tracing: TracingSettings = section(TracingSettings)
    _places: ClassVar[KeyPositions] = KeyPositions({}, {}, {}, [])

    def placed(self, places: KeyPositions) -> Settings:
        """The same settings, knowing where each value came from."""
        return self.with_values({"_places": places})

    @property
    def places(self) -> KeyPositions:
        """Where each value came from."""
        return self._places

    def error(self, path: KeyPath, problem: str, hint: str = "", *, of_key: bool = False) -> SettingError:
        """A report about one key, with the place its value (or, with `of_key`, the key itself) came from."""
        origin = self._places.origin(path)
        name = f"{dotted(path)} ({origin})" if origin else dotted(path)
        span = self._places.span(path, of_key=of_key)
        return SettingError(name, problem, span, hint, self._places.excerpt(span))

    def report(self, findings: list[SettingFinding]) -> list[SettingError]:
        """Findings with their places, sorted by place."""
        return sorted((self.error(one.path, one.problem, one.hint) for one in findings), key=by_place)


def by_place(error: SettingError) -> tuple[bool, str, int, int, str]:
    """Sorting key of a report: the configuration file from top to bottom, then what came from elsewhere by name."""
    span = error.span
    return (span is None, span.source if span else "", span.line if span else 0, span.column if span else 0, error.key)


# --- json_schema ---
# The configuration as a JSON Schema, so that editors complete keys and mark mistakes while one writes.
#
# It is made from the models, as the reference is, and takes every file that the program takes. The program refuses
# more:
# ranges of times and of sizes written as text, what keys say together, and what the machine has to say. `broker
# check`
# tells all of it.
#
#     python -m broker.config.settings config/broker.schema.json
#
# writes the file that the samples name in their first line. A test fails when the committed one differs.
#
# Source: JSON Schema, draft 2020-12; the directive `#:schema` is that of Taplo and of what is built on it.


DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WHEN = {
    Reload.LIVE: "A reload applies it at once.",
    Reload.RECONNECT: "A reload applies it to connections made from then on.",
    Reload.RESTART: "A change takes a restart.",
}


def json_schema() -> dict[str, Any]:
    """The schema, as plain values."""
    root: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "broker configuration",
        "description": "One instance of broker: what broker serve -c FILE reads.",
        "type": "object",
        "additionalProperties": False,
        "properties": {},
    }
    for path, settings in groupby(settings_of(Settings), key=lambda one: one.path[:-1]):
        section = _section(settings)
        if path[-1] == ANY_NAME:
            section = {"type": "object", "additionalProperties": section}
        root["properties"][path[0]] = section
    return root


def render_schema() -> str:
    """The text of the file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _section(settings: Iterable[Setting]) -> dict[str, Any]:
    settings = list(settings)
    section: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {str(one.path[-1]): _key(one) for one in settings},
    }
    required = [str(one.path[-1]) for one in settings if not one.default]
    return section | ({"required": required} if required else {})


def _key(one: Setting) -> dict[str, Any]:
    told = f"{one.description}\n\nAllowed: {one.kind.allowed}. {one.reason} {_WHEN[one.reload]}"
    described = one.kind.json_schema | {"description": told}
    if one.default and not one.default_is_said:
        described |= {"default": tomllib.loads(f"value = {one.default}")["value"]}
    return described


def main(arguments: list[str]) -> None:
    """Write the files named."""
    for argument in arguments:
        Path(argument).write_text(render_schema(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
