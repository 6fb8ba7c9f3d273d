"""How an instance is, as an exit code."""

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from broker.cli.health import HealthState
from tests.support.command import run

READY = "[+] ready\n[+] not stopping\nok\n"
WORRIED = "[+] ready\n[!] orders: the disk is full\nok\n"
STOPPING = "[-] ready\n[-] not stopping\nfailed\n"


PATHS = {"live": "/livez?verbose", "ready": "/readyz?verbose", "startup": "/startupz?verbose"}


def says(port: Any, status: int, text: str, question: str = "ready") -> str:
    """The port of observation says this; its address."""
    port.answers[PATHS[question]] = (status, text.encode())
    return f"127.0.0.1:{port.port}"


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
    fake_port: Any, question: str, status: int, text: str, expected: HealthState
) -> None:
    result = run("health", question, "--at", says(fake_port, status, text, question))

    word, *checks = result.stdout.splitlines()
    assert (expected, expected.name) == (result.exit_code, word.partition(":")[0])
    assert checks == ([] if expected is HealthState.UNKNOWN else [line for line in text.splitlines() if line[0] == "["])


def test_an_instance_that_is_not_there_or_does_not_answer_is_critical() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        where = f"127.0.0.1:{sock.getsockname()[1]}"
        silent = run("health", "live", "--at", where, "--timeout", "0.2")
    absent = run("health", "live", "--at", where, "--wait", "0.2")

    assert (2, f"CRITICAL: no answer from {where} within 0.2 s\n") == (silent.exit_code, silent.stdout)
    assert (2, f"CRITICAL: cannot connect to {where}: Connection refused\n") == (absent.exit_code, absent.stdout)


@pytest.mark.parametrize(("status", "text", "code"), [(200, READY, 0), (404, "ok", 3)])
def test_waiting_ends_with_the_first_yes_or_with_what_is_no_instance(
    fake_port: Any, status: int, text: str, code: int
) -> None:
    def stopping(_: object) -> bytes:
        if len(fake_port.asked) == 2:
            says(fake_port, status, text)
        return STOPPING.encode()

    fake_port.answers[PATHS["ready"]] = (503, stopping)

    result = run("health", "ready", "--at", f"127.0.0.1:{fake_port.port}", "--wait", "30")

    assert (code, 3) == (result.exit_code, len(fake_port.asked))


@pytest.mark.parametrize(("name", "code"), [("örders", 0), ("billing", 3)])
def test_another_instance_that_has_the_port_is_not_taken_for_the_one_of_the_configuration(
    fake_port: Any, name: str, code: int, tmp_path: Path
) -> None:
    config, where = tmp_path / "broker.toml", says(fake_port, 200, READY)
    fake_port.headers["Broker-Instance"] = quote(name)
    config.write_text(f'[instance]\nname = "örders"\n[observe]\nlisten = "{where}"\n')

    result, anybody = run("health", "-c", config), run("health", "--at", where)

    assert (code, 0) == (result.exit_code, anybody.exit_code)
    assert ("is the instance 'billing', not '\\xf6rders'" in result.stdout) == (code == 3)


def test_the_configuration_says_where(fake_port: Any, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'[observe]\nlisten = "0.0.0.0:{fake_port.port}"\n')
    says(fake_port, 200, READY)

    result = run("health", "-c", config, "-o", "json")

    told = json.loads(result.stdout)
    assert (0, "OK", "ready") == (result.exit_code, told["state"], told["question"])


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
