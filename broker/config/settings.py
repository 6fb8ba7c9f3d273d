"""
Every setting of an instance: its name, type, limits, default, what it is, and why.

This is the one page of numbers that an operator can change. Reference page, schema, environment variables, `broker
config` and reload are made from it. `load` loads and merges; `consistency` checks several keys together; checks that
need the machine are in `broker.catalog.check`. A key is here only if the program obeys it.

Files that people write (scripts, certificates) are relative to the directory of the configuration file, files that the
program writes (databases, admin socket) to `instance.state_dir`. `load_settings` makes all paths absolute.

`broker config schema` prints the JSON Schema that the samples name in their first line.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, field

from broker.config.schema import Reload, Section, SettingFinding, about, json_schema
from broker.config.toml import NO_POSITIONS, KeyPath, KeyPositions, dotted
from broker.config.values import (
    ConfigPath,
    DatabaseGuid,
    Duration,
    Kind,
    Listen,
    ListenAddress,
    OptionalConfigPath,
    OptionalListen,
    OptionalStatePath,
    Pattern,
    PeerAddress,
    Size,
    StatePath,
    kind,
    number_of,
    text,
)
from broker.errors import SettingError
from broker.protocol.layout import EARLY_WINDOW, HOP_LIMIT, MAX_FRAME_RANGE

HOUR = 3600
DAY = 24 * HOUR
DIALECT = "https://json-schema.org/draft/2020-12/schema"

HANDSHAKES = 256  # each takes some 50 KiB, and a millisecond of the processor
BYTES_MIN = 64 * 1024  # a second: what one read may bring is then paid for within four seconds
MESSAGES_MIN = 100  # a second: as above, of the smallest messages within twenty
POOL_SHARE = 50  # percent, where peers show certificates and nothing else is configured

Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096), text("word")]
GroupName: TypeAlias = Annotated[
    str, Meta(min_length=0, max_length=64), text("group", allowed='name or number of a group, "" = none')
]
_ROLES = Kind(
    "a table of roles",
    'write a table: [admin.roles] and below it "user:alice" = "operator"',
    allowed="table of holders, each with one of viewer, operator, admin",
)


def _host_name() -> str:
    """The name of the machine, made a valid one."""
    return "".join(filter(str.isprintable, os.uname().nodename))[:128] or "broker"


# --- the sections --------------------------------------------------------------------------------------------
# A key is a paragraph: its type and limits, what it is, why, and its default as the program has it.
# fmt: off


class InstanceSettings(Section, frozen=True):
    """`[instance]`: the name and the state directory of this instance."""

    name: Annotated[str, Meta(min_length=1, max_length=128), text("name"), about(
        "Name of this instance in logs, metrics and for its peers. It does not identify anything.",
        why="People know machines by their host names.", reload=Reload.RESTART, default="the host name",
    )] = field(default_factory=_host_name)
    state_dir: Annotated[ConfigPath, about(
        "Directory for the files of the instance: its identity, its databases, the admin socket. A relative path is "
        "relative to the configuration file's directory.",
        why="Linux distributions keep the state of services there.", reload=Reload.RESTART,
    )] = Path("/var/lib/broker")


class EndpointSettings(Section, frozen=True):
    """`[endpoint]`: what CREATE ENDPOINT ... FOR SERVICE_BROKER says."""

    listen: Annotated[tuple[Listen, ...], about(
        "Addresses to accept other instances on; port 0 is any free port, an empty list accepts none.",
        why="Every example of the original uses port 4022.",
    )] = (ListenAddress("0.0.0.0", 4022),)  # noqa: S104 - that is what it is for
    advertise: Annotated[tuple[PeerAddress, ...], about(
        "Addresses under which peers reach this instance, sent to each of them.",
        why="Behind NAT or a load balancer the listening address is not the one peers dial; nothing can be guessed.",
        reload=Reload.RECONNECT)] = ()
    reuse_port: Annotated[bool, about(
        "Whether other instances of the same user on this machine may listen on the addresses of `listen` too, if "
        "they also set this (SO_REUSEPORT). The system gives each new connection to one of them. For gateways: an "
        "instance with `[databases.NAME]` needs its own addresses.",
        why="Two instances that are started with one configuration by mistake find that the port is taken.",
        reload=Reload.RESTART)] = False
    encryption: Annotated[Literal["disabled", "supported", "required"], about(
        "Whether connections are encrypted, with TLS 1.3. `supported` accepts both kinds on one port, and dials in "
        "plain text only where a peer has no TLS. Plain text has to be set explicitly: an instance that listens where "
        "other machines reach it does not start without this key.",
        why="TLS needs a certificate, which has to be made. `supported` is for the time in which a network changes "
        "over: an attacker on the path can have the traffic in plain text.", reload=Reload.RECONNECT)] = "disabled"
    authentication: Annotated[Literal["none", "certificate"], about(
        "How a peer proves its identity. With `certificate` both sides show a certificate, which must be in `trust` or "
        "`peers`, or be issued by a CA in `trust`.",
        why="Certificates need TLS.")] = "none"
    certificate: Annotated[OptionalConfigPath, about(
        "PEM file with this instance's certificate, followed by those between it and its CA; needed for TLS. Relative "
        "to the configuration file's directory. Changed files are used within seconds, without a restart.",
        why="There is no default.", reload=Reload.RECONNECT)] = None
    private_key: Annotated[OptionalConfigPath, about(
        "PEM file with the key of `certificate`, without a password; needed for TLS. Relative to the configuration "
        "file's directory.",
        why="There is no default. Only the instance's user should be able to read it.", reload=Reload.RECONNECT)] = None
    trust: Annotated[tuple[Pattern, ...], about(
        "PEM files, each a path or a pattern as in `routes.files`, with CAs or with the certificates of peers "
        "themselves; this or `peers` is needed for `authentication`. Relative to the configuration file's directory.",
        why="Only you know whom to trust; the CAs of the web are not used.")] = ()
    peers: Annotated[tuple[Pattern, ...], about(
        "PEM files as in `trust`, with the certificates of peers themselves. A certificate that one of these "
        "has issued is not trusted, even if the issuer says that it is a CA. Relative to the configuration file's "
        "directory.",
        why="Off: one CA in `trust` is enough for most. `openssl req -x509` makes certificates that say CA:TRUE.")] = ()
    message_forwarding: Annotated[bool, about(
        "Whether messages to services of other instances are forwarded; if not, they are dropped.",
        why="Off as in the original: you decide which instance is a gateway.")] = False
    message_forward_size: Annotated[Size, Meta(ge=1 << 20, le=64 << 30), about(
        "Memory for messages that wait to be forwarded, headers included. A message that does not fit is dropped; its "
        "sender still has it.",
        why="Holds half a second of a 1 Gbit/s link. The original's 10 MB is a sixth of that; less than 1 MiB would "
        "not hold one frame of the default size.")] = 64 << 20
    message_forward_share: Annotated[int, Meta(ge=1, le=100), number_of("percent"), about(
        "Share of `message_forward_size` for the messages to one next hop, or to one mirrored pair whose principal is "
        "not known. A message above it is dropped; its sender still has it.",
        why="A next hop that is down leaves half of the memory to all others.")] = 50
    message_lifetime_max: Annotated[Duration, Meta(ge=1, le=DAY), about(
        "Longest time that a message waits here for its next hop, even if its time to live is longer. Then it is "
        "dropped as `expired here`; its sender still has it, and sends it again.",
        why="Senders send again at least every 64 s (`dialog.resend_cap`), so a longer wait only costs memory. Raise "
        "it where senders have a longer `resend_cap`.")] = 300.0
    backpressure: Annotated[Duration, Meta(ge=0, le=10), about(
        "Longest pause in reading a connection while the pool is full; after that its messages are dropped. 0s: they "
        "are dropped at once.",
        why="No message is lost while a next hop is slow for a moment. A next hop that is down does not delay messages "
        "to others for longer.")] = 0.25
    max_hops: Annotated[int, Meta(ge=1, le=255), number_of("hops"), about(
        "Hops after which this instance drops a message, whatever its sender allows.",
        why="Ends loops; no sensible network of gateways is sixteen deep. The frame has one byte for it.")] = HOP_LIMIT
    max_frame: Annotated[Size, Meta(ge=MAX_FRAME_RANGE[0], le=MAX_FRAME_RANGE[1]), about(
        "Largest frame this instance accepts, sent to each peer.",
        why="Sixteen fragments of the default size; every connection has a receive buffer of at least this.",
        reload=Reload.RECONNECT)] = 1 << 20
    heartbeat: Annotated[Duration, Meta(ge=0.1, le=HOUR), about(
        "Silence after which a PING is sent. A peer that is silent for three heartbeats is disconnected. Each peer is "
        "sent the value.",
        why="A dead peer is noticed in 45 s; shorter than the idle time-out of common firewalls.",
        reload=Reload.RECONNECT)] = 15.0
    handshake_timeout: Annotated[Duration, Meta(ge=0.1, le=600), about(
        "Time in which a new connection must complete its handshake.",
        why="Enough for several round trips around the globe; a longer time only helps unknown peers.",
        reload=Reload.RECONNECT)] = 10.0
    connect_timeout: Annotated[Duration, Meta(ge=0.1, le=600), about(
        "Time for an attempt to reach a peer, before the next address is tried.",
        why="Three lost SYN packets are retried within it.", reload=Reload.RECONNECT)] = 10.0


class RoutesSettings(Section, frozen=True):
    """`[routes]`: the instance's own route table, msdb.sys.routes."""

    files: Annotated[tuple[Pattern, ...], about(
        "Scripts of route statements for msdb, each a path or a pattern (`*`, `?`, `[...]`, `**`). They are read in "
        "the order given, those of one pattern by name. Relative to the configuration file's directory.",
        why="Without a script msdb holds AutoCreatedLocal only.")] = ()


class DatabaseSettings(Section, frozen=True):
    """`[databases.NAME]`: a database hosted here."""

    path: Annotated[StatePath, about(
        "The SQLite file, shared with the application, created at the first start. A relative path is relative to "
        "`instance.state_dir`.",
        why="There is no default.", reload=Reload.RESTART)]
    broker_instance: Annotated[DatabaseGuid, about(
        "GUID that addresses this database. Left out: made once and kept in the file.",
        why="Two databases with one GUID cannot both be here; a made one is unique.", reload=Reload.RESTART,
        default="made once")] = None
    create: Annotated[bool, about(
        "Make a new, empty database where this instance had one whose file is gone.",
        why="A missing file is more often a disk that is not mounted; `broker database create` makes a new file once.",
        reload=Reload.RESTART)] = False
    scripts: Annotated[tuple[Pattern, ...], about(
        "Scripts that create the queues, services and routes of this database; paths or patterns as in `routes.files`.",
        why="An application may create everything itself.")] = ()
    certificate: Annotated[OptionalConfigPath, about(
        "PEM file with the certificates of this database: first the one that signs, then those that messages are "
        "sealed to; needed for sealed dialogs. Relative to the configuration file's directory. Changed files are used "
        "within seconds, without a restart.",
        why="Without it dialogs are in clear, or anonymous from here.")] = None
    private_key: Annotated[OptionalConfigPath, about(
        "PEM file with the keys of `certificate`, without a password. Relative to the configuration file's directory.",
        why="There is no default. Only the instance's user should be able to read it.")] = None
    peers: Annotated[tuple[Pattern, ...], about(
        "PEM files with the certificates of remote databases, each a path or a pattern as in `routes.files`. Relative "
        "to the configuration file's directory.",
        why="A remote database is identified by its certificate itself; no CA is used.")] = ()
    mirroring: Annotated[Literal["off", "lock", "command"], about(
        "How the principal of this database is chosen: `off`: it is this instance, always; `lock`: the instance that "
        "has the lock of the shared file; `command`: the one that `role_command` names.",
        why="One instance for one file is the usual case.", reload=Reload.RESTART)] = "off"
    role_command: Annotated[tuple[Word, ...], about(
        'For `mirroring = "command"`: a program and its arguments, run without a shell, that prints `principal`, '
        "`principal EPOCH` or `mirror`.",
        why="The software that replicates the file knows which instance may write to it; there is no default.")] = ()
    role_interval: Annotated[Duration, Meta(ge=0.1, le=HOUR), about(
        "Pause between two runs of `role_command`.",
        why="A change of roles is noticed within a second or so, for a few milliseconds of the machine.")] = 1.0
    role_timeout: Annotated[Duration, Meta(ge=0.1, le=HOUR), about(
        "Time for which an answer of `role_command` holds, from the start of its run. A longer run is ended. A "
        "principal that was not confirmed for this time stops storing, sending and acknowledging, and steps down. Set "
        "it above `role_interval` and two runs together.",
        why="The principal survives some failed runs. One that is suspended, or cut off from the program that decides, "
        "steps down within this time.")] = 10.0


class DialogSettings(Section, frozen=True):
    """`[dialog]`: how conversations that begin or end here behave."""

    resend_first: Annotated[Duration, Meta(ge=0.05, le=HOUR), about(
        "Time without an acknowledgement after which a message is first sent again; it doubles from there.",
        why="Above any usual round trip, gateways and the 50 ms that an acknowledgement may wait included.")] = 1.0
    resend_cap: Annotated[Duration, Meta(ge=0.05, le=HOUR), about(
        "Longest time between two sendings of the same message.",
        why="Six doublings of 1s: an outage of a minute is over within two.")] = 64.0
    time_to_live: Annotated[Duration, Meta(ge=0.1, le=DAY), about(
        "Time to live of one copy of a message, all hops together.",
        why="Just under `resend_cap`, so that later one copy travels at a time.")] = 60.0
    hop_limit: Annotated[int, Meta(ge=1, le=255), number_of("hops"), about(
        "Maximum number of hops of a message sent here.",
        why="The same as `endpoint.max_hops`, which every gateway applies as well.")] = HOP_LIMIT
    fragment_size: Annotated[Size, Meta(ge=1 << 10, le=15 << 20), about(
        "Payload bytes of one fragment; a longer message is sent in several.",
        why="Small enough that a large message does not hold up others, large enough that headers cost under 1 %.",
        reload=Reload.RESTART)] = 64 << 10
    window: Annotated[int, Meta(ge=1, le=EARLY_WINDOW), number_of("frames"), about(
        "Maximum number of frames of one dialog that are sent and not yet acknowledged. The actual window adapts to "
        "the path.",
        why="With messages of 1 KiB it is 8 ms of a 1 Gbit/s link: several commits of the far side. A receiver drops "
        "frames beyond the upper bound as out of sequence.")] = 1024
    window_size: Annotated[Size, Meta(ge=1 << 10, le=32 << 20), about(
        "Maximum number of bytes of one dialog that are sent and not yet acknowledged. A single fragment is always "
        "sent.",
        why="It is 64 ms of a 1 Gbit/s link; eight such dialogs fill the 64 MiB that a database has loaded at most.",
    )] = 8 << 20


class AdminSettings(Section, frozen=True):
    """`[admin]`: how the instance is controlled, and by whom."""

    socket: Annotated[StatePath, about(
        "Unix socket of the admin API. A relative path is relative to `instance.state_dir`.",
        why="A user who may write in the state directory may control the instance. The system allows 107 bytes.",
    )] = Path("admin.sock")
    socket_group: Annotated[GroupName, about(
        "Group that may open the socket as well (mode 0660); its members may do what `roles` gives them. The "
        "directory of the socket has to let them through.",
        why="None: the socket is for the instance's user and root, with mode 0600.")] = ""
    listen: Annotated[OptionalListen, about(
        "TCP address of the admin API. Any other than loopback needs TLS, and a token or a certificate of every "
        "client.",
        why="Off: the socket is enough for the commands.")] = None
    loopback_role: Annotated[Literal["none", "viewer", "operator", "admin"], about(
        "The role of clients on loopback that show neither a token nor a certificate over TCP.",
        why="Nothing listens unless `listen` says so, and many machines have a single user. Where yours has more, set "
        "it to none.")] = "admin"
    certificate: Annotated[OptionalConfigPath, about(
        "PEM file with the certificate of `listen`, followed by those between it and its CA; with one the port "
        "speaks TLS 1.3 only. Relative to the configuration file's directory.",
        why="There is no default.")] = None
    private_key: Annotated[OptionalConfigPath, about(
        "PEM file with the key of `certificate`, without a password. Relative to the configuration file's directory.",
        why="There is no default. Only the instance's user should be able to read it.")] = None
    trust: Annotated[tuple[Pattern, ...], about(
        "PEM files, each a path or a pattern as in `routes.files`, with CAs or with the certificates of clients "
        "themselves. "
        "A certificate alone gives no role: `roles` says what its holder may do.",
        why="Off: tokens are enough for most.")] = ()
    peers: Annotated[tuple[Pattern, ...], about(
        "PEM files as in `trust`, with the certificates of clients themselves. A certificate that one of these has "
        "issued is not trusted, even if the issuer says that it is a CA.",
        why="Off: as for `trust`. `openssl req -x509` makes certificates that say CA:TRUE.")] = ()
    tokens: Annotated[StatePath, about(
        "File of token hashes, made by `broker token create`. A relative path is relative to `instance.state_dir`. A "
        "change counts from the next request on.",
        why="With the other files that only the instance's user may read.")] = Path("tokens")
    roles: Annotated[Mapping[str, Literal["viewer", "operator", "admin"]], kind(_ROLES), about(
        'Who may do what: `"user:NAME"`, `"group:NAME"`, `"token:NAME"` or `"certificate:CN=NAME"` = `"viewer"`, '
        '`"operator"` or `"admin"`. The highest of several counts; the role of a token here replaces the one that it '
        "was made with.",
        why="The instance's user and root are admin; all others have no role unless you give them one.")] = {}
    audit: Annotated[StatePath, about(
        "File that records every change through the admin API before it is made, one JSON object a line. A relative "
        "path is relative to `instance.state_dir`. Rotate it with logrotate.",
        why="A change that cannot be recorded is refused, so the file is where the instance writes anyway.",
    )] = Path("audit.jsonl")


class ObserveSettings(Section, frozen=True):
    """`[observe]`: what the instance reports about itself."""

    listen: Annotated[OptionalListen, about(
        "Address of `/metrics`, `/livez`, `/readyz` and `/startupz`.",
        why="A scraper on the same machine sees it, others do not.")] = ListenAddress("127.0.0.1", 9423)
    log_format: Annotated[Literal["auto", "json", "console"], about(
        "Form of log lines on standard error; `auto` is `console` on a terminal and `json` elsewhere.",
        why="Programs read JSON, people do not.")] = "auto"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], about(
        "Least severe level that is logged.",
        why="`info` logs changes of state only; nothing above `debug` is logged per message.")] = "info"


class JournalSettings(Section, frozen=True):
    """`[journal]`: a record of every visit of a message to this instance, in Parquet files."""

    directory: Annotated[OptionalStatePath, about(
        "Directory for the files of the journal, created if missing; needs `pip install 'service-broker[journal]'` (in "
        "a checkout `pip install '.[journal]'`). A relative path is relative to `instance.state_dir`. A reload takes "
        "another directory; starting or ending a journal needs a restart.",
        why="Off: a journal is data about the senders of messages, and takes disk space.")] = None
    sample: Annotated[float, Meta(ge=0, le=1), about(
        "Fraction of the dialogs whose messages are recorded, the same dialogs on every instance. Messages that are "
        "dropped, or carry the TRACE flag, are always recorded.",
        why="A complete journal answers every question, at about 25 bytes of disk for each visit. 0.01 is enough for "
        "the times of routes with thousands of messages a second.")] = 1.0
    buffer_size: Annotated[Size, Meta(ge=4 << 20, le=4 << 30), about(
        "Memory for records that are not in a file yet. A record that does not fit is dropped and counted; its "
        "message is not affected.",
        why="Holds 150,000 records: a busy gateway writes as many in the tenths of a second that a slow disk takes.",
        reload=Reload.RESTART)] = 32 << 20
    file_size: Annotated[Size, Meta(ge=1 << 20, le=4 << 30), about(
        "Size at which a file is complete and gets its name.",
        why="Readers spend more time on small files than on their rows; a larger file keeps one core busy for long.",
    )] = 64 << 20
    file_age: Annotated[Duration, Meta(ge=1, le=DAY), about(
        "Time after which a file is complete and gets its name, however small it is. A crash loses what was recorded "
        "since.",
        why="A hundred files a day and instance are read in seconds, and no reader waits longer than this.")] = 900.0
    keep_age: Annotated[Duration, Meta(ge=0, le=3650 * DAY), about(
        "Age at which files of this instance are removed; 0s: none is for its age.",
        why="Questions about capacity and incidents rarely reach back further than a month.")] = 30 * DAY
    keep_size: Annotated[Size, Meta(ge=0, le=1 << 50), about(
        "Size of all files of this instance above which the oldest are removed; 0: none is for their size.",
        why="Some 400 million visits; a journal must not fill the disk that the databases are on.")] = 10 << 30


class LimitSettings(Section, frozen=True):
    """`[limits]`: what peers may use; 0 = unlimited."""

    connections: Annotated[int, Meta(ge=0, le=1_000_000), number_of("connections"), about(
        "Connections to other instances at one time; never more than file descriptors allow, with some kept for the "
        "admin API, files and outgoing connections. At the limit, one that has not completed its handshake is closed "
        "for the next.",
        why="An idle connection takes about 16 KiB.")] = 10_000
    connections_per_peer: Annotated[int, Meta(ge=0, le=1_000_000), number_of("connections"), about(
        "Connections that one peer may open: one principal, or one IP address where peers show no certificate.",
        why="An instance opens one; many may share one NAT.")] = 1000
    reserved_connections: Annotated[int, Meta(ge=0, le=100_000), number_of("connections"), about(
        "How many of `connections` are kept for known peers: those with a certificate, and those at an address that a "
        "route names, that was dialled successfully, or that a certificate was shown from.",
        why="However many unknown peers connect, the neighbours of a usual gateway still can.")] = 100
    handshakes: Annotated[int, Meta(ge=1, le=65_536), number_of("handshakes"), about(
        "TLS handshakes with connecting peers at one time, a quarter of them with one unknown address. At the limit "
        "the oldest is ended.",
        why="Each takes some 50 KiB and a millisecond of the processor; an honest peer is done within milliseconds.",
    )] = HANDSHAKES
    bytes_per_second: Annotated[Size, Meta(ge=0, le=1 << 40), about(
        "Bytes that are read from one peer in a second. One that sends more is not read for a while, so that nothing "
        "is lost; `broker status` shows which limit slows a connection.",
        why="Off: how much a neighbour should send cannot be guessed. Less than 64KiB is refused: a single read may "
        "bring that much, and would pause the connection for too long.")] = 0
    messages_per_second: Annotated[int, Meta(ge=0, le=10_000_000), number_of("messages"), about(
        "Dialog frames (messages, fragments, acknowledgements) that are read from one peer in a second, as "
        "`bytes_per_second`.",
        why="Off, as above. Less than 100 is refused, for the same reason.")] = 0
    pool_share: Annotated[int, Meta(ge=0, le=100), number_of("percent"), about(
        "Share of `endpoint.message_forward_size` for the messages from one peer, to all next hops together. "
        "Near it the peer is not read for a while, as by `endpoint.backpressure`; above it its messages are dropped "
        "as for a full pool, and it still has them.",
        why="A peer that sends messages for next hops that are down leaves half of the pool to the others. Without "
        "certificates peers are known by their IP addresses, which many may share.",
        default=f'{POOL_SHARE} with `endpoint.authentication = "certificate"`, otherwise 0')] = 0


class DrainSettings(Section, frozen=True):
    """`[drain]`: what SIGTERM and `broker drain` begin."""

    announce: Annotated[Duration, Meta(ge=0, le=600), about(
        "Time for which a draining instance still accepts new connections, while `/readyz` answers that it is not "
        "ready. It does not wait if `/readyz` was not requested within the last minute.",
        why="Load balancers and orchestrators ask every few seconds, and then send no new clients.")] = 5.0
    timeout: Annotated[Duration, Meta(ge=0, le=HOUR), about(
        "Longest time of a drain, `announce` included. Messages that have not been sent by then are dropped; their "
        "senders still have them.",
        why="Kubernetes kills after 30 s, and closing connections and files takes a second or two.")] = 25.0


class TracingSettings(Section, frozen=True):
    """`[tracing]`: spans of OpenTelemetry for messages that carry a sampled trace."""

    enabled: Annotated[bool, about(
        "Make spans of messages with the TRACE flag and send them by OTLP over HTTP, as the `OTEL_*` variables of "
        "the environment say. This needs `pip install 'service-broker[otel]'` (in a checkout `pip install '.[otel]'`) "
        "and a `[journal]`, whose records they are made of.",
        why="Off: spans are data about the senders of messages, and need a collector.", reload=Reload.RESTART)] = False


# fmt: on
# --- all of them ---------------------------------------------------------------------------------------------


class Settings(Section, frozen=True):
    """
    The settings of one instance, made by `load_settings`.

    Two are equal when every value is, wherever the values came from.
    """

    instance: InstanceSettings = field(default_factory=InstanceSettings)
    endpoint: EndpointSettings = field(default_factory=EndpointSettings)
    routes: RoutesSettings = field(default_factory=RoutesSettings)
    databases: Mapping[str, DatabaseSettings] = field(default_factory=dict)
    dialog: DialogSettings = field(default_factory=DialogSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    observe: ObserveSettings = field(default_factory=ObserveSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)

    def placed(self, places: KeyPositions) -> Settings:
        """The same settings, with the place that each value came from."""
        copy = self.replace()
        vars(copy)["places"] = places
        return copy

    @property
    def config_option(self) -> str:
        """The option that names the configuration file in commands, after a blank; empty where there is no file."""
        source = self.places.source
        return "" if source is None or source.path is None else f" -c {shlex.quote(str(source.path))}"

    @property
    def places(self) -> KeyPositions:
        """Where each value came from."""
        places: KeyPositions = vars(self).get("places", NO_POSITIONS)
        return places

    def value_at(self, path: KeyPath) -> Any:
        """The value of a key."""
        found: Any = self
        for step in path:
            found = found[step] if isinstance(found, Mapping) else getattr(found, str(step))
        return found

    def error(self, path: KeyPath, problem: str, hint: str = "", *, of_key: bool = False) -> SettingError:
        """A report about one key, with the place its value (or, with `of_key`, the key itself) came from."""
        origin = self.places.origin(path)
        name = f"{dotted(path)} ({origin})" if origin else dotted(path)
        span = self.places.span(path, of_key=of_key)
        return SettingError(name, problem, span, hint, self.places.excerpt(span))

    def report(self, findings: Iterable[SettingFinding]) -> list[SettingError]:
        """Findings with their places, sorted by place."""
        return sorted((self.error(one.path, one.problem, one.hint) for one in findings), key=by_place)


def by_place(error: SettingError) -> tuple[bool, str, int, int, str]:
    """Sorting key of a report: the configuration file from top to bottom, then settings from elsewhere by name."""
    span = error.span
    return (span is None, span.source if span else "", span.line if span else 0, span.column if span else 0, error.key)


def with_pool_share(settings: Settings) -> Settings:
    """The same settings, with the default of `limits.pool_share`, which depends on `endpoint.authentication`."""
    if "pool_share" in settings.limits.given or settings.endpoint.authentication != "certificate":
        return settings
    return settings.replace(limits=settings.limits.replace(pool_share=POOL_SHARE))


def render_schema() -> str:
    """The text of the JSON Schema."""
    described = {
        "$schema": DIALECT,
        "title": "broker configuration",
        "description": "One instance of broker: what broker serve -c FILE reads.",
    }
    return json.dumps(described | json_schema(Settings), indent=2, ensure_ascii=False) + "\n"
