"""Part of `broker.control.administration`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import CertificateUnusableError, SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.net.tls import Security


def admin_security_of(settings: Settings) -> Security | None:
    """
    What the port of the admin API brings to TLS; None when it speaks plain text. Blocking.

    Raises:
        SettingError: a file that cannot be used, under the setting that names it.
    """
    admin = settings.admin
    if admin.listen is None or admin.certificate is None or admin.private_key is None:
        return None
    from broker.net.tls import Encryption, load_security  # noqa: PLC0415 - slow to import: see broker.cli.group

    try:
        return load_security(
            Encryption.REQUIRED,
            certificate=admin.certificate,
            private_key=admin.private_key,
            trust=admin.trust,
            peers=admin.peers,
            is_authenticating=bool(admin.trust or admin.peers),
        )
    except CertificateUnusableError as error:
        raise _file_error(settings, error) from error


def _file_errors(settings: Settings) -> list[SettingError]:
    """What is wrong with each file of the port by itself."""
    from broker.net.tls import file_problems  # noqa: PLC0415 - slow to import: see broker.cli.group

    admin = settings.admin
    problems = file_problems(admin.certificate or Path(), admin.private_key or Path(), admin.trust, admin.peers)
    return [_file_error(settings, one) for one in problems]


def _file_error(settings: Settings, error: CertificateUnusableError) -> SettingError:
    return settings.error(("admin", error.setting), f"{error.path}: {error.problem}", error.hint)
