"""
Identities: the certificates and known peers of databases, loaded at the start and when their files change.

Files are polled every few seconds, by name; those that are still being written are left alone until two polls find the
same. Files that cannot be used leave everything as it was, with a warning in the log, with one exception: a peer that
is no longer in any file is no longer known.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from broker.errors import BrokerError, CertificateUnusableError, SettingError
from broker.net.certificates import FileMarks, marks_of, trusted_files
from broker.security.certificate_files import read_file
from broker.security.identity import KnownPeers, OwnIdentity, Signing, parse_own, parse_peers
from broker.security.session import DialogCredentials

if TYPE_CHECKING:
    from broker.config.settings import DatabaseSettings, Settings

POLL_SECONDS = 2.0

log = structlog.get_logger(__name__)

Use = Callable[[str, DialogCredentials], Awaitable[None]]
"""Have a database use what was loaded for it."""


def credentials_of(settings: Settings, name: str) -> DialogCredentials:
    """
    Load the credentials of a database for dialog security, as its settings say. Blocking.

    Raises:
        SettingError: a file that cannot be used, under the setting that names it.
    """
    database = settings.databases.get(name)
    if database is None:
        return DialogCredentials()
    return DialogCredentials(_own(settings, name, database), KnownPeers(_known(settings, name, database)))


def identity_errors(settings: Settings) -> list[SettingError]:
    """Return the errors that keep the databases from using their files: the first of each database, as at the start."""
    errors: list[SettingError] = []
    for name in settings.databases:
        try:
            credentials_of(settings, name)
        except SettingError as error:
            errors.append(error)
    return errors


class Identities:
    """Watches the files of all databases of an instance. Loop-only; files are read in a thread."""

    def __init__(self, settings: Settings, use: Use) -> None:
        self._use = use
        self.use(settings)
        self._used = {name: _Known.of(settings, name) for name in settings.databases}

    def use(self, settings: Settings) -> None:
        """These settings hold from now on, and what their files hold now is known."""
        self._settings = settings
        self._tried = {name: _mark(one) for name, one in settings.databases.items()}
        self._seen = dict(self._tried)

    async def watch(self) -> None:
        """Poll from now on, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for name in list(self._settings.databases):
                try:
                    await self.look(name)
                except (BrokerError, OSError, RuntimeError, sqlite3.Error) as error:  # of this database alone, and now
                    log.warning("certificates not taken over, tried again", database=name, problem=str(error))

    async def look(self, name: str) -> None:
        """Poll the files of one database once."""
        settings = self._settings
        if name not in settings.databases:
            return
        mark = await asyncio.to_thread(_mark, settings.databases[name])
        if settings is not self._settings:
            return  # other files count now
        is_settled, self._seen[name] = mark == self._seen[name], mark
        if not is_settled or mark == self._tried[name]:
            return
        try:
            credentials = await asyncio.to_thread(credentials_of, settings, name)
        except SettingError as error:
            problem = f"{error.key}: {error.problem}"
            log.warning("certificates not loaded, those before stay", database=name, problem=problem, hint=error.hint)
            await self._narrow(name)
            self._tried[name] = mark
            return
        if settings is not self._settings:
            return
        await self._adopt(settings, name, credentials)
        self._tried[name] = mark
        own = "" if credentials.own is None else credentials.own.signing.who.name
        log.info("certificates loaded", database=name, principal=own, peers=len(credentials.peers.known))

    async def adopt(self, loaded: Mapping[str, DialogCredentials]) -> None:
        """Have databases use what was loaded for them by the settings in force."""
        for name, credentials in loaded.items():
            await self._adopt(self._settings, name, credentials)

    async def _adopt(self, settings: Settings, name: str, credentials: DialogCredentials) -> None:
        await self._use(name, credentials)
        self._used[name] = await asyncio.to_thread(_Known.of, settings, name, credentials)

    async def _narrow(self, name: str) -> None:
        """Withdraw the peers that are no longer in any file, even if some files cannot be used."""
        now = await asyncio.to_thread(_files, self._settings, name, self._used[name].files)
        credentials = self._used[name].narrowed(now)
        if credentials is not None:
            await self._use(name, credentials)
            self._used[name] = _Known(credentials, self._used[name].files)
            log.warning("peers withdrawn", database=name, peers=len(credentials.peers.known))


@dataclass(frozen=True, slots=True)
class _Known:
    """Credentials of a database, and the fingerprints of the peers in each of its files; None: it cannot be used."""

    credentials: DialogCredentials
    files: dict[Path, frozenset[bytes] | None]

    @classmethod
    def of(cls, settings: Settings, name: str, credentials: DialogCredentials | None = None) -> _Known:
        """Those loaded from its files if none are given; empty ones if the files cannot be used."""
        if credentials is None:
            try:
                credentials = credentials_of(settings, name)
            except SettingError:
                credentials = DialogCredentials()
        return cls(credentials, _files(settings, name))

    def narrowed(self, now: dict[Path, frozenset[bytes] | None]) -> DialogCredentials | None:
        """Return the credentials without the peers that are no longer in any file; None if all peers remain."""
        known = self.credentials.peers.known
        stay = frozenset[bytes]().union(*(one for one in now.values() if one is not None))
        stay |= frozenset().union(*(self.files.get(path) or () for path, one in now.items() if one is None))
        if known.keys() <= stay:
            return None
        return DialogCredentials(
            self.credentials.own, KnownPeers(one for one in known.values() if one.fingerprint in stay)
        )


def _files(settings: Settings, name: str, known: Iterable[Path] = ()) -> dict[Path, frozenset[bytes] | None]:
    """The files of peers that are there; those `known` even if a directory cannot be listed. Blocking."""
    found: dict[Path, frozenset[bytes] | None] = {}
    there = [path for path in known if os.path.exists(path)]  # noqa: PTH110 - of any error
    for path in dict.fromkeys((*trusted_files(settings.databases[name].peers), *there)):
        try:
            found[path] = frozenset(one.fingerprint for one in parse_peers(_read(settings, (), path)))
        except (SettingError, ValueError):
            found[path] = None if path.exists() else frozenset()
    return found


def _own(settings: Settings, name: str, database: DatabaseSettings) -> OwnIdentity | None:
    path = ("databases", name, "certificate")
    if database.certificate is None or database.private_key is None:
        if database.certificate is database.private_key:
            return None
        missing = "private_key" if database.private_key is None else "certificate"
        problem = f"the other of certificate and private_key is given, and {missing} is not"
        raise settings.error(("databases", name, missing), problem, f"give {missing}, or neither")
    certificate = _read(settings, path, database.certificate)
    key = _read(settings, ("databases", name, "private_key"), database.private_key)
    try:
        return parse_own(certificate, key)
    except ValueError as error:
        out = shlex.quote(str(database.certificate.parent))
        hint = f"broker certs issue --database {shlex.quote(name)} --out {out} --force makes both again"
        raise settings.error(path, f"{database.certificate}: {error}", hint) from error


def _known(settings: Settings, name: str, database: DatabaseSettings) -> Iterator[Signing]:
    path = ("databases", name, "peers")
    for file in trusted_files(database.peers):
        try:
            yield from parse_peers(_read(settings, path, file))
        except ValueError as error:
            hint = "name the file that broker certs issue made for that database, without its key"
            raise settings.error(path, f"{file}: {error}", hint) from error


def _read(settings: Settings, path: tuple[str, ...], file: Path) -> bytes:
    try:
        return read_file(file)
    except CertificateUnusableError as error:
        raise settings.error(path, f"{file}: {error.problem}", error.hint) from error


def _mark(database: DatabaseSettings) -> FileMarks:
    return marks_of((database.certificate, database.private_key), database.peers)
