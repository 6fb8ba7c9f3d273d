"""
What the endpoint brings to its connections: the certificate files that settings name, loaded or judged by a check.

Plain text has to be spelled out: where other machines reach the endpoint nobody gets it by leaving a key out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from broker.control.certificate_use import trusted_files
from broker.control.config import by_place
from broker.errors import CertificateUnusableError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.control.config import Settings
    from broker.net.tls import Security


SOON = timedelta(days=30)  # a certificate that ends within it is worth a warning


def security_of(settings: Settings) -> Security:
    """
    What the endpoint brings to TLS.

    Raises:
        SettingError: a file that cannot be used, under the setting that names it; or plain text that nobody asked for.
    """
    from broker.net.tls import NO_SECURITY, Encryption, load_security  # noqa: PLC0415 - slow to import: see broker.cli.group

    endpoint = settings.endpoint
    encryption = Encryption(endpoint.encryption)
    if encryption is Encryption.DISABLED:
        _ask_for_plain_text(settings)
        return NO_SECURITY
    try:
        return load_security(
            encryption,
            certificate=endpoint.certificate or Path(),
            private_key=endpoint.private_key or Path(),
            trust=endpoint.trust,
            peers=endpoint.peers,
            is_authenticating=endpoint.authentication == "certificate",
        )
    except CertificateUnusableError as error:
        raise _error(settings, error) from error


def _ask_for_plain_text(settings: Settings) -> None:
    endpoint = settings.endpoint
    reached = [str(address) for address in endpoint.listen if not address.is_loopback]
    if reached and "encryption" not in endpoint.given:
        problem = f'is not set, and other machines reach "{reached[0]}": connections would not be encrypted'
        hint = 'set encryption = "required" with certificate and private_key, or say encryption = "disabled"'
        raise settings.error(("endpoint", "encryption"), problem, hint)


def certificate_errors(settings: Settings) -> list[SettingError]:
    """What keeps the endpoint from starting: everything that is wrong with its files."""
    endpoint = settings.endpoint
    try:
        if endpoint.encryption == "disabled":
            _ask_for_plain_text(settings)
        else:
            security_of(settings)
    except SettingError as error:
        if endpoint.encryption == "disabled":
            return [error]
        from broker.net.tls import file_problems  # noqa: PLC0415 - slow to import: see broker.cli.group

        named = (endpoint.trust, endpoint.peers) if endpoint.authentication == "certificate" else ()
        problems = file_problems(endpoint.certificate or Path(), endpoint.private_key or Path(), *named)
        return [_error(settings, one) for one in problems] or [error]
    return []


def _error(settings: Settings, error: CertificateUnusableError) -> SettingError:
    return settings.error(("endpoint", error.setting), f"{error.path}: {error.problem}", error.hint)


def unwise(settings: Settings) -> list[SettingError]:
    """What is legal but unwise about settings and the certificates that they name, sorted by place. Blocking."""
    return sorted([*settings.warnings(), *certificate_warnings(settings)], key=by_place)


def certificate_warnings(settings: Settings) -> list[SettingError]:
    """What is unwise about the files, or about having none."""
    endpoint, found = settings.endpoint, []
    is_reached = any(not address.is_loopback for address in endpoint.listen)  # then `unwise_settings` tells more
    if plain_text_told(endpoint.encryption) and not is_reached:
        problem = f'is "{endpoint.encryption}": {plain_text_told(endpoint.encryption)}'
        found.append(settings.error(("endpoint", "encryption"), problem, 'set encryption = "required"'))
    found += _ending(settings)
    if endpoint.encryption != "disabled" and endpoint.authentication == "certificate":
        found += _unclear_authorities(settings, "endpoint")
    if settings.admin.trust:
        found += _unclear_authorities(settings, "admin")
    key = endpoint.private_key
    if endpoint.encryption != "disabled" and key is not None:
        from broker.net.tls import is_readable_by_others  # noqa: PLC0415 - slow to import: see broker.cli.group

        if is_readable_by_others(key):
            problem = f"{key} may be read by every user of this machine"
            found.append(settings.error(("endpoint", "private_key"), problem, f"chmod 600 {key}"))
    return found


def _ending(settings: Settings) -> Iterator[SettingError]:
    """That the endpoint's own certificate ends soon; what is wrong with the files is told elsewhere."""
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled":
        return
    try:
        own = security_of(settings).own
    except SettingError:
        return
    now = datetime.now(UTC)
    if own is None or own.not_after > now + SOON:
        return
    left = own.not_after - now
    time = f"{left.days} days" if left.days > 1 else f"{left // timedelta(hours=1)} hours"
    problem = f"{endpoint.certificate} ends in {time}, at {own.not_after:%Y-%m-%d %H:%M} UTC"
    hint = "renew it: files that are put in its place are used within seconds, without a restart"
    yield settings.error(("endpoint", "certificate"), problem, hint)


def _unclear_authorities(settings: Settings, section: Literal["endpoint", "admin"]) -> Iterator[SettingError]:
    """Certificates in `trust` that say CA:TRUE and may be a peer's own; files that cannot be read are skipped."""
    from broker.control.certificate_file import read_certificates  # noqa: PLC0415 - slow to import: see broker.cli.group
    from broker.security.certificate import reading  # noqa: PLC0415
    from broker.security.described import Use, describe, is_signed_by, lists_cert_sign, may_issue  # noqa: PLC0415

    named = settings.endpoint if section == "endpoint" else settings.admin
    try:
        own = [] if named.certificate is None else read_certificates(named.certificate)
        peers = [one for path in trusted_files(named.peers) for one in read_certificates(path)]
        trusted = [(path, one) for path in trusted_files(named.trust) for one in read_certificates(path)]
        with reading():
            described = [(path, one, describe(one)) for path, one in trusted if one not in (*own, *peers)]
    except (CertificateUnusableError, ValueError):
        return
    for path, one, said in described:
        if said.use is not Use.AUTHORITY:
            continue
        if not may_issue(one):
            problem = f"says CA:TRUE and is trusted as a peer's own certificate only, because it names {said.hosts[0]}"
            hint = f"name it in {section}.peers; if it is a CA, make it again with keyCertSign in its key usage"
        elif (said.hosts or not lists_cert_sign(one)) and not any(is_signed_by(mine, one) for mine in own):
            problem = "says CA:TRUE, so its holder can issue certificates in the name of every peer"
            hint = f"if it is a peer's own certificate, name it in {section}.peers; if it is a CA, let it be"
        else:
            continue
        yield settings.error((section, "trust"), f"{said.subject} in {path} {problem}", hint)


def plain_text_told(encryption: str) -> str:
    """What a status says of the setting; empty where every connection is encrypted."""
    if encryption == "disabled":
        return "connections are not encrypted"
    return "connections are not encrypted where the peer has no TLS" if encryption == "supported" else ""
