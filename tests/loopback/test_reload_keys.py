"""Every key of the configuration is changed in a running instance, and does what its class says; none is forgotten."""

from __future__ import annotations

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


def one(section: str, key: str, value: Any, look: Look | None = None, seen: Any = None, **also: Any) -> Case:
    """A case of one key, with others of its section that have to change with it."""
    names = frozenset(f"{section}.{name}" for name in also)
    return Case({section: {key: value, **also}}, look, seen, names)


def orders(instance: Instance) -> Any:
    return instance.endpoints["orders"]


def role_source(instance: Instance) -> Any:
    return instance.databases._keepers["shared"].source


def meters(instance: Instance) -> Any:
    return instance.peers.admission.meters._limits


def plan(instance: Instance) -> Any:
    assert instance.journal is not None
    return instance.journal._plan


def cases(at: Path) -> dict[str, Case]:
    """For every key of the reference one other value; what only a restart applies is looked for nowhere."""
    two = {"certificate": str(at / "two.pem"), "private_key": str(at / "two.key")}
    trust = [str(at / "one.pem"), str(at / "two.pem")]
    other = {"certificate": str(at / "other-db.pem"), "private_key": str(at / "other-db.key")}
    db, shared = "databases.orders", "databases.shared"
    return {
        "instance.name": one("instance", "name", "far"),
        "instance.state_dir": Case(
            {"instance": {"state_dir": str(at / "else")}},
            also=frozenset({"admin.socket", "admin.tokens", "admin.audit", f"{db}.path", f"{shared}.path"}),
        ),
        "endpoint.listen": one("endpoint", "listen", ["127.0.0.1:0", "127.0.0.1:0"], lambda i: len(i.listeners), 2),
        "endpoint.advertise": one(
            "endpoint", "advertise", ["tcp://a:1"], lambda i: i.peers.hello.addresses, ("tcp://a:1",)
        ),
        "endpoint.reuse_port": one("endpoint", "reuse_port", True),
        "endpoint.encryption": one(
            "endpoint", "encryption", "supported", lambda i: i.peers.handshaker.security.encryption.value, "supported"
        ),
        "endpoint.authentication": Case(
            {"endpoint": {"authentication": "none"}},
            lambda i: (i.peers.handshaker.security.is_authenticating, meters(i).pool_share),
            (False, 0),
            frozenset({"limits.pool_share"}),  # whose default depends on it
        ),
        "endpoint.certificate": one(
            "endpoint", **_first(two), look=lambda i: i.certificates.security.own.principal_name, seen="CN=two"
        ),
        "endpoint.private_key": one(
            "endpoint", **_second(two), look=lambda i: i.certificates.security.own.principal_name, seen="CN=two"
        ),
        "endpoint.trust": one("endpoint", "trust", trust, lambda i: len(i.peers.handshaker.security.trusted), 2),
        "endpoint.peers": one("endpoint", "peers", trust, lambda i: len(i.peers.handshaker.security.trusted), 2),
        "endpoint.message_forwarding": one(
            "endpoint", "message_forwarding", True, lambda i: i.forwarder.routing_context.is_forwarding, True
        ),
        "endpoint.message_forward_size": one(
            "endpoint", "message_forward_size", "8MiB", lambda i: i.forwarder.pool.limit_bytes, 8 << 20
        ),
        "endpoint.message_forward_share": one(
            "endpoint", "message_forward_share", 20, lambda i: i.forwarder.pool.share_percent, 20
        ),
        "endpoint.message_lifetime_max": one(
            "endpoint", "message_lifetime_max", "9s", lambda i: i.forwarder.pool.hold_seconds, 9.0
        ),
        "endpoint.backpressure": one("endpoint", "backpressure", "1s", lambda i: i.peers.backpressure._seconds, 1.0),
        "endpoint.max_hops": one("endpoint", "max_hops", 3, lambda i: i.forwarder.limits.max_hops, 3),
        "endpoint.max_frame": one(
            "endpoint",
            "max_frame",
            "2MiB",
            lambda i: (i.peers.hello.max_frame, i.forwarder.limits.max_frame),
            (2 << 20, 2 << 20),
        ),
        "endpoint.heartbeat": one("endpoint", "heartbeat", "3s", lambda i: i.peers.hello.heartbeat_ms, 3000),
        "endpoint.handshake_timeout": one(
            "endpoint",
            "handshake_timeout",
            "3s",
            lambda i: (i.peers.timeouts.handshake, i.peers.handshaker.timeout),
            (3.0, 3.0),
        ),
        "endpoint.connect_timeout": one("endpoint", "connect_timeout", "3s", lambda i: i.peers.dialer.seconds, 3.0),
        "routes.files": one(
            "routes",
            "files",
            [str(at / "one.sql"), str(at / "two.sql")],
            lambda i: bool(i.forwarder.routing_context.table.routes("//two")),
            True,
        ),
        f"{db}.path": one(db, "path", "else.db"),
        f"{db}.broker_instance": one(db, "broker_instance", "12345678-1234-1234-1234-123456789abc"),
        f"{db}.scripts": one(
            db,
            "scripts",
            [str(at / "queue.sql")],
            lambda i: "//orders" in i.catalog.databases["orders"].rows.services,
            True,
        ),
        f"{db}.certificate": one(
            db,
            **_first(other),
            look=lambda i: orders(i).transmitter.frames.credentials.own.signing.who.common_name,
            seen="other",
        ),
        f"{db}.private_key": one(
            db,
            **_second(other),
            look=lambda i: orders(i).transmitter.frames.credentials.own.signing.who.common_name,
            seen="other",
        ),
        f"{db}.peers": one(
            db,
            "peers",
            [str(at / "billing-db.pem"), str(at / "other-db.pem")],
            lambda i: len(orders(i).transmitter.frames.credentials.peers.known),
            2,
        ),
        f"{db}.mirroring": one(db, "mirroring", "lock"),
        f"{shared}.role_command": one(
            shared, "role_command", ["echo", " mirror"], lambda i: role_source(i)._command, ("echo", " mirror")
        ),
        f"{shared}.role_interval": one(shared, "role_interval", "3s", lambda i: role_source(i).interval, 3.0),
        f"{shared}.role_timeout": one(shared, "role_timeout", "30s", lambda i: role_source(i).hold, 30.0),
        **dialog_cases(),
        **admin_cases(at),
        "observe.listen": one("observe", "listen", "", lambda i: i.admin.observe_address is None, True),
        "observe.log_format": one(
            "observe",
            "log_format",
            "console",
            lambda _: structlog.get_config()["processors"][-1].__class__.__name__,
            "ConsoleRenderer",
        ),
        "observe.log_level": one("observe", "log_level", "warning", lambda _: logging.getLogger().level, 30),
        "journal.directory": one(
            "journal", "directory", str(at / "else"), lambda i: i.journal.status()["directory"], str(at / "else")
        ),
        "journal.sample": one(
            "journal", "sample", 0.5, lambda i: (i.journal.ring.limit, plan(i).sample), (1 << 52, 0.5)
        ),
        "journal.buffer_size": one("journal", "buffer_size", "8MiB"),
        "journal.file_size": one("journal", "file_size", "8MiB", lambda i: plan(i).file_bytes, 8 << 20),
        "journal.file_age": one("journal", "file_age", "1m", lambda i: plan(i).file_seconds, 60.0),
        "journal.keep_age": one("journal", "keep_age", "1d", lambda i: plan(i).keep_seconds, 86400.0),
        "journal.keep_size": one("journal", "keep_size", "1GiB", lambda i: plan(i).keep_bytes, 1 << 30),
        "limits.connections": one("limits", "connections", 300, lambda i: i.peers.admission.most, 300),
        "limits.connections_per_peer": one(
            "limits", "connections_per_peer", 3, lambda i: i.peers.admission._limits.connections_per_peer, 3
        ),
        "limits.reserved_connections": one(
            "limits", "reserved_connections", 7, lambda i: i.peers.admission._reserved, 7
        ),
        "limits.handshakes": one("limits", "handshakes", 7, lambda i: i.peers.handshaker.handshakes.most, 7),
        "limits.bytes_per_second": one(
            "limits", "bytes_per_second", "1MiB", lambda i: meters(i).bytes_per_second, 1 << 20
        ),
        "limits.messages_per_second": one(
            "limits", "messages_per_second", 200, lambda i: meters(i).messages_per_second, 200
        ),
        "limits.pool_share": one("limits", "pool_share", 20, lambda i: meters(i).pool_share, 20),
        "tracing.enabled": one("tracing", "enabled", True),
        "drain.announce": one("drain", "announce", "1s", lambda i: i.drain._bounds_of().announce, 1.0),
        "drain.timeout": one("drain", "timeout", "9s", lambda i: i.drain._bounds_of().timeout, 9.0),
    }


def dialog_cases() -> dict[str, Case]:
    def transmitter(instance: Instance) -> Any:
        return orders(instance).transmitter

    return {
        "dialog.resend_first": one("dialog", "resend_first", "2s", lambda i: transmitter(i).tuning.backoff.first, 2.0),
        "dialog.resend_cap": one("dialog", "resend_cap", "90s", lambda i: transmitter(i).tuning.backoff.cap, 90.0),
        "dialog.time_to_live": one(
            "dialog", "time_to_live", "30s", lambda i: transmitter(i).frames.travel.time_to_live, 30_000
        ),
        "dialog.hop_limit": one("dialog", "hop_limit", 5, lambda i: transmitter(i).frames.travel.hop_limit, 5),
        "dialog.fragment_size": one("dialog", "fragment_size", "32KiB"),
        "dialog.window": one("dialog", "window", 100, lambda i: transmitter(i).tuning.window, 100),
        "dialog.window_size": one(
            "dialog", "window_size", "1MiB", lambda i: transmitter(i).tuning.window_bytes, 1 << 20
        ),
    }


def admin_cases(at: Path) -> dict[str, Case]:
    two = {"certificate": str(at / "two.pem"), "private_key": str(at / "two.key")}

    def door(instance: Instance) -> Any:
        return instance.admin._parts.door

    def shown(instance: Instance) -> str:
        """Who the admin port proves to be, now."""
        assert instance.admin._ways.security is not None
        return str(instance.admin._ways.security.own.principal_name)  # type: ignore[union-attr]

    return {
        "admin.socket": one(
            "admin",
            "socket",
            str(at / "steer"),
            lambda i: ((at / "steer").is_socket(), (i.settings.instance.state_dir / "admin.sock").exists()),
            (True, False),
        ),
        "admin.socket_group": one(
            "admin",
            "socket_group",
            str(os.getgid()),
            lambda i: oct(i.settings.admin.socket.stat().st_mode & 0o777),
            "0o660",
        ),
        "admin.listen": one("admin", "listen", "", lambda i: i.admin.admin_address is None, True),
        "admin.loopback_role": one("admin", "loopback_role", "viewer", lambda i: door(i)._of_everybody.word, "viewer"),
        "admin.certificate": one("admin", **_first(two), look=shown, seen="CN=two"),
        "admin.private_key": one("admin", **_second(two), look=shown, seen="CN=two"),
        "admin.trust": one("admin", "trust", [], lambda i: i.admin._ways.security.server.verify_mode, ssl.CERT_NONE),
        "admin.peers": one("admin", "peers", [two["certificate"]], lambda i: len(i.admin._ways.security.trusted), 2),
        "admin.tokens": one("admin", "tokens", str(at / "tokens"), lambda i: door(i)._tokens._path, at / "tokens"),
        "admin.roles": one("admin", "roles", {"user:4711": "operator"}, lambda i: [*door(i)._holders.users], [4711]),
        "admin.audit": one("admin", "audit", str(at / "audit"), lambda i: i.admin.audit.path, at / "audit"),
    }


def _first(pair: dict[str, str]) -> dict[str, Any]:
    return {"key": "certificate", "value": pair["certificate"], "private_key": pair["private_key"]}


def _second(pair: dict[str, str]) -> dict[str, Any]:
    return {"key": "private_key", "value": pair["private_key"], "certificate": pair["certificate"]}


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
    effects = {change.key: change.effect for change in done.changes}
    seen = case.look(instance) if case.look is not None else None
    waits = list(instance.reloads.waiting)
    has_nothing_changed = instance.settings == in_force
    back = await file.reload(instance)
    after = case.look(instance) if case.look is not None else None
    if {key, *case.also} - {*effects} or {*effects} - {key, *case.also}:
        return f"changed: {[*effects]}"
    if effects[key] is not effect:
        return f"is {effects[key]}"
    if effect is Reload.RESTART:
        return "" if key in waits and has_nothing_changed and not back.waiting else f"holds, and waits: {waits}"
    if (case.look is None) or (seen != case.seen) or (before == seen) or (before != after and key not in STAYS):
        return f"before {before!r}, then {seen!r}, wanted {case.seen!r}, and back {after!r}"
    return ""


def key_of(path: KeyPath, key: str) -> bool:
    """Whether a key is one of this path of the reference."""
    steps = key.split(".")
    return len(steps) == len(path) and all(step in ("NAME", said) for step, said in zip(path, steps, strict=True))


@pytest.mark.usefixtures("logging_of_a_process")
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
