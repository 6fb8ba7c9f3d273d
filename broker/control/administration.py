"""
The settings of the admin API: where it listens, who may do what there, and what is written down about it.

Whoever reaches the Unix socket is known by what the system says of the process at its other end. On a TCP port of
loopback nobody is known, so one role holds for all; on any other address everybody has to show a token or a
certificate, over TLS. What single values cannot say is found by `admin_contradictions` and `admin_oddities`, what only
the machine can say by `admin_errors`.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from broker.control import value
from broker.control.admin_role import (
    GIVEN_WORDS,
    ROLE_WORDS,
    AdminRole,
    HolderError,
    HolderKind,
    RoleHolder,
    parse_holder,
    role_of,
)
from broker.control.finding import SettingFinding
from broker.control.listen import ListenAddress
from broker.control.place import KeyPath
from broker.control.section import Section
from broker.control.setting import Reload, setting
from broker.control.value import ValueKind, refuse, show
from broker.errors import CertificateUnusableError, SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.net.tls import Security

_LISTEN: KeyPath = ("admin", "listen")
_LOOPBACK = '"127.0.0.1:PORT"'


def _roles() -> ValueKind:
    """A table of holders and their roles; which holders there are is looked at entry by entry, later."""

    def read(told: object) -> Mapping[str, str]:
        hint = 'write a table: [admin.roles] and below it "user:alice" = "operator"'
        if not isinstance(told, dict):
            raise refuse(f"{show(told)} is no table of roles", hint)
        for holder, role in told.items():
            if role not in GIVEN_WORDS:
                allowed = ", ".join(f'"{word}"' for word in GIVEN_WORDS)
                raise refuse(f"{show(role)} is no role for {show(holder)}", f"allowed is {allowed}")
        return dict(told)

    def from_text(text: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    allowed = f"table of holders, each with one of {', '.join(GIVEN_WORDS)}"
    schema = {"type": "object", "additionalProperties": {"enum": list(GIVEN_WORDS)}}
    return ValueKind(allowed, read, from_text, json_schema=schema)


def _group() -> ValueKind:
    writing = value.text("group", longest=64)

    def read(told: object) -> str:
        return "" if told == "" else str(writing.read(told))

    schema = writing.json_schema | {"minLength": 0}
    return ValueKind('name or number of a group, "" = none', read, json_schema=schema)


class AdminSettings(Section):
    """`[admin]`: where the instance is steered, and by whom."""

    socket: Annotated[Path, value.path()] = setting(
        "admin.sock",
        "Unix socket of the admin API. A relative path is relative to `instance.state_dir`.",
        reason="Who may write in the state directory may steer the instance. The system allows 107 bytes.",
        reload=Reload.LIVE,
    )
    socket_group: Annotated[str, _group()] = setting(
        "",
        "Group that may open the socket as well (mode 0660); its members may do what `roles` gives them. The directory "
        "of the socket has to let them through.",
        reason="None: the socket is for the instance's user and root, with mode 0600.",
        reload=Reload.LIVE,
    )
    listen: Annotated[ListenAddress | None, value.listen(may_be_off=True)] = setting(
        "",
        "TCP address of the admin API. Another one than loopback takes TLS, and a token or a client certificate of "
        "everybody.",
        reason="Off: the socket is enough for the commands.",
        reload=Reload.LIVE,
    )
    loopback_role: Annotated[Literal["none", "viewer", "operator", "admin"], value.choice(*ROLE_WORDS)] = setting(
        "admin",
        "What may be done over TCP from loopback by those who show neither token nor certificate.",
        reason="Nothing listens unless `listen` says so, and on many machines all users are one person. Where they are "
        "not, set it to none.",
        reload=Reload.LIVE,
    )
    certificate: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "PEM file with the certificate of `listen`, and behind it those between it and its CA; with one the port "
        "speaks TLS 1.3 only. Relative to the configuration file's directory.",
        reason="There is no file one could guess.",
        reload=Reload.LIVE,
    )
    private_key: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "PEM file with the key of `certificate`, without a password. Relative to the configuration file's directory.",
        reason="There is no file one could guess. Nobody but the instance's user should be able to read it.",
        reload=Reload.LIVE,
    )
    trust: Annotated[tuple[str, ...], value.list_of(value.text("path or pattern", longest=4096))] = setting(
        [],
        "PEM files, each a path or a pattern as in `routes.files`, with the CAs or the very certificates of clients. A "
        "certificate gives nothing by itself: `roles` says what its holder may do.",
        reason="Off: tokens are enough for most.",
        reload=Reload.LIVE,
    )
    peers: Annotated[tuple[str, ...], value.list_of(value.text("path or pattern", longest=4096))] = setting(
        [],
        "PEM files as in `trust`, with the very certificates of clients. What one of these certificates has issued is "
        "not trusted, also if it says that it is a CA.",
        reason="Off: as for `trust`. `openssl req -x509` makes certificates that say CA:TRUE.",
        reload=Reload.LIVE,
    )
    tokens: Annotated[Path, value.path()] = setting(
        "tokens",
        "File of token hashes, made by `broker token new`. A relative path is relative to `instance.state_dir`. Its "
        "changes count from the next request on.",
        reason="Beside the other things that only the instance's user may read.",
        reload=Reload.LIVE,
    )
    roles: Annotated[Mapping[str, str], _roles()] = setting(
        {},
        'Who may do what: `"user:NAME"`, `"group:NAME"`, `"token:NAME"` or `"certificate:CN=NAME"` = `"viewer"`, '
        '`"operator"` or `"admin"`. The highest of several counts; the role of a token here replaces the one that it '
        "was made with.",
        reason="The instance's user and root are admin; nobody else is anything unless it is said.",
        reload=Reload.LIVE,
    )
    audit: Annotated[Path, value.path()] = setting(
        "audit.jsonl",
        "File in which every change through the admin API is written down before it is made, one JSON object a line. A "
        "relative path is relative to `instance.state_dir`. Rotate it with logrotate.",
        reason="A change that cannot be written down is refused, so the file stands where the instance writes anyhow.",
        reload=Reload.LIVE,
    )


# --- what single values cannot say ---------------------------------------------------------------------------


def admin_contradictions(admin: AdminSettings) -> Iterator[SettingFinding]:
    """What makes the section unusable, although each value by itself is allowed."""
    certificate, key = ("admin", "certificate"), ("admin", "private_key")
    if admin.listen is not None and not admin.listen.is_loopback and admin.certificate is None:
        problem = f'"{admin.listen}" can be reached from other machines, and there is no TLS'
        hint = f"name certificate and private_key in [admin], or listen on {_LOOPBACK} and come through a tunnel"
        yield SettingFinding(_LISTEN, problem, hint, (certificate,))
    if (admin.certificate is None) != (admin.private_key is None):
        there, missing = (key, "certificate") if admin.certificate is None else (certificate, "private_key")
        yield SettingFinding(
            there, f"is set, and there is no {missing}", f"name the file in {missing}", (certificate, key)
        )
    for name in ("trust", "peers"):
        if getattr(admin, name) and admin.certificate is None:
            hint = "name certificate and private_key, or leave it out"
            yield SettingFinding(("admin", name), "clients show certificates over TLS only", hint, (certificate,))
    for text in admin.roles:
        try:
            parse_holder(text)
        except HolderError as error:
            yield SettingFinding(("admin", "roles", text), str(error), "correct the name, or remove the line")


def admin_oddities(admin: AdminSettings) -> Iterator[SettingFinding]:
    """What is allowed and probably not meant."""
    holders = {text: parse_holder(text) for text in admin.roles}
    local = [text for text, holder in holders.items() if holder.kind in {HolderKind.USER, HolderKind.GROUP}]
    if local and not admin.socket_group:
        hint = "name in socket_group the group that shall open it"
        yield SettingFinding(("admin", "roles", local[0]), "cannot open the socket, which has mode 0600", hint)
    shown = [text for text, holder in holders.items() if holder.kind is HolderKind.CERTIFICATE]
    if shown and not (admin.trust or admin.peers):
        hint = "name in trust the CA of the clients, or in peers their certificates"
        yield SettingFinding(
            ("admin", "roles", shown[0]), "no certificate of a client is asked for", hint, (("admin", "trust"),)
        )
    if admin.certificate is not None and admin.listen is None:
        yield SettingFinding(
            ("admin", "certificate"), "is not used without listen", "set listen, or leave it out", (_LISTEN,)
        )
    if loopback_told(admin):
        hint = 'set it to "viewer" or "none", or say "admin" if every user of this machine is to have that role'
        yield SettingFinding(("admin", "loopback_role"), f"is not set: {loopback_told(admin)}", hint, (_LISTEN,))


def loopback_told(admin: AdminSettings) -> str:
    """The role that everybody on this machine has though no key says so, as a sentence of a status; else empty."""
    if admin.listen is None or not admin.listen.is_loopback or "loopback_role" in admin.given:
        return ""
    return f"every user of this machine has the role {admin.loopback_role} on {admin.listen}"


# --- what only the machine can say ---------------------------------------------------------------------------


class Holders(NamedTuple):
    """Who has which role. Shape: users and groups by number, tokens by name."""

    users: Mapping[int, AdminRole]
    groups: Mapping[int, AdminRole]
    tokens: Mapping[str, AdminRole]
    certificates: tuple[tuple[RoleHolder, AdminRole], ...]


def holders_of(settings: Settings) -> Holders:
    """
    `[admin.roles]`, with the users and groups of this machine. Blocking.

    Raises:
        SettingError: a user or a group that the machine does not know.
    """
    users: dict[int, AdminRole] = {}
    groups: dict[int, AdminRole] = {}
    tokens: dict[str, AdminRole] = {}
    certificates: list[tuple[RoleHolder, AdminRole]] = []
    for text, word in settings.admin.roles.items():
        holder, role = parse_holder(text), role_of(word)
        match holder.kind:
            case HolderKind.USER:
                number = _number_of_user(settings, text, holder.name)
                users[number] = max(role, users.get(number, role))
            case HolderKind.GROUP:
                number = _number_of_group(settings, ("admin", "roles", text), holder.name)
                groups[number] = max(role, groups.get(number, role))
            case HolderKind.TOKEN:
                tokens[holder.name] = role
            case HolderKind.CERTIFICATE:
                certificates.append((holder, role))
    return Holders(users, groups, tokens, tuple(certificates))


def socket_group_of(settings: Settings) -> int | None:
    """
    The number of `admin.socket_group`; None when there is none. Blocking.

    Raises:
        SettingError: the machine does not know it.
    """
    name = settings.admin.socket_group
    return _number_of_group(settings, ("admin", "socket_group"), name) if name else None


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


def _number_of_user(settings: Settings, text: str, name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        hint = "make the user, write a number, or remove the line"
        raise settings.error(("admin", "roles", text), f"there is no user {name!r} on this machine", hint) from None


def _number_of_group(settings: Settings, path: KeyPath, name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        hint = "make the group, write a number, or leave it out"
        raise settings.error(path, f"there is no group {name!r} on this machine", hint) from None


def user_name(number: int) -> str:
    """How a user is called here, else the number."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_owner(number: int) -> bool:
    """Whether a user is the one that runs the instance, or root."""
    return number in {os.geteuid(), 0}
