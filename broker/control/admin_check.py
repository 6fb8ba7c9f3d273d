"""Part of `broker.control.administration`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.control.admin_holders import holders_of, socket_group_of
from broker.control.admin_role import AdminRole
from broker.control.admin_tls import _file_errors, admin_security_of
from broker.errors import SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings
from broker.control.administration import _LISTEN


def check_ways_in(settings: Settings) -> None:
    """
    See that somebody could ask on the TCP port. Blocking.

    Raises:
        SettingError: the file of tokens cannot be used, or nobody has a token and no certificate is trusted.
    """
    admin = settings.admin
    if admin.listen is None:
        return
    from broker.control.token_file import TokenFileError, read_tokens  # noqa: PLC0415 - slow to import: see broker.cli.group

    try:
        has_tokens = bool(read_tokens(admin.tokens))
    except TokenFileError as error:
        raise settings.error(("admin", "tokens"), f"{error.path} {error.problem}", error.hint) from error
    is_open = admin.listen.is_loopback and admin.loopback_role != AdminRole.NONE.word
    if not (has_tokens or admin.trust or admin.peers or is_open):
        problem = f'nobody could ask on "{admin.listen}": there is no token, and no certificate of a client is trusted'
        raise settings.error(_LISTEN, problem, "use broker token new NAME --role viewer, or set trust and roles")


def admin_errors(settings: Settings) -> list[SettingError]:
    """What keeps the admin API from starting by its files, users and groups."""
    from broker.control.writable import write_problem  # noqa: PLC0415 - slow to import: see broker.cli.group

    errors: list[SettingError] = []
    for look in (holders_of, socket_group_of, admin_security_of, check_ways_in):
        try:
            look(settings)
        except SettingError as error:
            more = _file_errors(settings) if look is admin_security_of else []
            errors += more or [error]
    for key in ("tokens", "audit"):
        directory = getattr(settings.admin, key).parent
        problem = write_problem(directory) if directory != settings.instance.state_dir else None
        if problem:
            errors.append(settings.error(("admin", key), problem, "name a directory that the instance may write"))
    return errors
