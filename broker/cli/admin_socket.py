"""
Where the admin socket of an instance is, or the file of a database, read out of its configuration alone.

A command that only asks a running daemon, or works on one file, needs this one path of the configuration, not that all
of it is sound, so it starts in a fraction of the time and works while somebody edits the file. What is not plainly
there is left to `broker.control.load`, which knows all the rules and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FILE_MAX_BYTES = 1024 * 1024
SOCKET = "admin.sock"  # the default of `admin.socket`
MSDB = "msdb"  # is in no section of a file
_OVERRIDING = ("BROKER_INSTANCE", "BROKER_ADMIN_")  # with these in the environment the file is not all there is
_OVERRIDING_DATABASES = ("BROKER_INSTANCE", "BROKER_DATABASES")
_CLIENTS_OWN = frozenset({"BROKER_ADMIN_TOKEN", "BROKER_ADMIN_TOKEN_FILE", "BROKER_ADMIN_CA", "BROKER_ADMIN_URL"}) | {
    "BROKER_ADMIN_CERTIFICATE",
    "BROKER_ADMIN_KEY",
}


def plain_socket(config: Path, environ: Mapping[str, str]) -> Path | None:
    """The admin socket that a configuration file names, absolute; None when it takes all the rules to tell."""
    if any(name.startswith(_OVERRIDING) and name not in _CLIENTS_OWN for name in environ):
        return None
    data = _read(config)
    instance, admin = data.get("instance"), data.get("admin", {})
    if not isinstance(instance, dict) or not isinstance(admin, dict):
        return None
    state_dir, socket = _plain(instance.get("state_dir")), _plain(admin.get("socket", SOCKET))
    path = config.absolute().parent / state_dir / socket
    return path if state_dir and socket and ".." not in path.parts else None


def plain_database(config: Path, name: str, environ: Mapping[str, str]) -> Path | None:
    """The file of a database of a configuration, absolute; None when it takes all the rules to tell."""
    if any(variable.upper().startswith(_OVERRIDING_DATABASES) for variable in environ):
        return None
    data = _read(config)
    instance, databases = data.get("instance"), data.get("databases")
    one = databases.get(name) if isinstance(databases, dict) else None
    if not isinstance(instance, dict) or not isinstance(one, dict):
        return None
    state_dir, file = _plain(instance.get("state_dir")), _plain(one.get("path"))
    path = config.absolute().parent / state_dir / file
    return path if state_dir and file and ".." not in path.parts else None


def plain_file(config: Path, name: str, environ: Mapping[str, str]) -> tuple[Path, Path] | None:
    """
    The state directory, and the file of a database by its name or path; None when it takes all the rules to tell.

    Shape: the state directory is absolute, and the file is there.
    """
    if name == MSDB or any(variable.upper().startswith(_OVERRIDING_DATABASES) for variable in environ):
        return None
    data = _read(config)
    instance, databases = data.get("instance"), data.get("databases", {})
    state_dir = _plain(instance.get("state_dir")) if isinstance(instance, dict) else ""
    if not state_dir or not isinstance(databases, dict):
        return None
    directory = config.absolute().parent / state_dir
    file = plain_database(config, name, environ) if name in databases else Path(name)
    return (directory, file) if ".." not in directory.parts and file is not None and file.is_file() else None


def _read(config: Path) -> Mapping[str, object]:
    import tomllib  # noqa: PLC0415 - see the docstring of broker.cli.group

    try:
        if not config.is_file():
            return {}
        with config.open("rb") as file:
            return tomllib.loads(file.read(FILE_MAX_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _plain(value: object) -> str:
    """A path that means nothing but itself; "" for anything else."""
    is_plain = isinstance(value, str) and value.isprintable() and bool(value.strip()) and not value.startswith("~")
    return str(value) if is_plain else ""
