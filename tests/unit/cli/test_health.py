"""How an instance is, as an exit code."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from broker.cli.health import HealthState, judge
from tests.support.command import run

READY = "[+] ready\n[+] not stopping\nok\n"
WORRIED = "[+] ready\n[!] orders: the disk is full\nok\n"
STOPPING = "[-] ready\n[-] not stopping\nfailed\n"


@contextmanager
def answering(status: int, text: str, *, behind: int = 0) -> Iterator[tuple[str, list[str]]]:
    """A port of observation that says this, `behind` so many times that it stops, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            code, told = (status, text) if len(asked) > behind else (503, STOPPING)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, *words: object) -> None:
            del words

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, READY, HealthState.OK),
        (200, "ok\n", HealthState.OK),
        (200, WORRIED, HealthState.WARNING),
        (503, STOPPING, HealthState.CRITICAL),
        (503, "failed\n", HealthState.CRITICAL),
        (200, "<html>it works</html>", HealthState.UNKNOWN),
        (404, "ok", HealthState.UNKNOWN),
        (502, STOPPING, HealthState.UNKNOWN),
    ],
)
def test_an_answer_is_one_of_the_four_states(status: int, text: str, expected: HealthState) -> None:
    assert expected == judge("ready", "here", status, text).state


@pytest.mark.parametrize(("status", "text"), [(200, READY), (200, WORRIED), (503, STOPPING)])
def test_the_state_is_the_exit_code_and_the_first_word(status: int, text: str) -> None:
    with answering(status, text) as (where, _):
        result = run("health", "ready", "--at", where)

    expected = judge("ready", where, status, text)
    assert expected.state == result.exit_code
    assert [expected.state.name, *text.splitlines()[:-1]] == [
        result.stdout.partition(":")[0],
        *result.stdout.splitlines()[1:],
    ]


@pytest.mark.parametrize(("question", "path"), [("live", "/livez"), ("ready", "/readyz"), ("startup", "/startupz")])
def test_each_question_has_its_path(question: str, path: str) -> None:
    with answering(200, READY) as (where, asked):
        run("health", question, "--at", where)

    assert [f"{path}?verbose"] == asked


def test_an_instance_that_is_not_there_is_critical(free_port: int) -> None:
    result = run("health", "live", "--at", f"127.0.0.1:{free_port}")

    assert 2 == result.exit_code
    assert f"CRITICAL: no answer at 127.0.0.1:{free_port}: Connection refused\n" == result.stdout


def test_an_instance_that_does_not_answer_is_critical() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        result = run("health", "live", "--at", f"127.0.0.1:{port}", "--timeout", "0.2")

    assert 2 == result.exit_code
    assert f"CRITICAL: no answer from 127.0.0.1:{port} within 0.2 s\n" == result.stdout


def test_waiting_ends_with_the_first_yes() -> None:
    with answering(200, READY, behind=2) as (where, asked):
        result = run("health", "ready", "--at", where, "--wait", "30")

    assert (0, 3) == (result.exit_code, len(asked))


def test_waiting_ends_when_the_time_is_up(free_port: int) -> None:
    result = run("health", "ready", "--at", f"127.0.0.1:{free_port}", "--wait", "0.2")

    assert 2 == result.exit_code


def test_nobody_waits_for_what_is_no_instance() -> None:
    with answering(404, "ok") as (where, asked):
        result = run("health", "ready", "--at", where, "--wait", "30")

    assert (3, 1) == (result.exit_code, len(asked))


def test_the_configuration_says_where(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    with answering(200, READY) as (where, asked):
        config.write_text(f'[observe]\nlisten = "0.0.0.0:{where.rpartition(":")[2]}"\n')
        result = run("health", "-c", str(config), "-o", "json")

    assert 0 == result.exit_code
    assert {"state": "OK", "question": "ready"} == {
        key: value for key, value in json.loads(result.stdout).items() if key in {"state", "question"}
    }
    assert ["/readyz?verbose"] == asked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[observe]\nlisten = ""\n', 'observe.listen is ""'),
        ("[observe]\nlisten = 1\n", "observe.listen: 1 is not an address to listen on"),
        ('[observe]\nlisten = "127.0.0.1:0"\n', "is not an address to ask"),
        ("[observe\n", "broker check says more"),
    ],
)
def test_a_configuration_that_names_nobody_is_unknown(text: str, expected: str, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text)

    result = run("health", "-c", str(config))

    assert 3 == result.exit_code
    assert result.stdout.startswith("UNKNOWN: ")
    assert expected in result.stdout
