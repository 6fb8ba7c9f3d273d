"""Part of `broker.control.administration`."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from broker.control.admin_role import AdminRole, HolderKind, RoleHolder, parse_holder, role_of
from broker.control.place import KeyPath

if TYPE_CHECKING:
    from broker.control.config import Settings


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
