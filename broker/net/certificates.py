"""
The certificate files that settings name: loaded for the ports of an instance, judged by a check, watched while it runs.

Plain text has to be configured explicitly. Where other machines reach the endpoint, a missing key never results in it.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import structlog

from broker.config.consistency import setting_warnings
from broker.config.settings import AdminSettings, DatabaseSettings, EndpointSettings, Settings, by_place
from broker.errors import CertificateUnusableError, SettingError
from broker.files import mark_of
from broker.net.tls import (
    NO_SECURITY,
    Encryption,
    Identity,
    Security,
    advice_for_hosts,
    file_problems,
    identify,
    is_readable_by_others,
    load_security,
    matching,
    narrowed,
)
from broker.security.certificate_files import read_certificates
from broker.security.identity import Use, is_signed_by, lists_cert_sign, may_issue, reading, use_of, who_of
from broker.security.principal import Who
from broker.supervision import Supervision

SOON = timedelta(days=30)  # a certificate that ends within it is worth a warning
POLL_SECONDS = 2.0  # between two polls of the files: a change is used within twice that

Section = Literal["endpoint", "admin"]

FileMarks: TypeAlias = tuple[tuple[Path, tuple[int, ...]], ...]
"""The state of files, by which changes are found: path, device, inode, size and time of change of each."""

log = structlog.get_logger(__name__)


# --- loading ---


def security_of(settings: Settings) -> Security:
    """
    Return the `Security` of the endpoint for TLS. Blocking.

    Raises:
        SettingError: a file that cannot be used, under the setting that names it; or plain text that was not asked for.
    """
    endpoint = settings.endpoint
    encryption = Encryption(endpoint.encryption)
    if encryption is Encryption.DISABLED:
        _require_explicit_plain_text(settings)
        return NO_SECURITY
    return _load(settings, "endpoint", encryption, is_authenticating=endpoint.authentication == "certificate")


def admin_security_of(settings: Settings) -> Security | None:
    """
    Return the `Security` of the port of the admin API for TLS; None when it speaks plain text. Blocking.

    Raises:
        SettingError: a file that cannot be used, under the setting that names it.
    """
    admin = settings.admin
    if admin.listen is None or admin.certificate is None or admin.private_key is None:
        return None
    return _load(settings, "admin", Encryption.REQUIRED, is_authenticating=bool(admin.trust or admin.peers))


def _load(settings: Settings, section: Section, encryption: Encryption, *, is_authenticating: bool) -> Security:
    named = settings.endpoint if section == "endpoint" else settings.admin
    try:
        return load_security(
            encryption,
            certificate=named.certificate or Path(),
            private_key=named.private_key or Path(),
            trust=named.trust,
            peers=named.peers,
            is_authenticating=is_authenticating,
        )
    except CertificateUnusableError as error:
        raise _setting_error(settings, section, error) from error


def _require_explicit_plain_text(settings: Settings) -> None:
    endpoint = settings.endpoint
    reached = [str(address) for address in endpoint.listen if not address.is_loopback]
    if reached and "encryption" not in endpoint.given:
        problem = f'is not set, and other machines reach "{reached[0]}": connections would not be encrypted'
        tls = 'set encryption = "required" with certificate and private_key, or say encryption = "disabled"'
        hint = f"{tls}; an instance without neighbours has listen = []"
        raise settings.error(("endpoint", "encryption"), problem, hint)


def _setting_error(settings: Settings, section: Section, error: CertificateUnusableError) -> SettingError:
    return settings.error((section, error.setting), f"{error.path}: {error.problem}", error.hint)


def trusted_files(patterns: tuple[str, ...]) -> list[Path]:
    """The files of absolute paths and patterns, each once, in their order; a plain path also when nothing is there."""
    found: list[Path] = []
    for pattern in patterns:
        found += matching(pattern) or ([] if glob.has_magic(pattern) else [Path(pattern)])
    return list(dict.fromkeys(found))


def holders(patterns: tuple[str, ...]) -> Iterator[Who]:
    """The holders of the certificates in these files, as far as they can be read here."""
    for path in trusted_files(patterns):
        with suppress(CertificateUnusableError, ValueError):
            yield from map(who_of, read_certificates(path))


def certificate_uses(settings: Settings) -> dict[Path, tuple[str, ...]]:
    """
    The files that exist or are named by a plain path, each with the settings that use it, in the order of the settings.

    Returns:
        Absolute paths, and keys as they are written in a configuration: `databases.billing.peers`.
    """
    sections: dict[str, AdminSettings | DatabaseSettings | EndpointSettings]
    sections = {"endpoint": settings.endpoint, "admin": settings.admin}
    sections |= {f"databases.{name}": database for name, database in settings.databases.items()}
    found: dict[Path, list[str]] = {}
    for section, one in sections.items():
        own = [] if one.certificate is None else [one.certificate]
        trust = () if isinstance(one, DatabaseSettings) else one.trust
        for key, paths in (("certificate", own), ("trust", trusted_files(trust)), ("peers", trusted_files(one.peers))):
            for path in paths:
                found.setdefault(path, []).append(f"{section}.{key}")
    return {path: tuple(keys) for path, keys in found.items()}


# --- checking ---


def certificate_errors(settings: Settings) -> list[SettingError]:
    """Return all errors in the files of the endpoint; any of them keeps it from starting. Blocking."""
    endpoint = settings.endpoint
    try:
        security_of(settings)
    except SettingError as error:
        if endpoint.encryption == "disabled":
            return [error]
        named = (endpoint.trust, endpoint.peers) if endpoint.authentication == "certificate" else ()
        problems = file_problems(endpoint.certificate or Path(), endpoint.private_key or Path(), *named)
        return [_setting_error(settings, "endpoint", one) for one in problems] or [error]
    return []


def admin_certificate_errors(settings: Settings) -> list[SettingError]:
    """What is wrong with each file of the port of the admin API by itself. Blocking."""
    admin = settings.admin
    problems = file_problems(admin.certificate or Path(), admin.private_key or Path(), admin.trust, admin.peers)
    return [_setting_error(settings, "admin", one) for one in problems]


def unwise(settings: Settings, *, connects: bool) -> list[SettingError]:
    """
    Return warnings about legal but risky settings and the certificates they name, sorted by place. Blocking.

    Args:
        settings: As `load_settings` gives them.
        connects: Whether a route may lead to another instance.
    """
    return sorted([*setting_warnings(settings), *certificate_warnings(settings, connects=connects)], key=by_place)


def certificate_warnings(settings: Settings, *, connects: bool = True) -> list[SettingError]:
    """Return the warnings about the files, or about having none, where anything `connects`. Blocking."""
    endpoint, found = settings.endpoint, []
    is_reached = any(not address.is_loopback for address in endpoint.listen)  # then `setting_warnings` says more
    if (told := plain_text_told(endpoint, connects=connects)) and not is_reached:
        problem = f'is "{endpoint.encryption}": {told}'
        found.append(settings.error(("endpoint", "encryption"), problem, 'set encryption = "required"'))
    is_encrypting = endpoint.encryption != "disabled"
    own = _own(settings) if is_encrypting else None
    if own is not None:
        found += [*_ending(settings, own), *_unnamed_hosts(settings, own)]
    if is_encrypting and endpoint.authentication == "certificate":
        found += _unclear_authorities(settings, "endpoint")
    if settings.admin.trust:
        found += _unclear_authorities(settings, "admin")
    key = endpoint.private_key
    if is_encrypting and key is not None and is_readable_by_others(key):
        problem = f"{key} may be read by every user of this machine"
        found.append(settings.error(("endpoint", "private_key"), problem, f"chmod 600 {key}"))
    return found


def plain_text_told(endpoint: EndpointSettings, *, connects: bool) -> str:
    """Return the text of a status about the setting; empty where every connection is encrypted, or there is none."""
    if endpoint.encryption == "required" or not (endpoint.listen or connects):
        return ""
    where = " where the peer has no TLS" if endpoint.encryption == "supported" else ""
    return f"connections are not encrypted{where}"


def _own(settings: Settings) -> Identity | None:
    """The endpoint's own certificate; None where a file cannot be used, which is reported elsewhere."""
    try:
        return security_of(settings).own
    except SettingError:
        return None


def _unnamed_hosts(settings: Settings, own: Identity) -> Iterator[SettingError]:
    """Yield a warning for each advertised host that the endpoint's certificate does not name, unless peers trust it."""
    endpoint = settings.endpoint
    lacking = [one for one in endpoint.advertise if not own.covers(one.host)]
    if endpoint.authentication != "certificate" or not lacking or own.is_self_issued:
        return
    hint = advice_for_hosts(own, *(one.host for one in lacking))
    for address in lacking:
        problem = f'"{address}": {own.for_hosts}, so peers refuse to connect there'
        yield settings.error(("endpoint", "advertise", endpoint.advertise.index(address)), problem, hint)


def _ending(settings: Settings, own: Identity) -> Iterator[SettingError]:
    """Yield a warning if the endpoint's own certificate ends soon."""
    now = datetime.now(UTC)
    if own.not_after > now + SOON:
        return
    left = own.not_after - now
    time = f"{left.days} days" if left.days > 1 else f"{left // timedelta(hours=1)} hours"
    problem = f"{settings.endpoint.certificate} ends in {time}, at {own.not_after:%Y-%m-%d %H:%M} UTC"
    hint = "renew it: files that are put in its place are used within seconds, without a restart"
    yield settings.error(("endpoint", "certificate"), problem, hint)


def _unclear_authorities(settings: Settings, section: Section) -> Iterator[SettingError]:
    """Certificates in `trust` that say CA:TRUE and may be a peer's own; files that cannot be read are skipped."""
    named = settings.endpoint if section == "endpoint" else settings.admin
    try:
        own = [] if named.certificate is None else read_certificates(named.certificate)
        peers = [one for path in trusted_files(named.peers) for one in read_certificates(path)]
        trusted = [(path, one) for path in trusted_files(named.trust) for one in read_certificates(path)]
        with reading():
            shown = [(path, one, identify(one), use_of(one)) for path, one in trusted if one not in (*own, *peers)]
    except (CertificateUnusableError, ValueError):
        return
    for path, one, said, use in shown:
        if use is not Use.AUTHORITY:
            continue
        if not may_issue(one):
            problem = f"says CA:TRUE and is trusted as a peer's own certificate only, because it names {said.hosts[0]}"
            hint = f"name it in {section}.peers; if it is a CA, make it again with keyCertSign in its key usage"
        elif (said.hosts or not lists_cert_sign(one)) and not any(is_signed_by(mine, one) for mine in own):
            problem = "says CA:TRUE, so its holder can issue certificates in the name of every peer"
            hint = f"if it is a peer's own certificate, name it in {section}.peers; if it is a CA, let it be"
        else:
            continue
        yield settings.error((section, "trust"), f"{said.principal_name} in {path} {problem}", hint)


# --- watching ---


class CertificateWatch:
    """
    The certificate files of the endpoint while it runs: polled every few seconds, loaded when they have changed.

    Files that are still being written, one after the other, are left alone until two polls find the same. A change is
    loaded as a whole and checked as at the start before any part of it is used. If the files cannot be used, the loaded
    ones stay in use, and the problem is reported until the files can be used. There is one exception: certificates that
    are no longer trusted are refused at once. Files are identified by name, so renamed files and changed symbolic links
    count as changes. Loop-only; files are read in a thread.

    Attributes:
        security: The `Security` in use.
        reloads: The number of reloads since the start.
        failures: The number of changes that could not be used.
        problem: The reason why the present files are not in use; empty when they are.
    """

    def __init__(self, settings: Settings) -> None:
        self.security: Security
        self.reloads = self.failures = 0
        self.problem = ""
        self._settings = settings
        self._use: Callable[[Security], None] | None = None
        self._begin: Callable[[], object] | None = None  # polling, until that is done
        self._tried: FileMarks = ()  # the files that were loaded last, or could not be
        self._seen: FileMarks = ()

    def load(self) -> Security:
        """
        Load the files for the first time. Blocking.

        Raises:
            SettingError: as `security_of`.
        """
        self._tried = self._seen = self._mark()
        self.security = security_of(self._settings)
        return self.security

    def warn(self, *, connects: bool) -> None:
        """Log the warnings about the settings and their files. Blocking."""
        for warning in unwise(self._settings, connects=connects):
            log.warning("setting is unwise", setting=warning.key, problem=warning.problem, hint=warning.hint)

    def start(
        self, stack: AsyncExitStack, use: Callable[[Security], None], supervision: Supervision | None = None
    ) -> None:
        """Poll from now on, and pass on what was loaded; `stack` ends it."""
        self._use = use
        self._begin = partial((supervision or Supervision()).keep_within, stack, "certificate watch", self._watch)
        self._maybe_begin()

    def use(self, settings: Settings, security: Security) -> None:
        """Use these settings from now on, and what was loaded by them."""
        self._settings, self.security, self.problem = settings, security, ""
        self._tried = self._seen = self._mark()
        self._pass_on(security)
        self._maybe_begin()

    def _maybe_begin(self) -> None:
        """Files are polled once there are some."""
        begin = self._begin
        if begin is not None and self.security.encryption is not Encryption.DISABLED:
            self._begin = None
            begin()

    async def poll(self) -> None:
        """Poll once."""
        settings = self._settings
        if self.security.encryption is Encryption.DISABLED:
            return
        mark = await asyncio.to_thread(self._mark)
        is_settled, self._seen = mark == self._seen, mark
        is_new = mark != self._tried
        # Files that could not be used may become usable without a change, as a certificate does once it is valid.
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
            return  # the files or the settings have changed while they were loaded
        self._tried = mark
        self.security, self.problem = security, ""
        self.reloads += 1
        self._pass_on(security)
        assert security.own is not None, "only files of an encrypting endpoint are polled"
        log.info(
            "certificates loaded",
            principal=security.own.principal_name,
            fingerprint=security.own.fingerprint,
            not_after=security.own.not_after.isoformat(),
            trusted=len(security.trusted),
        )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.poll()
            except (OSError, RuntimeError) as error:  # short of threads, say; the next poll may work
                log.warning("certificate files not looked at", reason=str(error))

    async def _narrow(self) -> None:
        """Stop trusting certificates that are no longer in any file, even if the files cannot be used."""
        before = self.security
        endpoint = self._settings.endpoint
        self.security = await asyncio.to_thread(narrowed, before, (*endpoint.trust, *endpoint.peers))
        if self.security is not before:
            self._pass_on(self.security)
            gone = [one.principal_name for one in before.trusted if one.fingerprint not in self.security.pinned]
            log.warning("trust withdrawn", principals=gone, trusted=len(self.security.trusted))

    def _pass_on(self, security: Security) -> None:
        if self._use is not None:
            self._use(security)

    def _fail(self, error: SettingError, *, is_new: bool) -> None:
        problem = f"{error.key}: {error.problem}"
        if is_new or problem != self.problem:
            self.failures += 1
            log.error("certificates not loaded, those before stay", problem=problem, hint=error.hint)
        self.problem = problem

    def _mark(self) -> FileMarks:
        endpoint = self._settings.endpoint
        return marks_of((endpoint.certificate, endpoint.private_key), (*endpoint.trust, *endpoint.peers))


def marks_of(paths: Iterable[Path | None], patterns: Iterable[str]) -> FileMarks:
    """The state of these files, and of those that the patterns match. Blocking."""
    files = [path for path in paths if path is not None]
    for pattern in patterns:
        files += matching(pattern)
    return tuple((file, mark_of(file)) for file in files)
