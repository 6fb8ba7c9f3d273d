"""
Identities: the certificates and known peers of databases, loaded at the start and when their files change.

Files are polled every few seconds, by name; those that are still being written are left alone until two polls find the
same. Files that cannot be used leave everything as it was, with a warning in the log, with one exception: a peer that
is no longer in any file is no longer known.
"""

from __future__ import annotations

import asyncio
import shlex
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from broker.errors import BrokerError, CertificateUnusableError, SettingError
from broker.net.certificates import FileMarks, marks_of, trusted_files
from broker.net.tls import places_of, still_named
from broker.security.certificate_files import read_certificates, read_file
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
        self._used = {name: _usable(settings, name) for name in settings.databases}
        self._places = {name: _places(settings, name) for name in settings.databases}

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
        self._used[name], self._places[name] = credentials, await asyncio.to_thread(_places, settings, name)

    async def _narrow(self, name: str) -> None:
        """Withdraw the peers that are no longer in any file, even if some files cannot be used."""
        own, known = self._used[name].own, self._used[name].peers.known.values()
        stay = await asyncio.to_thread(still_named, self._places[name], self._settings.databases[name].peers)
        kept = [one for one in known if one.who.fingerprint in stay]
        if len(kept) < len(known):
            credentials = DialogCredentials(own, KnownPeers(kept))
            await self._use(name, credentials)
            self._used[name] = credentials
            log.warning("peers withdrawn", database=name, peers=len(kept))


def _usable(settings: Settings, name: str) -> DialogCredentials:
    """The credentials of a database; empty where its files cannot be used."""
    try:
        return credentials_of(settings, name)
    except SettingError:
        return DialogCredentials()


def _places(settings: Settings, name: str) -> Mapping[str, frozenset[Path]]:
    """The files of each certificate of a peer, by its fingerprint. Blocking."""
    found = {}
    for path in trusted_files(settings.databases[name].peers):
        with suppress(CertificateUnusableError):
            found[path] = read_certificates(path)
    return places_of(found)


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
