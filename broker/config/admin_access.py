"""
The tokens of the admin API: a file of lines, one a token, that holds their hashes and never themselves.

A token is 256 random bits, so its SHA-256 is as good a secret as a slow hash would make it: there is nothing to guess.
The file belongs to the instance's user and has mode 0600; one that others may write or read is not used. It is replaced
whole, under a lock of its directory, so two commands at once lose nothing and a reader never sees half of it. A change
counts from the next request on.

Shape of a line: JSON with `name`, `role`, `sha256` (64 hexadecimal digits), `made_at` and `expires_at` (UTC, ISO 8601;
null = never).
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import hmac
import json
import os
import pwd
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker.config.toml import KeyPath
from broker.config.values import GIVEN_WORDS, TOKEN_NAME, AdminRole, HolderKind, RoleHolder, parse_holder, role_of
from broker.errors import DuplicateNameError, ResourceError, UnknownNameError
from broker.files import keep_names

if TYPE_CHECKING:
    from broker.config.settings import Settings


PREFIX = "broker_"  # by which programs that look for leaked secrets know one
RANDOM_BYTES = 32
TOKENS_MAX = 1000  # each is compared with what is shown
FILE_MAX_BYTES = 1 << 20
MODE = 0o600


@dataclass
class TokenFileError(ResourceError):
    """The file of tokens cannot be used; `hint` says what to do."""

    path: str
    problem: str
    hint: str

    def __str__(self) -> str:
        return f"tokens {self.path}: {self.problem}; {self.hint}"


@dataclass(frozen=True, slots=True)
class AdminToken:
    """What is known of one token. Shape: `digest` 32 bytes; instants UTC; `expires_at` None = never."""

    name: str
    role: AdminRole
    digest: bytes
    made_at: datetime
    expires_at: datetime | None

    def is_valid_at(self, now: datetime) -> bool:
        """Whether it still counts."""
        return self.expires_at is None or now < self.expires_at


def digest_of(secret: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def find_token(tokens: Sequence[AdminToken], secret: str) -> AdminToken | None:
    """
    The token that this is, whether it has expired or not.

    Every one is compared, each in constant time, so the time tells nothing of which one came near.
    """
    digest, found = digest_of(secret), None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def read_tokens(path: Path) -> tuple[AdminToken, ...]:
    """
    The tokens of a file; none when there is no file. Blocking.

    Raises:
        TokenFileError: it cannot be read, others may read or write it, or it holds something else.
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
        raise TokenFileError(str(path), "is above 1 MiB", "revoke tokens that nobody uses")
    lines = data.decode(errors="replace").splitlines()
    return tuple(_read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def new_token(path: Path, name: str, role: AdminRole, *, now: datetime, expires_at: datetime | None) -> str:
    """
    Make a token; what is returned is told nowhere else. Blocking.

    Raises:
        DuplicateNameError: the name is taken by a token that has not expired.
        TokenFileError: the file cannot be used, or is full.
    """
    assert TOKEN_NAME.fullmatch(name), "checked by whoever took the name"
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    with _locked(path):
        tokens = [token for token in read_tokens(path) if token.name != name or token.is_valid_at(now)]
        if any(token.name == name for token in tokens):
            raise DuplicateNameError(
                2714, f"there is a token {name!r} already: revoke it first, or choose another name"
            )
        if len(tokens) >= TOKENS_MAX:
            raise TokenFileError(str(path), f"holds {TOKENS_MAX} tokens", "revoke those that nobody uses")
        _write(path, [*tokens, AdminToken(name, role, digest_of(secret), now, expires_at)])
    return secret


def revoke_token(path: Path, name: str) -> AdminToken:
    """
    Take a token away; it counts no more from the next request on. Blocking.

    Raises:
        UnknownNameError: there is no token of this name.
        TokenFileError: the file cannot be used.
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
    hint = f"chmod 600 {path}, and make new tokens if somebody may have read it"
    if not stat.S_ISREG(status.st_mode):
        raise TokenFileError(str(path), "is no plain file", "remove it, then use broker token new")
    if status.st_mode & 0o077:
        raise TokenFileError(str(path), f"may be used by others: its mode is {stat.S_IMODE(status.st_mode):04o}", hint)
    if status.st_uid not in {os.geteuid(), 0}:
        raise TokenFileError(str(path), f"belongs to user {status.st_uid}", f"chown it to user {os.geteuid()}")


def _read_line(path: Path, number: int, line: str) -> AdminToken:
    try:
        told = json.loads(line)
        name, role, digest = told["name"], told["role"], bytes.fromhex(told["sha256"])
        expires = told["expires_at"]
        if not TOKEN_NAME.fullmatch(name) or role not in GIVEN_WORDS or len(digest) != hashlib.sha256().digest_size:
            raise ValueError  # noqa: TRY301 - told below as any other mistake
        made_at = _instant(told["made_at"])
        return AdminToken(name, role_of(role), digest, made_at, None if expires is None else _instant(expires))
    except (ValueError, KeyError, TypeError, RecursionError):
        problem = f"line {number} is no token"
        raise TokenFileError(str(path), problem, "remove the line; tokens are made with broker token new") from None


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("an instant without a time zone")
    return instant


def _line(token: AdminToken) -> str:
    expires = None if token.expires_at is None else token.expires_at.isoformat()
    told = {"name": token.name, "role": token.role.word, "sha256": token.digest.hex()}
    return json.dumps(told | {"made_at": token.made_at.isoformat(), "expires_at": expires}) + "\n"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The directory of the file, ours alone among those who change it."""
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
    """Replace the file; it has its mode before it has its name."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(map(_line, tokens))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        keep_names(path.parent)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise TokenFileError(
            str(path), f"cannot be written: {error.strerror}", "make room, or correct its mode"
        ) from error


# --- admin_holders ---
# Part of `broker.config.settings`.


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
