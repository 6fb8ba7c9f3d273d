"""How a command reaches what it works on: a configuration, a running daemon, a database file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import ConversationError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.client import AdminClient
    from broker.control.config import Settings


def read_settings(config: Path | None) -> Settings:
    """
    The settings of a configuration file and of the environment; without a file, of the environment alone.

    Raises:
        SettingsError: Something in them is wrong.
    """
    from broker.control.load import load_settings  # noqa: PLC0415

    return load_settings(config, environ=os.environ)


def admin_client(config: Path | None, socket: Path | None) -> AdminClient:
    """
    A client of the daemon on this admin socket, else on the configuration's; nothing is sent yet.

    Raises:
        SettingsError: The configuration is needed, and something in it is wrong.
    """
    from broker.admin.client import AdminClient  # noqa: PLC0415

    return AdminClient(socket if socket is not None else read_settings(config).admin.socket)


def open_database(config: Path | None, database: str) -> closing[sqlite3.Connection]:
    """
    A connection to a database given by its name in the configuration or by its file.

    Raises:
        ConversationError: 911, there is no such file.
        SettingsError: Something in the configuration is wrong.
        StoreUnavailableError: The file is no database of the broker, or one of another release.
    """
    from broker.application.transaction import check_schema  # noqa: PLC0415

    path, hint = Path(database), "give the path of one, or with -c FILE the name of a database of that configuration"
    if config is not None:
        databases = read_settings(config).databases
        path = databases[database].path if database in databases else path
        hint = f"the configuration has {sorted(databases)}, and broker serve makes their files"
    if not path.is_file():
        raise ConversationError(911, f"there is no database file {str(path)!r}: {hint}")
    db = sqlite3.connect(path)
    try:
        check_schema(db)
    except BaseException:
        db.close()
        raise
    return closing(db)
