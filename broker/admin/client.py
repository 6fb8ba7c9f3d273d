"""
Talking to a running daemon over its admin socket, or its admin port: what the commands use.

Only the standard library, because every command pays for its imports before it says a word.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from broker.errors import BrokerError, DaemonUnreachableError

TIMEOUT_SECONDS = 60.0


@dataclass
class ProblemError(BrokerError):
    """The daemon refused. Shape: `status` of HTTP; `problem` the RFC 9457 members."""

    status: int
    problem: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        detail = self.problem.get("detail") or self.problem.get("title") or f"HTTP {self.status}"
        return str(detail)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class AdminClient:
    """
    Asks one daemon; each call is a connection of its own.

    Args:
        where: The file of its socket, or the URL of its port, `http://host:port`.
        timeout: Seconds that connecting and each part of an answer may take.

    Raises:
        ValueError: a URL of another form.
    """

    def __init__(self, where: Path | str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.where = where
        self._timeout = timeout
        self._port = None if isinstance(where, Path) else _host_and_port(where)

    def get(self, target: str) -> Any:
        """The JSON behind a path; raises as `request`."""
        return self.request("GET", target)

    def sql(self, statement: str, database: str | None = None) -> Any:
        """`columns`, `rows` and `messages` of a statement or script; raises as `request`."""
        return self.request("POST", "/v1/sql", {"statement": statement, "database": database})

    def request(self, method: str, target: str, body: object = None) -> Any:
        """
        One request.

        Raises:
            DaemonUnreachableError: nobody answers, or what answers is no daemon.
            ProblemError: the daemon refused.
        """
        connection = self._connection()
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, target, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        except TimeoutError as error:
            problem = f"no answer within {self._timeout:g} s; what was asked may still be carried out"
            raise DaemonUnreachableError(str(self.where), problem) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise DaemonUnreachableError(str(self.where), problem) from error
        finally:
            connection.close()
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise ProblemError(response.status, answer if isinstance(answer, dict) else {})
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        if self._port is not None:
            host, port = self._port
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return _UnixConnection(Path(self.where), self._timeout)


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path not in {"", "/"} or parts.query or parts.username:
        raise ValueError(f"{url!r} is no URL like http://127.0.0.1:9422")
    return parts.hostname, parts.port or http.client.HTTP_PORT
