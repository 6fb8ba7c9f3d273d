"""The tokens that count now: the file is read anew whenever it has changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog

from broker.control.admin_role import AdminRole
from broker.control.token_file import AdminToken, TokenFileError, find_token, read_tokens

log = structlog.get_logger(__name__)


class TokenStore:
    """
    The tokens of a file. Its method may be called by any thread.

    Args:
        path: The file; there may be none.
        roles: By name of a token, the role that replaces its own.
    """

    def __init__(self, path: Path, roles: Mapping[str, AdminRole]) -> None:
        self._path = path
        self._roles = roles
        self._tokens: tuple[AdminToken, ...] = ()
        self._seen: tuple[int, ...] | None = None
        self._lock = threading.Lock()

    def find(self, secret: str, *, now: datetime) -> AdminToken | None:
        """The token that this is, with the role that it has now; None for one that has expired as well. Blocking."""
        with self._lock:
            self._look()
            tokens = self._tokens
        token = find_token(tokens, secret)
        if token is None or not token.is_valid_at(now):
            return None
        return replace(token, role=self._roles.get(token.name, token.role))

    def _look(self) -> None:
        """Read the file if it is another one; one that cannot be used counts as empty, and is logged once."""
        seen = _state(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._tokens = read_tokens(self._path)
        except TokenFileError as error:
            self._tokens = ()
            log.error("tokens unusable", path=error.path, problem=error.problem, hint=error.hint)  # noqa: TRY400 - no bug


def _state(path: Path) -> tuple[int, ...]:
    """What is another for every other content, mode or owner; empty when there is no file."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_uid
