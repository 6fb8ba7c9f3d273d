"""
A client of a running daemon, over its admin socket or its admin port; the commands use it.

A token goes over TLS, to loopback or through the socket file, never in plain text through a network. Over TLS the
daemon's certificate is checked, against the CA that is named, or those of the machine when none is.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, UnknownProtocol
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from broker.config.values import ListenAddress
from broker.errors import BrokerError, CertificateUnusableError, DaemonUnreachableError

TIMEOUT_SECONDS = 60.0
INSTANCE_HEADER = "Broker-Instance"  # of answers about health: the name, percent-encoded
ANSWER_MAX_BYTES = 256 * 1024 * 1024  # ten thousand rows of 26 KB; the server may be another program
_CREDENTIALS = struct.Struct("3i")  # process, user and group of the listener; unix(7), SO_PEERCRED
REFUSED = 400  # the status of HTTP from which on nothing was done


class ProblemError(BrokerError):
    """The daemon refused, with this HTTP status and these members of RFC 9457."""

    status: int
    problem: Mapping[str, Any]

    def __str__(self) -> str:
        detail = self.problem.get("detail") or self.problem.get("title") or f"HTTP {self.status}"
        return str(detail)


class SocketNotPermittedError(BrokerError):
    """The file of the socket may not be used, so it is not known whether a daemon answers on it."""

    socket: str
    problem: str
    says: ClassVar[str] = (
        "the socket {socket} may not be used: {problem}; "
        "ask as the user of the instance or as root, or have admin.socket_group name a group of yours"
    )


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """
    The credentials of a client, and the CA that it trusts.

    Attributes:
        token: "" for none; not shown, because it would be in a traceback or a log.
        authority: PEM file of CAs; None for those of the machine.
        certificate: PEM file of the client's own; given with `private_key` or not at all.
        private_key: PEM file.
    """

    token: str = field(default="", repr=False)
    authority: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None


NO_CREDENTIALS = ClientCredentials()


class AdminClient:
    """
    Sends requests to one daemon; each call makes its own connection.

    Args:
        where: The file of its socket, or the URL of its port, `http://host:port` or `https://host:port`.
        timeout: Seconds that connecting and each part of an answer may take.
        credentials: What is shown there.

    Raises:
        ValueError: a URL of another form, or a token that would go through a network in plain text.
    """

    def __init__(
        self,
        where: Path | str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        credentials: ClientCredentials = NO_CREDENTIALS,
    ) -> None:
        self.where = where
        self.credentials = credentials
        self._timeout = timeout
        self._port: ListenAddress | None
        self._port, self._is_tls = (None, False) if isinstance(where, Path) else _read_url(where)
        if credentials.token and self._port is not None and not (self._is_tls or self._port.is_loopback):
            raise ValueError(f"a token would go to {where} in plain text: use https, or a tunnel to its loopback")

    def patient(self, seconds: float) -> AdminClient:
        """The same client, with another timeout."""
        return AdminClient(self.where, timeout=seconds, credentials=self.credentials)

    def get(self, target: str) -> Any:
        """The JSON at a path; raises as `request`."""
        return self.request("GET", target)

    def sql(self, statement: str, database: str | None = None) -> Any:
        """`columns`, `rows` and `messages` of a statement or script; raises as `request`."""
        return self.request("POST", "/v1/sql", {"statement": statement, "database": database})

    def request(self, method: str, target: str, body: object = None) -> Any:
        """
        One request.

        Raises:
            DaemonUnreachableError: no answer, or not from a daemon, or from another daemon.
            ProblemError: the daemon refused.
            SocketNotPermittedError: the file of the socket may not be used.
            CertificateUnusableError: a file of the credentials cannot be used.
        """
        payload, token = None if body is None else json.dumps(body), self.credentials.token
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            with closing(self._connection()) as connection:
                connection.request(method, target, payload, headers)
                response = connection.getresponse()
                answer = _object(response)
        except TimeoutError as error:
            late = f"no answer within {self._timeout:g} s; the request may still be executed"
            raise DaemonUnreachableError(str(self.where), late) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._failed(error) from error
        if response.status >= REFUSED:
            raise ProblemError(response.status, answer)
        return answer

    def process(self) -> int | None:
        """The process that listens on the socket file; None for a port. Raises as `request`."""
        if self._port is not None:
            return None
        try:
            with _reached(Path(self.where), self._timeout) as reached:
                data = reached.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                return int(_CREDENTIALS.unpack(data)[0])
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DaemonUnreachableError | SocketNotPermittedError:
        """The error of a failed request."""
        problem = _sentence(error)
        if self._port is None and isinstance(error, PermissionError):
            return SocketNotPermittedError(str(self.where), problem)
        hint = "; start it with broker serve, or name its configuration with -c or its socket with --socket"
        hint = hint if self._port is None else ""
        return DaemonUnreachableError(str(self.where), problem + hint)

    def _connection(self) -> HTTPConnection:
        """Speaking HTTP through the socket, or to the port when there is none."""
        port = self._port
        if port is None:
            connection = HTTPConnection("localhost", timeout=self._timeout)
            connection.sock = _reached(Path(self.where), self._timeout)
            return connection
        if not self._is_tls:
            return HTTPConnection(port.host, port.port, timeout=self._timeout)
        return HTTPSConnection(port.host, port.port, timeout=self._timeout, context=_context(self.credentials))


def _reached(path: Path, timeout: float) -> socket.socket:
    """A connection to a socket file."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


def _read_url(url: str) -> tuple[ListenAddress, bool]:
    """The address to which a URL leads, and whether over TLS. Raises ValueError: it is not one of an admin port."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    is_sound = parts.hostname and parts.path in {"", "/"} and not parts.query and not parts.username
    if parts.scheme not in {"http", "https"} or not is_sound:
        raise ValueError(f"{url!r} is no URL like http://127.0.0.1:9422 or https://gateway-a.example:9422")
    return ListenAddress(str(parts.hostname), parts.port or (443 if is_tls else 80)), is_tls


def _sentence(error: Exception) -> str:
    """The error as a sentence, without control characters of the answer."""
    if isinstance(error, BadStatusLine | UnknownProtocol):
        return "the answer is not HTTP: name the admin port of an instance"
    problem = str(getattr(error, "strerror", None) or error)
    return problem if problem.isprintable() else ascii(problem)[1:-1]


def _object(response: HTTPResponse) -> dict[str, Any]:
    """
    The JSON object of an answer, an empty one where a refusal has none.

    Raises:
        ValueError: it has another body, or a larger one than any daemon sends.
    """
    text = response.read(ANSWER_MAX_BYTES + 1)
    if len(text) > ANSWER_MAX_BYTES:
        raise ValueError(f"the answer has more than {ANSWER_MAX_BYTES >> 20} MiB")
    try:
        answer = json.loads(text)
    except RecursionError:
        answer = None
    if isinstance(answer, dict):
        return answer
    if response.status < REFUSED:
        raise ValueError("the answer is not what was asked for: no daemon has sent it")
    return {}


def _context(credentials: ClientCredentials) -> ssl.SSLContext:
    """
    TLS 1.3, and the daemon proves its name.

    Raises:
        CertificateUnusableError: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=credentials.authority)
    except OSError as error:
        problem = f"holds no certificate that can be read ({error.strerror or error})"
        hint = "name the CA of the daemon's certificate"
        raise CertificateUnusableError("trust", str(credentials.authority), problem, hint) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a certificate that is itself named need not be a CA's
    if credentials.certificate is not None:
        try:
            # Without a password here, a person would be asked for one.
            context.load_cert_chain(credentials.certificate, credentials.private_key, password="")
        except OSError as error:
            problem = f"cannot be used with its key ({error.strerror or error})"
            hint = "name a certificate in PEM form, and its key without a password"
            raise CertificateUnusableError("certificate", str(credentials.certificate), problem, hint) from error
    return context
