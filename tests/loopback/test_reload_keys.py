"""Every key of the configuration is changed in a running instance, and does what its class says; none is forgotten."""

import io
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from broker.config.schema import Reload, settings_of
from broker.config.settings import Settings
from broker.config.toml import KeyPath
from broker.daemon.instance import Instance, serve
from broker.observe.logs import close_logging, configure_logging
from tests.support.reloaded import File, Sections, everything

pytestmark = pytest.mark.usefixtures("guard")

Look = Callable[[Any], Any]

# What a script has made stays when the script is named no more.
STAYS = frozenset({"databases.orders.scripts", "routes.files"})


@dataclass(frozen=True)
class Case:
    """
    One key with another value.

    Shape: `change` of the file; `look` where the instance shows what it lives by, and `seen` there afterwards; both are
    None for what waits for a restart. `also` keys that cannot change without it.
    """

    change: Sections
    look: Look | None = None
    seen: Any = None
    also: frozenset[str] = field(default_factory=frozenset)


def one(name: str, value: Any, look: Look | None = None, seen: Any = None, **also: Any) -> tuple[str, Case]:
    """A case of one key, with others of its section that have to change with it."""
    section, _, key = name.rpartition(".")
    names = frozenset(f"{section}.{other}" for other in also)
    return name, Case({section: {key: value, **also}}, look, seen, names)


def orders(instance: Instance) -> Any:
    return instance.endpoints["orders"]


def role_source(instance: Instance) -> Any:
    return instance.databases._keepers["shared"].source


def meters(instance: Instance) -> Any:
    return instance.peers.admission.meters._limits


def plan(instance: Instance) -> Any:
    assert instance.journal is not None
    return instance.journal._plan


def services_of(instance: Instance) -> Any:
    return instance.catalog.databases["orders"].rows.services


def has_route_two(instance: Instance) -> bool:
    return bool(instance.forwarder.routing_context.table.routes("//two"))


def known_of(instance: Instance) -> int:
    return len(orders(instance).transmitter.frames.credentials.peers.known)


def log_renderer(_instance: Instance) -> str:
    return str(structlog.get_config()["processors"][-1].__class__.__name__)


def mode_of_socket(instance: Instance) -> str:
    return oct(instance.settings.admin.socket.stat().st_mode & 0o777)


def shown_to_peers(instance: Instance) -> Any:
    return instance.certificates.security.own.principal_name  # type: ignore[union-attr]


def signed_by(instance: Instance) -> Any:
    return orders(instance).transmitter.frames.credentials.own.signing.who.common_name


def cases(at: Path) -> dict[str, Case]:
    """For every key of the reference one other value; what only a restart applies is looked for nowhere."""
    two = {"certificate": str(at / "two.pem"), "private_key": str(at / "two.key")}
    trust = [str(at / "one.pem"), str(at / "two.pem")]
    other = {"certificate": str(at / "other-db.pem"), "private_key": str(at / "other-db.key")}
    db, shared = "databases.orders", "databases.shared"
    below = {"admin.socket", "admin.tokens", "admin.audit", f"{db}.path", f"{shared}.path"}
    of_keys = {
        "instance.state_dir": Case({"instance": {"state_dir": str(at / "else")}}, also=frozenset(below)),
        "endpoint.authentication": Case(
            {"endpoint": {"authentication": "none"}},
            lambda i: i.peers.handshaker.security.is_authenticating,
            False,
            frozenset({"limits.pool_share"}),  # whose default depends on it
        ),
    }
    alone = [
        one("instance.name", "far"),
        one("endpoint.listen", ["127.0.0.1:0", "127.0.0.1:0"], lambda i: len(i.listeners), 2),
        one("endpoint.advertise", ["tcp://a:1"], lambda i: i.peers.hello.addresses, ("tcp://a:1",)),
        one("endpoint.reuse_port", True),
        one("endpoint.encryption", "supported", lambda i: i.peers.handshaker.security.encryption.value, "supported"),
        one("endpoint.certificate", two["certificate"], shown_to_peers, "CN=two", private_key=two["private_key"]),
        one("endpoint.private_key", two["private_key"], shown_to_peers, "CN=two", certificate=two["certificate"]),
        one("endpoint.trust", trust, lambda i: len(i.peers.handshaker.security.trusted), 2),
        one("endpoint.peers", trust, lambda i: len(i.peers.handshaker.security.trusted), 2),
        one("endpoint.message_forwarding", True, lambda i: i.forwarder.routing_context.is_forwarding, True),
        one("endpoint.message_forward_size", "8MiB", lambda i: i.forwarder.pool.limit_bytes, 8 << 20),
        one("endpoint.message_forward_share", 20, lambda i: i.forwarder.pool.share_percent, 20),
        one("endpoint.message_lifetime_max", "9s", lambda i: i.forwarder.pool.hold_seconds, 9.0),
        one("endpoint.backpressure", "1s", lambda i: i.peers.backpressure._seconds, 1.0),
        one("endpoint.max_hops", 3, lambda i: i.forwarder.limits.max_hops, 3),
        one("endpoint.max_frame", "2MiB", lambda i: i.peers.hello.max_frame, 2 << 20),
        one("endpoint.heartbeat", "3s", lambda i: i.peers.hello.heartbeat_ms, 3000),
        one("endpoint.handshake_timeout", "3s", lambda i: i.peers.handshaker.timeout, 3.0),
        one("endpoint.connect_timeout", "3s", lambda i: i.peers.dialer.seconds, 3.0),
        one("routes.files", [str(at / "one.sql"), str(at / "two.sql")], has_route_two, True),
        one(f"{db}.path", "else.db"),
        one(f"{db}.broker_instance", "12345678-1234-1234-1234-123456789abc"),
        one(f"{db}.create", True),
        one(f"{db}.scripts", [str(at / "queue.sql")], lambda i: "//orders" in services_of(i), True),
        one(f"{db}.certificate", other["certificate"], signed_by, "other", private_key=other["private_key"]),
        one(f"{db}.private_key", other["private_key"], signed_by, "other", certificate=other["certificate"]),
        one(f"{db}.peers", [str(at / f"{one}-db.pem") for one in ("billing", "other")], known_of, 2),
        one(f"{db}.mirroring", "lock"),
        one(f"{shared}.role_command", ["echo", " mirror"], lambda i: role_source(i)._command, ("echo", " mirror")),
        one(f"{shared}.role_interval", "3s", lambda i: role_source(i).interval, 3.0),
        one(f"{shared}.role_timeout", "30s", lambda i: role_source(i).hold, 30.0),
        *dialog_cases(),
        *admin_cases(at),
        one("observe.listen", "", lambda i: i.admin.observe_address is None, True),
        one("observe.log_format", "console", log_renderer, "ConsoleRenderer"),
        one("observe.log_level", "warning", lambda _: logging.getLogger().level, 30),
        one("journal.directory", str(at / "else"), lambda i: i.journal.status()["directory"], str(at / "else")),
        one("journal.sample", 0.5, lambda i: i.journal.ring.limit, 1 << 52),
        one("journal.buffer_size", "8MiB"),
        one("journal.file_size", "8MiB", lambda i: plan(i).file_size, 8 << 20),
        one("journal.file_age", "1m", lambda i: plan(i).file_age, 60.0),
        one("journal.keep_age", "1d", lambda i: plan(i).keep_age, 86400.0),
        one("journal.keep_size", "1GiB", lambda i: plan(i).keep_size, 1 << 30),
        one("limits.connections", 300, lambda i: i.peers.admission.most, 300),
        one("limits.connections_per_peer", 3, lambda i: i.peers.admission._limits.connections_per_peer, 3),
        one("limits.reserved_connections", 7, lambda i: i.peers.admission._reserved, 7),
        one("limits.handshakes", 7, lambda i: i.peers.handshaker.handshakes.most, 7),
        one("limits.bytes_per_second", "1MiB", lambda i: meters(i).bytes_per_second, 1 << 20),
        one("limits.messages_per_second", 200, lambda i: meters(i).messages_per_second, 200),
        one("limits.pool_share", 20, lambda i: meters(i).pool_share, 20),
        one("tracing.enabled", True),
        one("drain.announce", "1s", lambda i: i.drain._settings_of().announce, 1.0),
        one("drain.timeout", "9s", lambda i: i.drain._settings_of().timeout, 9.0),
    ]
    return of_keys | dict(alone)


def dialog_cases() -> list[tuple[str, Case]]:
    def transmitter(instance: Instance) -> Any:
        return orders(instance).transmitter

    return [
        one("dialog.resend_first", "2s", lambda i: transmitter(i).tuning.backoff.first, 2.0),
        one("dialog.resend_cap", "90s", lambda i: transmitter(i).tuning.backoff.cap, 90.0),
        one("dialog.time_to_live", "30s", lambda i: transmitter(i).frames.travel.time_to_live, 30_000),
        one("dialog.hop_limit", 5, lambda i: transmitter(i).frames.travel.hop_limit, 5),
        one("dialog.fragment_size", "32KiB"),
        one("dialog.window", 100, lambda i: transmitter(i).tuning.window, 100),
        one("dialog.window_size", "1MiB", lambda i: transmitter(i).tuning.window_bytes, 1 << 20),
    ]


def admin_cases(at: Path) -> list[tuple[str, Case]]:
    two = {"certificate": str(at / "two.pem"), "private_key": str(at / "two.key")}

    def door(instance: Instance) -> Any:
        return instance.admin._parts.door

    def shown(instance: Instance) -> str:
        """Who the admin port proves to be, now."""
        assert instance.admin._in_use.ways.security is not None
        return str(instance.admin._in_use.ways.security.own.principal_name)  # type: ignore[union-attr]

    return [
        one("admin.socket", str(at / "steer"), lambda _: (at / "steer").is_socket(), True),
        one("admin.socket_group", str(os.getgid()), mode_of_socket, "0o660"),
        one("admin.listen", "", lambda i: i.admin.admin_address is None, True),
        one("admin.loopback_role", "viewer", lambda i: door(i)._of_everybody.word, "viewer"),
        one("admin.certificate", two["certificate"], shown, "CN=two", private_key=two["private_key"]),
        one("admin.private_key", two["private_key"], shown, "CN=two", certificate=two["certificate"]),
        one("admin.trust", [], lambda i: i.admin._in_use.ways.security.server.verify_mode, ssl.CERT_NONE),
        one("admin.peers", [two["certificate"]], lambda i: len(i.admin._in_use.ways.security.trusted), 2),
        one("admin.tokens", str(at / "tokens"), lambda i: door(i)._tokens._path, at / "tokens"),
        one("admin.roles", {"user:4711": "operator"}, lambda i: [*door(i)._holders.users], [4711]),
        one("admin.audit", str(at / "audit"), lambda i: i.admin._parts.audit.path, at / "audit"),
    ]


@pytest.fixture
def logging_of_a_process() -> Iterator[None]:
    """As a daemon has it, and put back."""
    level, handlers = logging.getLogger().level, logging.getLogger().handlers[:]
    before = structlog.get_config()
    configure_logging(log_format="json", level="info", instance="near", stream=io.StringIO())
    yield
    close_logging()
    structlog.configure(**before)
    logging.getLogger().setLevel(level)
    logging.getLogger().handlers[:] = handlers


async def result_of(case: Case, key: str, effect: Reload, instance: Instance, file: File) -> str:
    """What is wrong with one key; empty when it does what its class says."""
    before = case.look(instance) if case.look is not None else None
    in_force = instance.settings
    done = await file.reload(instance, case.change)
    effects = {change.key: change.effect for change in done.settings}
    seen = case.look(instance) if case.look is not None else None
    waits = list(instance.reloads.waiting)
    has_nothing_changed = instance.settings == in_force
    back = await file.reload(instance)
    after = case.look(instance) if case.look is not None else None
    if {key, *case.also} - {*effects} or {*effects} - {key, *case.also}:
        return f"changed: {[*effects]}"
    if effects[key] != effect:
        return f"is {effects[key]}"
    if effect is Reload.RESTART:
        return "" if key in waits and has_nothing_changed and not back.waiting else f"holds, and waits: {waits}"
    if case.look is None or seen != case.seen or before == seen or (before != after and key not in STAYS):
        return f"before {before!r}, then {seen!r}, wanted {case.seen!r}, and back {after!r}"
    return ""


def key_of(path: KeyPath, key: str) -> bool:
    """Whether a key is one of this path of the reference."""
    steps = key.split(".")
    return len(steps) == len(path) and all(step in ("NAME", said) for step, said in zip(path, steps, strict=True))


@pytest.mark.usefixtures("logging_of_a_process")
@pytest.mark.promise("A reload fails")
async def test_every_key_does_what_its_class_says(tmp_path: Path) -> None:
    """Each is changed and changed back; what is seen is what the instance lives by, and not what the file says."""
    file = everything(tmp_path)
    reference = {path.path: path.reload for path in settings_of(Settings)}
    table = cases(tmp_path)
    wrong: dict[str, str] = {}

    async with serve(file.settings()) as instance:
        for key, case in table.items():
            [effect] = [effect for path, effect in reference.items() if key_of(path, key)]
            found = await result_of(case, key, effect, instance, file)
            if found:
                wrong[key] = found

    assert {} == wrong
    told = {path for path in reference if any(key_of(path, key) for key in table)}
    assert told == {*reference}
