"""Asking a daemon over its admin socket: answers, refusals, and nobody there."""

import asyncio
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from broker.admin.client import AdminClient, ClientCredentials, ProblemError
from broker.admin.server import serve
from broker.errors import CertificateUnusableError, DaemonUnreachableError
from broker.net.listener import bind
from tests.support.certificates import Pair, authority, make


def test_statements_and_questions_go_to_a_socket_or_a_port(fake_admin: Any, fake_port: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": [], "rows": [], "messages": ["done"]})
    fake_port.answers["/v1/status"] = (200, {"name": "one"})

    answer = AdminClient(fake_admin.path).sql("DROP ROUTE a", "orders")

    assert ["done"] == answer["messages"]
    assert [("POST", "/v1/sql", {"statement": "DROP ROUTE a", "database": "orders"})] == fake_admin.asked
    assert {"name": "one"} == AdminClient(f"http://127.0.0.1:{fake_port.port}").get("/v1/status")
    assert [("GET", "/v1/status", None)] == fake_port.asked


def test_process_behind_a_socket_is_known_and_behind_a_port_is_not(fake_admin: Any) -> None:
    assert os.getpid() == AdminClient(fake_admin.path).process()
    assert None is AdminClient("http://127.0.0.1:1").process()
    with pytest.raises(DaemonUnreachableError):
        AdminClient(fake_admin.path.with_name("none.sock")).process()


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (400, {"title": "The statement was refused", "detail": "Msg 9744: no address"}, "Msg 9744: no address"),
        (409, {"title": "The name is taken"}, "The name is taken"),
        (500, {}, "HTTP 500"),
        (502, ["no object"], "HTTP 502"),
    ],
)
def test_a_refusal_is_told_in_the_daemons_words(fake_admin: Any, status: int, body: object, sentence: str) -> None:
    fake_admin.answers["/v1/sql"] = (status, body)

    with pytest.raises(ProblemError) as caught:
        AdminClient(fake_admin.path).sql("x")

    assert status == caught.value.status
    assert sentence == str(caught.value)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", r"no daemon answers on .*admin\.sock"),
        (b"[]", "the answer is not what was asked for: no daemon has sent it"),
        (b"[" * 200_000, "the answer is not what was asked for: no daemon has sent it"),
        (b"[" * (3 << 20), "the answer has more than 1 MiB"),
    ],
    ids=["no JSON", "a list", "deep", "endless"],
)
def test_an_answer_that_no_daemon_gives_is_told(
    fake_admin: Any, monkeypatch: pytest.MonkeyPatch, body: bytes, problem: str
) -> None:
    monkeypatch.setattr("broker.admin.client.ANSWER_MAX_BYTES", 1 << 20)
    fake_admin.answers["/v1/status"] = (200, body)

    with pytest.raises(DaemonUnreachableError, match=problem):
        AdminClient(fake_admin.path).get("/v1/status")


def test_where_nobody_answers_is_named_with_the_reason(tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket() as closed:
        server.bind(str(dead))
        closed.bind(("127.0.0.1", 0))
        for where, problem in (
            (dead, "Connection refused; start it with broker serve, or name its configuration with -c or"),
            (tmp_path / "none.sock", "No such file or directory; start it with broker serve"),
            (f"http://127.0.0.1:{closed.getsockname()[1]}/", "Connection refused"),
        ):
            with pytest.raises(DaemonUnreachableError) as caught:
                AdminClient(where, timeout=5).get("/v1/status")
            assert str(caught.value).startswith(f"no daemon answers on {where}: {problem}")


@pytest.mark.parametrize("url", ["", "admin.sock", "http://h:1/v1", "http://h:99999"])
def test_what_is_no_url_of_a_port_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"no URL like|Port out of range"):
        AdminClient(url)


@pytest.mark.parametrize(
    "answer", [b"\x1b]0;x\x07\x1b[2J\r\n", b"HTTP/\x1b[2J 200 OK\r\n\r\n", b"HTTP/1.1 \x1b[2J\r\n\r\n"]
)
def test_of_what_speaks_no_http_nothing_reaches_the_terminal(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        peer = threading.Thread(target=answer_once, args=(server, answer))
        peer.start()
        with pytest.raises(DaemonUnreachableError) as caught:
            AdminClient(url, timeout=5).get("/v1/status")
        peer.join()

    assert "the answer is not HTTP: name the admin port of an instance" == caught.value.problem


def answer_once(server: socket.socket, answer: bytes) -> None:
    """Whoever connects gets this when its question has come, and no more."""
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


def test_a_daemon_that_takes_too_long_may_still_be_at_work(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        with pytest.raises(DaemonUnreachableError, match=r"no answer within 0\.05 s; .* may still be executed"):
            AdminClient(path, timeout=0.05).get("/v1/status")


@pytest.mark.parametrize("url", ["http://gateway.example:9422", "http://192.0.2.1:9422"])
def test_a_token_does_not_go_through_a_network_in_plain_text(url: str) -> None:
    with pytest.raises(ValueError, match="in plain text: use https") as caught:
        AdminClient(url, credentials=ClientCredentials(token="secret"))

    assert "secret" not in f"{caught.value}{ClientCredentials(token='secret')}"


async def ask_over_tls(
    directory: Path, pair: Pair, credentials: ClientCredentials, shown: list[str | None], trusted: Pair | None = None
) -> Any:
    """The answer of a daemon's port over TLS, which adds what it is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair.store(directory, "server"))
    if trusted is not None:
        context.load_verify_locations(cadata=trusted.der)
        context.verify_mode = ssl.CERT_OPTIONAL

    async def handle(request: web.Request) -> web.Response:
        tls = request.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        shown.extend((request.headers["Authorization"], None if certificate is None else "certificate"))
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/v1/status", handle)
    served = await serve(app, bind("127.0.0.1", 0), tls=context)
    try:
        client = AdminClient(f"https://{served.address}", timeout=10, credentials=credentials)
        return await asyncio.to_thread(client.get, "/v1/status")
    finally:
        await served.close()


async def test_over_tls_token_and_certificate_are_shown_to_whom_the_authority_vouches_for(tmp_path: Path) -> None:
    ca = authority()
    shown: list[str | None] = []
    certificate, key = make("ops", by=ca).store(tmp_path, "ops")
    credentials = ClientCredentials("token", ca.store(tmp_path, "ca")[0], certificate, key)

    answer = await ask_over_tls(tmp_path, make("gateway", "127.0.0.1", by=ca), credentials, shown, ca)

    assert ({}, ["Bearer token", "certificate"]) == (answer, shown)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_over_tls_a_stranger_is_shown_nothing(tmp_path: Path, host: str) -> None:
    """Neither one whom nobody vouches for, nor one with the name of another host."""
    ca = authority()
    shown: list[str | None] = []
    pair = make("gateway", host) if host == "127.0.0.1" else make("gateway", host, by=ca)

    with pytest.raises(DaemonUnreachableError):
        await ask_over_tls(tmp_path, pair, ClientCredentials("token", ca.store(tmp_path, "ca")[0]), shown)

    assert [] == shown


@pytest.mark.parametrize("credentials", [{"authority": "none.pem"}, {"certificate": "none.pem", "private_key": "none"}])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, credentials: dict[str, str]) -> None:
    files = {name: tmp_path / file for name, file in credentials.items()}

    with pytest.raises(CertificateUnusableError, match=r"none\.pem"):
        AdminClient("https://127.0.0.1:1", credentials=ClientCredentials(**files)).get("/")  # type: ignore[arg-type]
