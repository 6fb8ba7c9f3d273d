"""
Every setting of one instance: its name, type, range, default, and why.

This is the one page of numbers an operator can turn (those of the journal are in `journal.py`); the reference page is
made from it. A model here is a value: loading and merging is `load.py`, checks across keys are `consistency.py`, what
has to look outside is `check.py`. A key stands here only when the program obeys it.

Paths: what people write (scripts, certificates) is relative to the configuration file's directory, what the program
writes (databases, admin socket) is relative to `instance.state_dir`. `load_settings` hands out absolute paths only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from uuid import UUID

from broker.control import value
from broker.control.administration import AdminSettings
from broker.control.consistency import unwise_settings
from broker.control.draining import DrainSettings
from broker.control.finding import SettingFinding
from broker.control.journal import JournalSettings
from broker.control.limits import LimitSettings
from broker.control.listen import ListenAddress
from broker.control.place import KeyPath, KeyPositions, dotted
from broker.control.section import Section
from broker.control.setting import Reload, section, sections, setting
from broker.control.tracing import TracingSettings
from broker.conversation.frames import EARLY_WINDOW
from broker.errors import SettingError
from broker.protocol.layout import HOP_LIMIT, MAX_FRAME_RANGE
from broker.routing.address import NetworkAddress

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

    def warnings(self) -> list[SettingError]:
        """What is legal but unwise, sorted by place."""
        return self.report(unwise_settings(self))

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
