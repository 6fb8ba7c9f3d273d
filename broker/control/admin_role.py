"""
The roles of the admin API, and whom `[admin.roles]` gives one.

    user:alice           a user of this machine, by name or number, over the Unix socket
    group:ops            everybody whose process has that group, over the Unix socket
    token:ci             who shows the token of that name
    certificate:CN=ops   who shows a certificate of that principal, as in `broker.security.principal`

Of several roles the highest counts. No file is read here, and no name of a user is looked up.
"""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from typing import NamedTuple

from broker.security.principal import PUBLIC, Principal, PrincipalError, Who, parse_principal

TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AdminRole(IntEnum):
    """
    What somebody may do; each role may do what those below it may.

    Shape: VIEWER asks, OPERATOR changes what can be changed back, ADMIN does everything.
    """

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As settings, tokens and answers write it."""
        return self.name.lower()


ROLE_WORDS = tuple(role.word for role in AdminRole)
GIVEN_WORDS = ROLE_WORDS[1:]  # what a token or an entry of `[admin.roles]` may give


def role_of(word: str) -> AdminRole:
    """The role of a word of `ROLE_WORDS`."""
    return AdminRole(ROLE_WORDS.index(word))


class HolderKind(StrEnum):
    """By what somebody is known."""

    USER = "user"
    GROUP = "group"
    TOKEN = "token"  # noqa: S105 - a word, no secret
    CERTIFICATE = "certificate"


class HolderError(ValueError):
    """A text that names nobody who could have a role; its sentence says what would."""


class RoleHolder(NamedTuple):
    """Somebody who has a role. Shape: `name` as it is written; `principal` of a certificate only."""

    kind: HolderKind
    name: str
    principal: Principal | None = None

    def shows(self, who: Who) -> bool:
        """Whether a certificate that says this is one of them."""
        return self.principal is not None and self.principal.covers(who)


def parse_holder(text: str) -> RoleHolder:
    """
    Read a key of `[admin.roles]`.

    Raises:
        HolderError: it is none.
    """
    word, colon, name = text.partition(":")
    if not colon or not name or word not in list(HolderKind):
        raise HolderError(
            f'{text!r} names nobody: write "user:NAME", "group:NAME", "token:NAME" or "certificate:CN=NAME"'
        )
    kind = HolderKind(word)
    if kind is HolderKind.TOKEN and TOKEN_NAME.fullmatch(name) is None:
        raise HolderError(f"{name!r} is no name of a token: 1 to 64 letters, digits, dots, hyphens and underscores")
    if kind is not HolderKind.CERTIFICATE:
        return RoleHolder(kind, name)
    try:
        principal = parse_principal(name)
    except PrincipalError as error:
        raise HolderError(str(error)) from None
    if principal.text == PUBLIC:
        raise HolderError("a role for public would be one for everybody: name a certificate")
    return RoleHolder(kind, name, principal)
