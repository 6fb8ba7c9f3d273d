"""
`broker health`: the health of an instance as an exit code.

It asks the port of observation as an orchestrator does, without credentials. The exit codes are those of monitoring
plugins, as Nagios, Icinga and others expect them. Source: Monitoring Plugins Development Guidelines, "Plugin Return
Codes".
"""

from __future__ import annotations

import http.client
import re
import sys
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from urllib.parse import quote, unquote

import click

from broker.admin.client import INSTANCE_HEADER
from broker.cli.access import option_of, read_settings
from broker.cli.options import Command, Config, Output
from broker.cli.output import show_lines
from broker.config.values import parse_listen
from broker.errors import SettingsError

TIMEOUT_SECONDS = 3.0  # below that of any probe
_PAUSE_SECONDS = 0.1  # before the next question of --wait
_ANSWER_MAX_BYTES = 65_536
_PATHS = {"live": "/livez", "ready": "/readyz", "startup": "/startupz"}
_LINE = re.compile(r"\[([+!-])\] ?(.+)")


class HealthState(IntEnum):
    """The state of an instance; the value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """
    The answer to a question of health.

    Attributes:
        text: One sentence.
        checks: The lines of the instance, each with its mark.
    """

    state: HealthState
    text: str
    checks: tuple[str, ...] = ()


@click.command(cls=Command)
@click.argument("question", type=click.Choice(list(_PATHS)), default="ready")
@click.option(
    "--at", metavar="HOST:PORT", help="Address of observation; by default observe.listen of the configuration."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 60),
    default=TIMEOUT_SECONDS,
    help="Seconds to wait for an answer.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=0,
    help="Seconds to repeat the question while the answer is no.",
)
def health(question: str, config: Config, at: str | None, output: Output, *, timeout: float, wait: float) -> None:
    """
    Ask whether an instance is live, ready or started.

    With --wait it asks until the answer is yes, for scripts that have started an instance. Exit codes: 0 yes; 1 yes,
    with a warning; 2 no, or no answer; 3 no instance could be asked. Monitoring plugins have the same four.

    Examples:
        broker health ready -c config/gateway.toml
        broker health live --at 127.0.0.1:9423 -o json
    """
    try:
        name, listen = ("", at) if at else observed(config)
        host, port = _address(listen)
    except ValueError as error:
        found = HealthAnswer(HealthState.UNKNOWN, str(error))
    else:
        found = _ask_until(host, port, question, name, timeout=timeout, wait=wait)
    answer = {"state": found.state.name, "question": question, "text": found.text, "checks": list(found.checks)}
    show_lines(answer, output, [f"{found.state.name}: {found.text}", *found.checks])
    sys.exit(found.state)


def _ask_until(host: str, port: int, question: str, name: str, *, timeout: float, wait: float) -> HealthAnswer:
    """Repeat the question until the answer is yes or the time is up; return the last answer."""
    deadline = time.monotonic() + wait
    while (found := ask(host, port, question, name, timeout=timeout)).state is HealthState.CRITICAL:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(_PAUSE_SECONDS, left))
    return found


def ask(host: str, port: int, question: str, name: str = "", *, timeout: float) -> HealthAnswer:
    """Ask the instance of this name, or any, one question; failures are answers too."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    where = f"{host}:{port}"
    try:
        connection.request("GET", f"{_PATHS[question]}?verbose")
        response = connection.getresponse()
        text = response.read(_ANSWER_MAX_BYTES).decode("utf-8", "replace")
    except TimeoutError:
        return HealthAnswer(HealthState.CRITICAL, f"no answer from {where} within {timeout:g} s")
    except OSError as error:
        return HealthAnswer(HealthState.CRITICAL, f"cannot connect to {where}: {error.strerror or error}")
    except http.client.HTTPException:
        return HealthAnswer(
            HealthState.UNKNOWN, f"what answers at {where} is not an instance of the broker: it does not speak HTTP"
        )
    finally:
        connection.close()
    answering = unquote(response.getheader(INSTANCE_HEADER, quote(name)))
    if name and answering != name:
        text = f"what answers at {where} is the instance {answering!a}, not {name!a}: it has the port"
        return HealthAnswer(HealthState.UNKNOWN, f"{text}; ask for another one with --at")
    return judge(question, where, response.status, text)


def judge(question: str, where: str, status: int, text: str) -> HealthAnswer:
    """The answer of an HTTP status and a body, which has a line for each check, then one word."""
    found = [(match[1], match[0]) for line in text.splitlines() if (match := _LINE.fullmatch(line.strip()))]
    checks = tuple(line for _, line in found)
    if status == 200 and (found or text.strip() == "ok"):
        if any(mark == "!" for mark, _ in found):
            return HealthAnswer(HealthState.WARNING, f"{question}, but not all is well", checks)
        return HealthAnswer(HealthState.OK, question, checks)
    if status == 503 and (found or text.strip() == "failed"):
        return HealthAnswer(HealthState.CRITICAL, f"not {question}", checks)
    return HealthAnswer(HealthState.UNKNOWN, f"what answers at {where} is not an instance of the broker: HTTP {status}")


def observed(config: Path | None) -> tuple[str, str]:
    """
    The name of the instance, and its address of observation, in the settings.

    Raises:
        ValueError: The settings are wrong, or the port is off.
    """
    try:
        settings = read_settings(config)
    except SettingsError as error:
        raise ValueError(f"{error.errors[0]}; broker check{option_of(config)} says more") from error
    if settings.observe.listen is None:
        raise ValueError('observe.listen is "", so no instance can be asked: set it to an address like 127.0.0.1:9423')
    return settings.instance.name, str(settings.observe.listen)


def _address(text: str) -> tuple[str, int]:
    """
    Host and port to dial; loopback for an instance that listens on every address.

    Raises:
        ValueError: It is not an address, or its port is 0.
    """
    problem = f"{text!r} is not an address to ask: give HOST:PORT with --at, an IPv6 address in brackets: [::1]:9423"
    try:
        listen = parse_listen(text)
    except ValueError:
        raise ValueError(problem) from None
    if not listen.port:
        raise ValueError(problem)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host), listen.port  # noqa: S104 - to dial
