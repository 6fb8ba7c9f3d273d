"""How a command reaches what it works on: a configuration, a running daemon, a database file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from broker.errors import (
    CertificateUnusableError,
    ConversationError,
    SettingError,
    SettingsError,
    StoreUnavailableError,
)

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    import sqlite3

    from broker.admin.client import AdminClient, Credentials
    from broker.control.config import Settings

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "BROKER_ADMIN_TOKEN", "BROKER_ADMIN_TOKEN_FILE"
URL_VARIABLE, AUTHORITY_VARIABLE = "BROKER_ADMIN_URL", "BROKER_ADMIN_CA"
CERTIFICATE_VARIABLE, KEY_VARIABLE = "BROKER_ADMIN_CERTIFICATE", "BROKER_ADMIN_KEY"
_TOKEN_MAX_BYTES = 4096
DEFAULT_CONFIG = Path("/etc/broker/broker.toml")
_NAME_ONE = "nothing says what to run: name a configuration file with -c FILE or in BROKER_CONFIG"
_GATEWAY = """\
A gateway that only this machine reaches, to begin with:

[instance]
name = "gateway-a"
state_dir = "state"

[endpoint]
listen = ["127.0.0.1:4022"]
encryption = "disabled"
message_forwarding = true"""
NOTHING_TO_READ = f"{_NAME_ONE}, or put it at {DEFAULT_CONFIG}.\n\n{_GATEWAY}"


def read_settings(config: Path | None, overrides: Mapping[str, str] | None = None) -> Settings:
    """
    The settings of a configuration file, of the environment and of flags; without a file, of the usual one if it is
    there.

    Raises:
        SettingsError: Something in them is wrong.
    """
    from broker.control.load import load_settings  # noqa: PLC0415

    return load_settings(usual_config(config), environ=os.environ, overrides=overrides or {})


def usual_config(config: Path | None) -> Path | None:
    """The file that is named, else the usual one if it is there, else None."""
    return config or (DEFAULT_CONFIG if _is_there(DEFAULT_CONFIG) else None)


def _is_there(path: Path) -> bool:
    """Also when nobody lets us look: whoever reads it then says so."""
    try:
        return path.exists()
    except PermissionError:
        return True


def is_nothing_given(config: Path | None, overrides: Sequence[str]) -> bool:
    """Whether neither file nor environment nor flag says anything about settings; a file of no bytes says nothing."""
    if overrides or any(name.startswith("BROKER_") and "__" in name for name in os.environ):
        return False
    path = usual_config(config)
    return path is None or _is_empty(path)


def nothing_to_read(config: Path | None) -> str:
    """What to do where nothing is given."""
    path = usual_config(config)
    if path is None:
        return NOTHING_TO_READ
    return f"{path} is empty, and nothing else says what to run: write the settings into it.\n\n{_GATEWAY}"


def _is_empty(path: Path) -> bool:
    """Of a plain file that may be looked at."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def overrides_from(texts: Sequence[str]) -> dict[str, str]:
    """
    What `--set KEY=VALUE` says.

    Raises:
        UsageError: One without a key or without an equals sign.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--set {text}: write KEY=VALUE, like endpoint.max_hops=4")
        found[key] = value
    return found


def admin_client(config: Path | None, where: Path | str | None, *, timeout: float | None = None) -> AdminClient:
    """
    A client of the daemon at this socket file or URL, else where the environment or the configuration says.

    Nothing is sent yet. Where the environment names a URL, the configuration is not read. A file that is half written,
    or wrong, does as long as it tells where.

    Raises:
        SettingsError: The configuration is needed, and does not tell where.
        CertificateUnusableError: The file of a token cannot be read.
        UsageError: What the environment holds cannot be shown there.
    """
    from broker.admin.client import TIMEOUT_SECONDS, AdminClient  # noqa: PLC0415

    doubt = ""
    found = where or os.environ.get(URL_VARIABLE)
    if not found:
        found, doubt = _socket_in(usual_config(config))
    try:
        return AdminClient(found, timeout=timeout or TIMEOUT_SECONDS, credentials=credentials(), doubt=doubt)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _socket_in(config: Path | None) -> tuple[Path, str]:
    """
    The admin socket of a configuration, and why the daemon may be elsewhere; "" when nothing speaks for it.

    Only what is not plain in it takes all of it. Raises SettingsError.
    """
    from broker.cli.admin_socket import plain_socket  # noqa: PLC0415

    plain = None if config is None else plain_socket(config, os.environ)
    if plain is not None:
        return plain, ""
    found = find_socket(config)
    return found.socket, found.doubt


class SocketFound(NamedTuple):
    """Shape: `problems` with the file; `doubt` why the daemon may be elsewhere, and what to do, "" for no reason."""

    socket: Path
    problems: tuple[SettingError, ...] = ()
    doubt: str = ""


def find_socket(config: Path | None) -> SocketFound:
    """
    The admin socket, as far as a file tells that may be half written, or wrong.

    Raises:
        SettingsError: Nothing in the file can be made use of, or it is wrong and does not tell where. The default is
            not asked then: another instance may be there.
    """
    from broker.control.load import load_what_is_good  # noqa: PLC0415

    hint = "name its socket with --socket"
    unknown = SettingError("admin.socket", "is not known, so the daemon was not asked", None, hint)
    try:
        settings, errors, _ = load_what_is_good(config, environ=os.environ)
    except SettingsError as error:
        raise SettingsError([*error.errors, unknown]) from error
    is_default = not _is_told(settings, errors) and settings.admin.socket.is_relative_to(settings.instance.state_dir)
    if errors and is_default:
        raise SettingsError([*errors, unknown])
    doubt = ""
    if errors:
        doubt = f"something is wrong with {config}, so it may be elsewhere: broker check says what, or {hint}"
    elif is_default and config is not None:
        doubt = f"that is the default, for {config} has neither instance.state_dir nor admin.socket: {hint}"
    elif is_default:
        doubt = f"that is the default, for no configuration is named: give it with -c FILE, or {hint}"
    return SocketFound(settings.admin.socket, tuple(errors), doubt)


def _is_told(settings: Settings, errors: Sequence[SettingError]) -> bool:
    """Whether file or environment say where the state directory is, and are believed."""
    path, places = ("instance", "state_dir"), settings.places
    is_refused = any(error.key.startswith("instance.state_dir") for error in errors)
    return not is_refused and (path in places.values or places.origin(path) is not None)


def credentials() -> Credentials:
    """
    What the environment says to show to a daemon.

    Raises:
        CertificateUnusableError: The file of the token cannot be read.
        UsageError: A certificate without a key.
    """
    from broker.admin.client import Credentials  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE, "")
    file = os.environ.get(TOKEN_FILE_VARIABLE, "")
    if file and not token:
        token = _read_token(Path(file))
    authority, certificate, key = (
        Path(text) if (text := os.environ.get(name, "")) else None
        for name in (AUTHORITY_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)
    )
    if (certificate is None) != (key is None):
        raise click.UsageError(f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE} are set together")
    return Credentials(token.strip(), authority, certificate, key)


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_TOKEN_MAX_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "holds no token"
        hint = f"name in {TOKEN_FILE_VARIABLE} a file with what broker token new printed"
        raise CertificateUnusableError("token", str(path), problem, hint) from error


def open_database(config: Path | None, database: str) -> AbstractContextManager[sqlite3.Connection]:
    """
    A connection to a database given by its name in the configuration or by its file, closed at the end of the block.

    What SQLite says of the file inside of the block, as that its disk is full, is told as StoreUnavailableError.

    Raises:
        ConversationError: 911, there is no such file.
        SettingsError: Something in the configuration is wrong.
        StoreUnavailableError: The file is no database of the broker, or one of another release.
    """
    import sqlite3  # noqa: PLC0415

    from broker.application.transaction import check_schema  # noqa: PLC0415
    from broker.store.fault import sentence  # noqa: PLC0415

    path, hint = Path(database), "give the path of one, or with -c FILE the name of a database of that configuration"
    if config is not None:
        from broker.cli.admin_socket import plain_database  # noqa: PLC0415

        plain = plain_database(config, database, os.environ)
        if plain is not None and plain.is_file():
            path = plain
        else:
            databases = read_settings(config).databases
            path = databases[database].path if database in databases else path
            hint = f"the configuration has {sorted(databases)}, and broker serve makes their files"
    if not path.is_file():
        raise ConversationError(911, f"there is no database file {str(path)!r}: {hint}")
    try:
        db = sqlite3.connect(path)
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), sentence(error)) from error
    try:
        check_schema(db)
        db.execute("PRAGMA synchronous = FULL")  # builds of SQLite may begin with less, with which nothing can be sent
    except BaseException:
        db.close()
        raise
    return _opened(db)


@contextmanager
def _opened(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    import sqlite3  # noqa: PLC0415

    from broker.application.transaction import blame_file  # noqa: PLC0415

    with closing(db):
        try:
            yield db
        except sqlite3.DatabaseError as error:
            blame_file(db, error)
            raise
