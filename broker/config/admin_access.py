"""
Who may use the admin API: its roles, the holders that `[admin.roles]` gives them to, and the file of tokens.

    user:alice           a user of this machine, by name or number, over the Unix socket
    group:ops            every process that has that group, over the Unix socket
    token:ci             a client that shows the token of that name
    certificate:CN=ops   a client with a certificate of that principal, as in `broker.security.principal`

Of several roles the highest counts.

A token is 256 random bits, so its SHA-256 protects it as well as a slow hash would: there is nothing to guess. The file
has one token a line and holds hashes only: an `AdminToken` as JSON, with instants in ISO 8601. It belongs to the
instance's user and has mode 0600; a file that others may read or write is not used. It is replaced as a whole, under a
lock of its directory, so two commands at once lose nothing and a reader never sees half of it. A change counts from the
next request on.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import hmac
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from broker.config.settings import Settings
from broker.config.toml import KeyPath
from broker.errors import DuplicateNameError, ResourceError, UnknownNameError
from broker.files import write_file
from broker.security.principal import PUBLIC, Principal, PrincipalError, parse_principal

TOKEN_PREFIX = "broker_"  # noqa: S105 - by it programs that search for leaked secrets recognize a token
TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RANDOM_BYTES = 32
TOKENS_MAX = 1000  # every one is compared with what a client shows
FILE_MAX_BYTES = 1 << 20
MODE = 0o600


# --- roles and their holders ---------------------------------------------------------------------------------


class AdminRole(IntEnum):
    """
    The permissions of a client; each role may do all that those below it may.

    VIEWER reads, OPERATOR makes changes that can be undone, ADMIN does everything.
    """

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The role as settings, tokens and answers write it."""
        return self.name.lower()


def role_of(word: str) -> AdminRole:
    """The role that settings, tokens and answers write so."""
    return AdminRole[word.upper()]


class HolderKind(StrEnum):
    """By what the holder of a role is known."""

    USER = "user"
    GROUP = "group"
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    CERTIFICATE = "certificate"


class HolderError(ValueError):
    """A text that does not name a holder; the message says how to write one."""


class RoleHolder(NamedTuple):
    """
    A holder of a role.

    Attributes:
        name: As it is written.
        principal: Of a certificate only.
    """

    kind: HolderKind
    name: str
    principal: Principal | None = None


def parse_holder(text: str) -> RoleHolder:
    """
    Read a key of `[admin.roles]`.

    Raises:
        HolderError: It does not name a holder.
    """
    word, colon, name = text.partition(":")
    if not colon or not name or word not in list(HolderKind):
        raise HolderError(
            f'{text!r} does not name a holder: write "user:NAME", "group:NAME", "token:NAME" or "certificate:CN=NAME"'
        )
    kind = HolderKind(word)
    if kind is HolderKind.TOKEN and TOKEN_NAME.fullmatch(name) is None:
        raise HolderError(
            f"{name!r} is not the name of a token: use 1 to 64 letters, digits, dots, hyphens and underscores"
        )
    if kind is not HolderKind.CERTIFICATE:
        return RoleHolder(kind, name)
    try:
        principal = parse_principal(name)
    except PrincipalError as error:
        raise HolderError(str(error)) from None
    if principal.text == PUBLIC:
        raise HolderError("a role for public would be a role for every client: name a certificate")
    return RoleHolder(kind, name, principal)


class Holders(NamedTuple):
    """The holders of each role; users and groups by number, tokens by name."""

    users: Mapping[int, AdminRole]
    groups: Mapping[int, AdminRole]
    tokens: Mapping[str, AdminRole]
    certificates: tuple[tuple[Principal, AdminRole], ...]


def holders_of(settings: Settings) -> Holders:
    """
    `[admin.roles]`, with the users and groups of this machine. Blocking.

    Raises:
        SettingError: A user or a group that the machine does not know.
    """
    numbers: dict[HolderKind, dict[int, AdminRole]] = {HolderKind.USER: {}, HolderKind.GROUP: {}}
    tokens: dict[str, AdminRole] = {}
    certificates: list[tuple[Principal, AdminRole]] = []
    for text, word in settings.admin.roles.items():
        holder, role = parse_holder(text), role_of(word)
        if holder.principal is not None:
            certificates.append((holder.principal, role))
        elif holder.kind is HolderKind.TOKEN:
            tokens[holder.name] = role
        else:
            number = _number_of(settings, ("admin", "roles", text), holder.kind, holder.name)
            numbers[holder.kind][number] = max(role, numbers[holder.kind].get(number, role))
    return Holders(numbers[HolderKind.USER], numbers[HolderKind.GROUP], tokens, tuple(certificates))


def socket_group_of(settings: Settings) -> int | None:
    """
    The number of `admin.socket_group`; None when there is none. Blocking.

    Raises:
        SettingError: The machine does not know it.
    """
    name = settings.admin.socket_group
    return _number_of(settings, ("admin", "socket_group"), "group", name) if name else None


def _number_of(settings: Settings, path: KeyPath, noun: str, name: str) -> int:
    """The number of a user or a group of this machine; a name of digits is the number."""
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if noun == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        hint = f"make the {noun}, write a number, or leave it out"
        raise settings.error(path, f"there is no {noun} {name!r} on this machine", hint) from None


def user_name(number: int) -> str:
    """The name of a user of this machine; the number when it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_owner(number: int) -> bool:
    """Whether a user is the one that runs the instance, or root."""
    return number in {os.geteuid(), 0}


# --- tokens --------------------------------------------------------------------------------------------------


class TokenFileError(ResourceError):
    """The file of tokens cannot be used; `hint` says what to do."""

    path: str
    problem: str
    hint: str
    says: ClassVar[str] = "tokens {path}: {problem}; {hint}"


class AdminToken(Struct, frozen=True):
    """One line of the file: instants are UTC, `expires_at` None means never."""

    name: Annotated[str, Meta(pattern=rf"^{TOKEN_NAME.pattern}\Z")]
    given: Annotated[str, Meta(pattern=r"^(viewer|operator|admin)\Z")] = field(name="role")
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    made_at: Annotated[datetime, Meta(tz=True)]
    expires_at: Annotated[datetime, Meta(tz=True)] | None

    @property
    def role(self) -> AdminRole:
        """The role that it was made with."""
        return role_of(self.given)

    def is_valid_at(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


def digest_of(secret: str) -> str:
    """The hash of a token, which is all that is kept of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def find_token(tokens: Sequence[AdminToken], secret: str) -> AdminToken | None:
    """
    Find the token with this secret, whether it has expired or not.

    Every one is compared, each in constant time, so the time says nothing of which one was near.
    """
    digest, found = digest_of(secret), None
    for token in tokens:
        if hmac.compare_digest(token.sha256, digest):
            found = token
    return found


def read_tokens(path: Path) -> tuple[AdminToken, ...]:
    """
    Read the tokens of a file; none when there is no file. Blocking.

    Raises:
        TokenFileError: It cannot be read, others may read or write it, or it is not a file of tokens.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise TokenFileError(
            str(path), problem, "make it a plain file of the instance's user, with mode 0600"
        ) from error
    try:
        _check_custody(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(FILE_MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > FILE_MAX_BYTES:
        raise TokenFileError(str(path), "is above 1 MiB", "revoke tokens that are not in use")
    lines = data.decode(errors="replace").splitlines()
    return tuple(_read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def new_token(path: Path, name: str, role: AdminRole, *, now: datetime, expires_at: datetime | None) -> str:
    """
    Make a token and return its secret, which is kept nowhere. Blocking.

    Raises:
        DuplicateNameError: A token that has not expired has this name.
        TokenFileError: The file cannot be used, or is full.
    """
    assert TOKEN_NAME.fullmatch(name), "checked by the caller"
    secret = TOKEN_PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    with _locked(path):
        tokens = [token for token in read_tokens(path) if token.name != name or token.is_valid_at(now)]
        if any(token.name == name for token in tokens):
            raise DuplicateNameError(
                2714, f"there is a token {name!r} already: revoke it first, or choose another name"
            )
        if len(tokens) >= TOKENS_MAX:
            raise TokenFileError(str(path), f"holds {TOKENS_MAX} tokens", "revoke those that are not in use")
        _write(path, [*tokens, AdminToken(name, role.word, digest_of(secret), now, expires_at)])
    return secret


def revoke_token(path: Path, name: str) -> AdminToken:
    """
    Remove a token; it is refused from the next request on. Blocking.

    Raises:
        UnknownNameError: There is no token of this name.
        TokenFileError: The file cannot be used.
    """
    with _locked(path):
        tokens = read_tokens(path)
        gone = [token for token in tokens if token.name == name]
        if not gone:
            known = ", ".join(sorted(token.name for token in tokens)) or "none"
            raise UnknownNameError(15151, f"there is no token {name!r}; there are: {known}")
        _write(path, [token for token in tokens if token.name != name])
    return gone[0]


def _check_custody(path: Path, status: os.stat_result) -> None:
    hint = f"chmod 600 {path}, and make new tokens if another user may have read it"
    if not stat.S_ISREG(status.st_mode):
        raise TokenFileError(str(path), "is not a plain file", "remove it, then use broker token create")
    if status.st_mode & 0o077:
        raise TokenFileError(str(path), f"may be used by others: its mode is {stat.S_IMODE(status.st_mode):04o}", hint)
    if status.st_uid not in {os.geteuid(), 0}:
        raise TokenFileError(str(path), f"belongs to user {status.st_uid}", f"chown it to user {os.geteuid()}")


def _read_line(path: Path, number: int, line: str) -> AdminToken:
    try:
        return msgspec.json.decode(line, type=AdminToken)
    except (msgspec.DecodeError, RecursionError):
        problem = f"line {number} is not a token"
        raise TokenFileError(str(path), problem, "remove the line; tokens are made with broker token create") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the directory of the file against other commands that change it."""
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        problem = f"its directory cannot be opened: {error.strerror}"
        raise TokenFileError(str(path), problem, "start the instance once, or make the directory") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(path: Path, tokens: Sequence[AdminToken]) -> None:
    lines = (f"{msgspec.json.encode(token).decode()}\n" for token in tokens)
    try:
        write_file(path, "".join(lines).encode(), mode=MODE)
    except OSError as error:
        raise TokenFileError(
            str(path), f"cannot be written: {error.strerror}", "free some disk space, or correct its mode"
        ) from error
