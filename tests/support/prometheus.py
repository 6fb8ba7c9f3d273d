"""
A real Prometheus on 127.0.0.1, and promtool: Debian's package `prometheus` brings both.

    with prometheus(directory, {"gateway": "127.0.0.1:9423"}, rules=[RULES]) as server:
        server.wait_for("up == 1", series=1)

Without it a test is skipped; with BROKER_TEST_COMPLETE, as CI has it, it fails.
"""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.demo.topology import free_port, wait_for

SCRAPE = 1  # seconds between two scrapes
SECONDS = 60.0
JOB = "broker"

Series = list[tuple[dict[str, str], float]]


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is."""
    path = shutil.which(name)
    if path is None:
        told = f"{name} is not installed: apt-get install --no-install-recommends prometheus"
        if os.environ.get("BROKER_TEST_COMPLETE"):
            pytest.fail(told)
        pytest.skip(told)
    return path


def promtool(*words: str, text: bytes = b"") -> subprocess.CompletedProcess[str]:
    """What promtool says, standard output and error in one."""
    command = [program("promtool"), *words]
    done = subprocess.run(
        command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=SECONDS
    )
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode())


def fetch(url: str, accept: str = "*/*") -> tuple[str, str]:
    """The body of a page and its content type."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


@dataclass(frozen=True)
class Prometheus:
    """One that runs. Shape: `address` of its HTTP interface."""

    address: str
    log: Path

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP interface."""
        body, _ = fetch(f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(body)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> Series:
        """The series of an instant query, now."""
        data = self.ask("query", query=expression)
        assert data["resultType"] == "vector", data
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def total(self, expression: str) -> float:
        """The sum of all series of an instant query."""
        return sum(value for _, value in self.query(expression))

    def wait_for(self, expression: str, *, series: int = 1, seconds: float = SECONDS) -> Series:
        """Wait until a query gives so many series; they."""

        def there() -> Series | None:
            found = self.query(expression)
            return found if len(found) >= series else None

        found: Series = wait_for(there, seconds=seconds, what=f"{series} series of {expression}")
        return found


@contextmanager
def prometheus(directory: Path, targets: Mapping[str, str], *, rules: Sequence[Path]) -> Iterator[Prometheus]:
    """
    One that scrapes each second.

    Args:
        directory: Where it keeps its files; made.
        targets: Address of `/metrics` by the value of the label `instance`.
        rules: Files of rules that it judges each second.
    """
    directory.mkdir(parents=True)
    config = {
        "global": {"scrape_interval": f"{SCRAPE}s", "scrape_timeout": f"{SCRAPE}s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": JOB,
                "static_configs": [
                    {"targets": [address], "labels": {"instance": name}} for name, address in targets.items()
                ],
            }
        ],
    }
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    listen, log = f"127.0.0.1:{free_port()}", directory / "log"
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={listen}",
        "--log.level=warn",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    server = Prometheus(f"http://{listen}", log)
    try:
        wait_for(lambda: _is_ready(server, process), seconds=SECONDS, what="prometheus ready")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(server: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, server.log.read_text(encoding="utf-8")
    try:
        fetch(f"{server.address}/-/ready")
    except OSError:
        return False
    return True
