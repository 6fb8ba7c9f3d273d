"""How an instance is, as an exit code."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from broker.cli.health import HealthState
from tests.support.command import run
from tests.unit.conftest import serving

READY = "[+] ready\n[+] not stopping\nok\n"
WORRIED = "[+] ready\n[!] orders: the disk is full\nok\n"
STOPPING = "[-] ready\n[-] not stopping\nfailed\n"


@contextmanager
def answering(status: int, text: str, *, behind: int = 0, name: str = "") -> Iterator[tuple[str, list[str]]]:
    """A port of observation that says this, `behind` so many times that it stops, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            code, told = (status, text) if len(asked) > behind else (503, STOPPING)
            self.send_response(code)
            if name:
                self.send_header("Broker-Instance", quote(name))
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, *words: object) -> None:
            del words

    with HTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"127.0.0.1:{server.server_port}", asked


@pytest.mark.parametrize(
    ("question", "status", "text", "expected"),
    [
        ("live", 200, READY, HealthState.OK),
        ("startup", 200, "ok\n", HealthState.OK),
        ("ready", 200, WORRIED, HealthState.WARNING),
        ("ready", 503, STOPPING, HealthState.CRITICAL),
        ("ready", 503, "failed\n", HealthState.CRITICAL),
        ("ready", 200, "<html>it works</html>", HealthState.UNKNOWN),
        ("ready", 404, "ok", HealthState.UNKNOWN),
        ("ready", 502, STOPPING, HealthState.UNKNOWN),
    ],
)
def test_the_state_is_the_exit_code_and_the_first_word(
    question: str, status: int, text: str, expected: HealthState
) -> None:
    with answering(status, text) as (where, asked):
        result = run("health", question, "--at", where)

    word, *checks = result.stdout.splitlines()
    assert (expected, expected.name) == (result.exit_code, word.partition(":")[0])
    assert checks == ([] if expected is HealthState.UNKNOWN else [line for line in text.splitlines() if line[0] == "["])
    assert [{"live": "/livez", "startup": "/startupz", "ready": "/readyz"}[question] + "?verbose"] == asked


def test_an_instance_that_is_not_there_or_does_not_answer_is_critical() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        where = f"127.0.0.1:{sock.getsockname()[1]}"
        silent = run("health", "live", "--at", where, "--timeout", "0.2")
    absent = run("health", "live", "--at", where, "--wait", "0.2")

    assert (2, f"CRITICAL: no answer from {where} within 0.2 s\n") == (silent.exit_code, silent.stdout)
    assert (2, f"CRITICAL: cannot connect to {where}: Connection refused\n") == (absent.exit_code, absent.stdout)


@pytest.mark.parametrize(("status", "text", "behind", "code"), [(200, READY, 2, 0), (404, "ok", 0, 3)])
def test_waiting_ends_with_the_first_yes_or_with_what_is_no_instance(
    status: int, text: str, behind: int, code: int
) -> None:
    with answering(status, text, behind=behind) as (where, asked):
        result = run("health", "ready", "--at", where, "--wait", "30")

    assert (code, behind + 1) == (result.exit_code, len(asked))


@pytest.mark.parametrize(("name", "code"), [("örders", 0), ("billing", 3)])
def test_another_instance_that_has_the_port_is_not_taken_for_the_one_of_the_configuration(
    name: str, code: int, tmp_path: Path
) -> None:
    config = tmp_path / "broker.toml"
    with answering(200, READY, name=name) as (where, _):
        config.write_text(f'[instance]\nname = "örders"\n[observe]\nlisten = "{where}"\n')
        result, anybody = run("health", "-c", config), run("health", "--at", where)

    assert (code, 0) == (result.exit_code, anybody.exit_code)
    assert ("is the instance 'billing', not '\\xf6rders'" in result.stdout) == (code == 3)


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
        ("[observe\n", "broker.toml says more"),
    ],
)
def test_a_configuration_that_names_nobody_is_unknown(text: str, expected: str, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text)

    result = run("health", "-c", str(config))

    assert 3 == result.exit_code
    assert result.stdout.startswith("UNKNOWN: ")
    assert expected in result.stdout
