"""
The certificate files of the endpoint while it runs: looked at every few seconds, loaded when they have changed.

Files that are still being written, one after the other, are left alone until two looks find the same. What changed is
loaded whole and judged as at the start before anything is used; files that cannot be used leave everything as it was,
which is told until they can, but for one thing: who is trusted no more is let in no more. Files are looked at by name,
so renamed files and changed symbolic links count. Loop-only; looking and loading is done in a thread.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog

from broker.control.certificates import plain_text_told, security_of, unwise
from broker.errors import SettingError
from broker.net.tls import Encryption, Security, narrowed
from broker.supervision import Supervision

if TYPE_CHECKING:
    from broker.control.config import Settings

LOOK_SECONDS = 2.0  # between two looks: what has changed is used within twice that

log = structlog.get_logger(__name__)

_Mark: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""What tells one state of the files from the next: of each its path, device, inode, size and time of change."""

Use = Callable[[Security], None]


class CertificateWatch:
    """
    What the endpoint brings to its connections, now.

    Shape: `security` in use; `reloads` since the start, and `failures`: files that could not be used; `problem` why the
    files as they are now are not in use, empty when they are.
    """

    def __init__(self, settings: Settings) -> None:
        self.security: Security
        self.reloads = self.failures = 0
        self.problem = ""
        self._settings = settings
        self._use: Use = lambda _: None
        self._begin: Callable[[], object] | None = None  # looking, until that is done
        self._tried: _Mark = ()  # the files that were loaded last, or could not be
        self._seen: _Mark = ()

    def load(self) -> Security:
        """
        Load the files for the first time, and tell what is unwise. Blocking.

        Raises:
            SettingError: as `security_of`.
        """
        self._tried = self._seen = self._mark()
        self.security = security_of(self._settings)
        for warning in unwise(self._settings):
            log.warning("setting is unwise", setting=warning.key, problem=warning.problem, hint=warning.hint)
        told = plain_text_told(self._settings.endpoint.encryption)
        if told:
            log.warning("plain text", problem=told)
        return self.security

    def start(self, stack: AsyncExitStack, use: Use, supervision: Supervision | None = None) -> None:
        """Look from now on, and have what was loaded used; `stack` ends it."""
        self._use = use
        self._begin = partial((supervision or Supervision()).keep_within, stack, "certificate watch", self._watch)
        self._maybe_begin()

    def use(self, settings: Settings, security: Security) -> None:
        """These settings hold from now on, and what was loaded by them is used."""
        self._settings, self.security, self.problem = settings, security, ""
        self._tried = self._seen = self._mark()
        self._use(security)
        self._maybe_begin()

    def _maybe_begin(self) -> None:
        """Files are looked at once there are some."""
        begin = self._begin
        if begin is not None and self.security.encryption is not Encryption.DISABLED:
            self._begin = None
            begin()

    async def look(self) -> None:
        """Look once."""
        settings = self._settings
        if self.security.encryption is Encryption.DISABLED:
            return
        mark = await asyncio.to_thread(self._mark)
        is_settled, self._seen = mark == self._seen, mark
        is_new = mark != self._tried
        # What could not be used may be usable without a change, as a certificate is once its day has come.
        if not is_settled or not (is_new or self.problem):
            return
        try:
            security = await asyncio.to_thread(security_of, settings)
        except SettingError as error:
            self._fail(error, is_new=is_new)
            self._tried = mark
            await self._narrow()
            return
        if await asyncio.to_thread(self._mark) != mark or settings is not self._settings:
            return  # whatever was loaded, it is not what is there, or not what is asked for any more
        self._tried = mark
        self.security, self.problem = security, ""
        self.reloads += 1
        self._use(security)
        assert security.own is not None, "only who encrypts looks"
        log.info(
            "certificates loaded",
            principal=security.own.principal_name,
            fingerprint=security.own.fingerprint,
            not_after=security.own.not_after.isoformat(),
            trusted=len(security.trusted),
        )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except (
                OSError,
                RuntimeError,
            ) as error:  # short of threads, say; the next look may do
                log.warning("certificate files not looked at", reason=str(error))

    async def _narrow(self) -> None:
        """Whatever cannot be used, those are not trusted any more who are in no file any more."""
        before = self.security
        endpoint = self._settings.endpoint
        self.security = await asyncio.to_thread(narrowed, before, (*endpoint.trust, *endpoint.peers))
        if self.security is not before:
            self._use(self.security)
            gone = [one.principal_name for one in before.trusted if one.fingerprint not in self.security.pinned]
            log.warning("trust withdrawn", principals=gone, trusted=len(self.security.trusted))

    def _fail(self, error: SettingError, *, is_new: bool) -> None:
        problem = f"{error.key}: {error.problem}"
        if is_new or problem != self.problem:
            self.failures += 1
            log.error("certificates not loaded, those before stay", problem=problem, hint=error.hint)
        self.problem = problem

    def _mark(self) -> _Mark:
        return tuple(_marks(_files(self._settings)))


def _files(settings: Settings) -> Iterator[str]:
    """Every file that matters, or would if it were there."""
    endpoint = settings.endpoint
    for path in (endpoint.certificate, endpoint.private_key):
        if path is not None:
            yield str(path)
    for pattern in (*endpoint.trust, *endpoint.peers):
        yield from sorted(glob.glob(pattern, recursive=True)) or [pattern]  # noqa: PTH207 - patterns are absolute


def _marks(files: Iterator[str]) -> Iterator[tuple[str, int, int, int, int]]:
    for file in files:
        try:
            found = Path(file).stat()
        except OSError:
            yield file, 0, 0, 0, 0
        else:
            yield file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
