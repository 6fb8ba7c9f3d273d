"""Asking a daemon over its admin socket: answers, refusals, and nobody there."""

import socket
from pathlib import Path
from typing import Any

import pytest

from broker.admin.client import AdminClient, ProblemError
from broker.errors import DaemonUnreachableError


def test_get_gives_what_the_json_says(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})

    answer = AdminClient(fake_admin.path).get("/v1/status")

    assert {"name": "one"} == answer
    assert [("GET", "/v1/status", None)] == fake_admin.asked


@pytest.mark.parametrize("database", ["orders", None])
def test_sql_posts_the_statement_and_where_it_runs(fake_admin: Any, database: str | None) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": [], "rows": [], "messages": ["done"]})

    answer = AdminClient(fake_admin.path).sql("DROP ROUTE a", database)

    assert ["done"] == answer["messages"]
    assert [("POST", "/v1/sql", {"statement": "DROP ROUTE a", "database": database})] == fake_admin.asked


def test_one_client_asks_more_than_once(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, {})
    client = AdminClient(fake_admin.path)

    client.get("/v1/status")
    client.get("/v1/status")

    assert 2 == len(fake_admin.asked)


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


def test_an_answer_that_is_no_json_comes_from_no_daemon(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, b"<html>")

    with pytest.raises(DaemonUnreachableError, match=r"no daemon answers on .*admin\.sock"):
        AdminClient(fake_admin.path).get("/v1/status")


def test_a_missing_socket_file_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"

    with pytest.raises(DaemonUnreachableError) as caught:
        AdminClient(path).get("/v1/status")

    assert f"no daemon answers on {path}: No such file or directory" == str(caught.value)


def test_a_socket_file_that_a_dead_daemon_left_behind_is_unreachable(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))

    with pytest.raises(DaemonUnreachableError) as caught:
        AdminClient(path).get("/v1/status")

    assert "Connection refused" == caught.value.problem


def test_a_port_is_asked_by_its_url(fake_port: Any) -> None:
    fake_port.answers["/v1/status"] = (200, {"name": "one"})

    assert {"name": "one"} == AdminClient(f"http://127.0.0.1:{fake_port.port}").get("/v1/status")


def test_a_port_on_which_nobody_listens_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"

        with pytest.raises(DaemonUnreachableError, match=f"no daemon answers on {url}: Connection refused"):
            AdminClient(url, timeout=5).get("/v1/status")


@pytest.mark.parametrize(
    "url",
    ["", "admin.sock", "https://h:1", "http://", "http://h:1/v1", "http://h:1?x", "http://u@h:1", "http://h:99999"],
)
def test_what_is_no_url_of_a_port_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"no URL like|Port out of range"):
        AdminClient(url)


def test_a_daemon_that_takes_too_long_may_still_be_at_work(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        with pytest.raises(DaemonUnreachableError, match=r"no answer within 0\.05 s; .* may still be carried out"):
            AdminClient(path, timeout=0.05).get("/v1/status")
