"""The certificate files that settings name: loaded for the endpoint, or judged by a check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import CertificateUnusableError, SettingError
from broker.net.tls import NO_SECURITY, Encryption, Security, is_readable_by_others, load_security

if TYPE_CHECKING:
    from broker.control.config import Settings


def security_of(settings: Settings) -> Security:
    """
    What the endpoint brings to TLS.

    Raises:
        SettingError: a file that cannot be used, under the setting that names it.
    """
    endpoint = settings.endpoint
    encryption = Encryption(endpoint.encryption)
    if encryption is Encryption.DISABLED:
        return NO_SECURITY
    try:
        return load_security(
            encryption,
            certificate=endpoint.certificate or Path(),
            private_key=endpoint.private_key or Path(),
            trust=endpoint.trust,
            is_authenticating=endpoint.authentication == "certificate",
        )
    except CertificateUnusableError as error:
        problem = f"{error.path}: {error.problem}"
        raise settings.error(("endpoint", error.setting), problem, error.hint) from error


def certificate_errors(settings: Settings) -> list[SettingError]:
    """What keeps the endpoint from using its files: the first problem, as at the start."""
    try:
        security_of(settings)
    except SettingError as error:
        return [error]
    return []


def certificate_warnings(settings: Settings) -> list[SettingError]:
    """What is unwise about the files."""
    endpoint = settings.endpoint
    if endpoint.encryption == "disabled" or endpoint.private_key is None:
        return []
    if not is_readable_by_others(endpoint.private_key):
        return []
    problem = f"{endpoint.private_key} may be read by every user of this machine"
    return [settings.error(("endpoint", "private_key"), problem, f"chmod 600 {endpoint.private_key}")]
