"""
What a calendar does to a configuration: which certificates are not valid on some day, what breaks then, and for whom.

The dates of what the settings name are looked at, and of those that peers have shown; nothing is sent and nobody is
asked. What a newer certificate of the same subject takes over breaks nothing. Trust that was over before today, such as
the forgotten authority in a bundle, is told and not counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from broker.control.certificate_file import read_certificates
from broker.control.certificate_use import trusted_files
from broker.control.config import DatabaseSettings, Settings
from broker.security.described import Described, Use, describe, is_signed_by, may_issue
from broker.security.principal import Who, parse_principal
from broker.store.database import open_watch
from broker.store.permission import bindings


@dataclass(frozen=True, slots=True)
class Break:
    """
    One certificate that is not valid on the day.

    Shape: `setting` that names it, or "connected now"; `path` of its file, empty for a peer that is connected; `what`
    then fails, a sentence; `whom` it concerns, as far as that is known; `is_old` when it was so before today.
    """

    setting: str
    path: str
    certificate: Described
    what: str
    whom: tuple[str, ...] = ()
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that is connected. Shape: `fingerprint` "sha256:..." of its certificate, `ends` UTC."""

    name: str
    principal: str
    fingerprint: str
    ends: datetime


@dataclass(frozen=True, slots=True)
class _Day:
    now: datetime
    at: datetime

    def is_over(self, one: Described) -> bool:
        return not one.is_valid_at(self.at)

    def is_old(self, one: Described) -> bool:
        return one.ends <= self.now


def drill(settings: Settings, peers: Iterable[Peer], *, now: datetime, at: datetime) -> list[Break]:
    """
    What breaks at a moment, the first to end first.

    Args:
        settings: With absolute paths, as `load_settings` gives them.
        peers: Those that are connected.
        now: UTC.
        at: UTC; the moment that is played.

    Raises:
        CertificateUnusableError: a file that a setting names cannot be read.
    """
    day = _Day(now, at)
    found = [*_endpoint(settings, day), *_admin(settings, day)]
    for name, database in settings.databases.items():
        found += _database(name, database, day)
    found = [*_with_peers(found, peers, day)]
    return sorted(found, key=lambda one: (one.certificate.ends, one.setting, one.path))


# --- links --------------------------------------------------------------------------------------------------


def _endpoint(settings: Settings, day: _Day) -> Iterator[Break]:
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled":
        return
    chain = [] if endpoint.certificate is None else read_certificates(endpoint.certificate)
    for number, own in enumerate(map(describe, chain)):
        if day.is_over(own):
            what = (
                f"peers that trust only {own.issuer} refuse this instance"
                if number
                else "every peer refuses this instance"
            )
            yield Break("endpoint.certificate", str(endpoint.certificate), own, what)
    if endpoint.authentication == "none":
        return
    named = [(key, path) for key in ("trust", "peers") for path in trusted_files(getattr(endpoint, key))]
    trusted = [(key, path, one) for key, path in named for one in read_certificates(path)]
    for key, path, one in trusted:
        said = describe(one)
        if day.is_over(said) and not _has_heir(said, (describe(other) for *_, other in trusted), day):
            is_authority = key == "trust" and may_issue(one)
            what = _trust_sentence(is_authority=is_authority, is_own=bool(chain) and is_signed_by(chain[0], one))
            yield Break(f"endpoint.{key}", str(path), said, what, is_old=day.is_old(said))


def _trust_sentence(*, is_authority: bool, is_own: bool) -> str:
    if not is_authority:
        return "the peer that shows it is refused"
    return "every peer that it vouches for is refused" + (", and refuses this instance" if is_own else "")


def _has_heir(said: Described, others: Iterable[Described], day: _Day) -> bool:
    """Whether one of the same subject, for the same use, is valid on the day."""
    return any(one.subject == said.subject and one.use is said.use and not day.is_over(one) for one in others)


def _admin(settings: Settings, day: _Day) -> Iterator[Break]:
    admin = settings.admin
    own = [] if admin.certificate is None else [admin.certificate]
    for setting, paths, what in (
        ("admin.certificate", own, "whoever steers this instance from elsewhere refuses its admin port"),
        ("admin.trust", trusted_files(admin.trust), "whoever shows a certificate of it to the admin port is refused"),
        ("admin.peers", trusted_files(admin.peers), "the client that shows it to the admin port is refused"),
    ):
        for path in paths:
            for said in map(describe, read_certificates(path)):
                if day.is_over(said):
                    yield Break(setting, str(path), said, what, is_old=day.is_old(said))


# --- dialogs ------------------------------------------------------------------------------------------------


def _database(name: str, database: DatabaseSettings, day: _Day) -> Iterator[Break]:
    own = _described(database.certificate)
    sentences = {
        Use.SIGNING: "what this database begins under a binding that is not anonymous fails, and no peer believes it",
        Use.SEALING: "nobody can seal to this database: dialogs with it fail",
        Use.AUTHORITY: "",
        Use.TRANSPORT: "what this database begins under a binding that is not anonymous fails, and no peer believes it",
    }
    for said in own:
        if sentences[said.use] and day.is_over(said) and not _has_heir(said, own, day):
            yield Break(f"databases.{name}.certificate", str(database.certificate), said, sentences[said.use])
    listed = [(path, said) for path in trusted_files(database.peers) for said in _described(path)]
    bindings = _bindings(database.path)
    for path, said in listed:
        if said.use is not Use.AUTHORITY and day.is_over(said) and not _has_heir(said, (one for _, one in listed), day):
            what = "nothing can be sealed to it" if said.use is Use.SEALING else "what it signs is not believed"
            whom = tuple(service for service, principal in bindings if _covers(principal, said))
            yield Break(f"databases.{name}.peers", str(path), said, what, whom, is_old=day.is_old(said))


def _described(path: Path | None) -> list[Described]:
    return [] if path is None else [describe(one) for one in read_certificates(path)]


def _bindings(path: Path) -> list[tuple[str, str]]:
    """Services and principals of a database's bindings; none where there is no file yet, or one of another release."""
    if not path.is_file():
        return []
    try:
        with closing(open_watch(path)) as db:
            return sorted((one.remote_service_name, one.remote_principal) for one in bindings(db).values())
    except sqlite3.Error:
        return []


def _covers(principal: str, said: Described) -> bool:
    who = Who(said.subject, said.common_name, said.uris, said.fingerprint.removeprefix("sha256:"))
    try:
        return parse_principal(principal).covers(who)
    except ValueError:
        return False


# --- who is connected ---------------------------------------------------------------------------------------


def connected_peers(rows: Iterable[Mapping[str, Any]]) -> list[Peer]:
    """Those of sys.dm_broker_connections that have shown a certificate, each once."""
    found = {
        row["peer_certificate_id"]: Peer(
            name=f"{row['peer_name'] or '?'} ({row['peer_address']})",
            principal=row["principal_name"],
            fingerprint=f"sha256:{row['peer_certificate_id']}",
            ends=_instant(row["peer_certificate_expiry_date"]),
        )
        for row in rows
        if row["peer_certificate_id"] is not None
    }
    return list(found.values())


def _instant(text: str) -> datetime:
    """An instant as views tell it: UTC, without a zone."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _with_peers(found: list[Break], peers: Iterable[Peer], day: _Day) -> Iterator[Break]:
    """Named where their certificate is found already, else with a line of their own."""
    over = {peer.fingerprint: peer for peer in peers if peer.ends <= day.at}
    for one in found:
        peer = over.pop(one.certificate.fingerprint, None)
        yield one if peer is None else replace(one, whom=(*one.whom, peer.name))
    for peer in over.values():
        said = Described(Use.TRANSPORT, peer.principal, "", "", (), (), peer.fingerprint, day.now, peer.ends, key="")
        yield Break("connected now", "", said, "the peer that shows it is refused", (peer.name,))
