"""Finds the configuration or the running daemon that a command works on."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from broker.admin.client import TIMEOUT_SECONDS, AdminClient, ClientCredentials
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.errors import CertificateUnusableError, DaemonUnreachableError, SettingError, SettingsError

_T = TypeVar("_T")

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
_COMMAND = re.compile(  # of the instance itself: a command at another one is named with its place
    r"\bbroker ((?P<of_files>quarantine (list|resume)|partner import|database keep|receive)|dialogs retry|reload"
    r"|why [0-9a-fA-F-]{36}(?= has| --admin)|(why|status|explain)(?= shows| lists| --to))\b"
    r"(?! at the sender|[^;:,]* (-c|--socket) )"
)
NOTHING_TO_READ = f"{_NAME_ONE}, or put it at {DEFAULT_CONFIG}.\n\n{_GATEWAY}"


class Asked(NamedTuple):
    """How an instance is asked, which commands in texts name too."""

    config: Path | None = None
    socket: Path | str | None = None


def read_settings(config: Path | None, overrides: Mapping[str, str] | None = None) -> Settings:
    """
    Read the settings from a configuration file, the environment and flags.

    Without a file, the usual one is read if it exists.

    Raises:
        SettingsError: Something in them is wrong.
    """
    return load_settings(usual_config(config), environ=os.environ, overrides=overrides or {})


def usual_config(config: Path | None) -> Path | None:
    """The named file; without one, the usual file if it exists."""
    try:
        return config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
    except PermissionError:
        return DEFAULT_CONFIG  # its reader reports that


def is_nothing_given(config: Path | None, overrides: Sequence[str]) -> bool:
    """Whether neither file nor environment nor flag has a setting; an empty file has none."""
    if overrides or any(name.startswith("BROKER_") and "__" in name for name in os.environ):
        return False
    path = usual_config(config)
    return path is None or _is_empty(path)


def nothing_to_read(config: Path | None) -> str:
    """The message for `is_nothing_given`: what to do."""
    path = usual_config(config)
    if path is None:
        return NOTHING_TO_READ
    return f"{path} is empty, and nothing else says what to run: write the settings into it.\n\n{_GATEWAY}"


def _is_empty(path: Path) -> bool:
    """Whether it is a regular file without content; False when it cannot be read."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def option_of(config: Path | None, socket: Path | str | None = None) -> str:
    """The options that name a configuration and an admin socket or port, each after a blank; empty without both."""
    named = (("-c", config), ("--socket", socket))
    return "".join(f" {option} {shlex.quote(str(one))}" for option, one in named if one is not None)


def with_config(text: str, config: Path | None, socket: Path | str | None = None) -> str:
    """Name the configuration and the socket in the commands of a text that have none, so that they run as they are."""
    return _COMMAND.sub(lambda one: f"{one[0]}{option_of(config, None if one['of_files'] else socket)}", text)


def with_sql_at(instance: str, text: str, config: Path | None, socket: Path | str | None = None) -> str:
    """Name the configuration and the socket where a text has statements, or a reload, for this instance."""
    for here in (f"at {instance}, with broker sql", f"at {instance}, broker reload"):
        text = text.replace(here, f"{here}{option_of(config, socket)}")
    return text


def overrides_from(texts: Sequence[str]) -> dict[str, str]:
    """
    The settings of `--set KEY=VALUE`.

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
    A client of the daemon at this socket file or URL; without one, of the environment's or the configuration's.

    Sends nothing. When the environment names a URL, the configuration is not read.

    Raises:
        SettingsError: The configuration is needed, and something in it is wrong.
        CertificateUnusableError: The file of a token cannot be read.
        UsageError: A token of the environment may not be sent to that URL, or the URL is malformed.
    """
    found = where or os.environ.get(URL_VARIABLE)
    if not found:
        try:
            found = read_settings(config).admin.socket
        except SettingsError as error:
            problem = "was not asked, as its socket is read from the configuration"
            unknown = SettingError("daemon", problem, None, "correct that first, or add --socket STATE_DIR/admin.sock")
            raise SettingsError([*error.errors, unknown]) from error
    try:
        return AdminClient(found, timeout=timeout or TIMEOUT_SECONDS, credentials=credentials())
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def ask_daemon_or_files(
    config: Path | None,
    where: Path | str | None,
    ask: Callable[[AdminClient], _T],
    read: Callable[[Settings], _T],
) -> tuple[_T, str]:
    """
    Ask the daemon; when it does not answer and only a configuration was named, read the files of that instead.

    Returns:
        The answer, and a sentence on its source; "" when the daemon gave it.

    Raises:
        DaemonUnreachableError: No daemon answers, and no configuration or the daemon itself was named.
    """
    try:
        return ask(admin_client(config, where)), ""
    except DaemonUnreachableError:
        if config is None or where is not None or os.environ.get(URL_VARIABLE):
            raise
        return read(read_settings(config)), f"no daemon answers, so read from {config}"


def credentials() -> ClientCredentials:
    """
    The credentials of the environment.

    Raises:
        CertificateUnusableError: The file of the token cannot be read.
        UsageError: A certificate without a key.
    """
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
    return ClientCredentials(token.strip(), authority, certificate, key)


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_TOKEN_MAX_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "holds no token"
        hint = f"name in {TOKEN_FILE_VARIABLE} a file with what broker token create printed"
        raise CertificateUnusableError("token", str(path), problem, hint) from error
