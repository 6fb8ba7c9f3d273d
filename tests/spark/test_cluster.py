"""
A standalone cluster: a master and two workers from the same PySpark.

The executors' Python has no packages at all: the jobs run in Spark's own engine, none of them in Python.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.cli import submit
from broker.pipeline import inventory
from broker.pipeline import session as java
from broker.pipeline.jobs import JOBS, Options
from broker.pipeline.report import file as stored
from examples.demo.topology import free_port, wait_for
from tests.docs.page import DOCS, Reading, blocks, section_of
from tests.support.histories import generate

HOME = Path(str(pyspark.__file__)).parent
READY_SECONDS = 90.0


@dataclass
class Cluster:
    """Processes that run; `url` is for --master."""

    url: str
    page: str
    directory: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """What the master says of workers and applications; nothing as long as it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}


@contextmanager
def cluster(directory: Path, python: Path, *, workers: int = 2, memory: str = "1g") -> Iterator[Cluster]:
    """A master and workers of one core each, whose executors run `python`."""
    port, page_port = free_port(), free_port()
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java.find()),
        "PYSPARK_PYTHON": str(python),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    found = Cluster(f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{page_port}", directory, environment)
    master = _start(
        found, "master", "Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page_port)
    )
    try:
        wait_for(found.told, seconds=READY_SECONDS, what="a master")
        for number in range(workers):
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", memory)
            work = ("--work-dir", str(directory / f"work-{number}"), found.url)
            found.workers.append(_start(found, f"worker-{number}", "Worker", *words, *work))
        wait_for(lambda: found.told().get("aliveworkers") == workers, seconds=READY_SECONDS, what="all workers")
        yield found
    finally:
        for process in (*found.workers, master):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(found: Cluster, name: str, role: str, *words: str) -> subprocess.Popen[bytes]:
    main = f"org.apache.spark.deploy.{role.lower()}.{role}"
    with (found.directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [HOME / "bin" / "spark-class", main, *words],
            env=found.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


SECONDS = 240.0
SMALL = ("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1")

pytestmark = pytest.mark.timeout(400)


def as_rows(frame: DataFrame) -> list[str]:
    """Every row as text, in an order of its own: equal frames have equal ones."""
    return sorted(json.dumps(row.asDict(recursive=True), default=_plain, sort_keys=True) for row in frame.collect())


def _plain(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, bytearray | bytes) else str(value)


def on_this_machine(spark: SparkSession, flows: Path, name: str) -> list[str]:
    """The result without a cluster."""
    found = inventory.take(inventory.find([flows]))
    visits = inventory.read(spark, (state.path for state in found.readable))
    return as_rows(JOBS[name].run(visits, None, Options(window_seconds=300)))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages."""
    directory = tmp_path_factory.mktemp("python")
    venv.create(directory, symlinks=True)
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("history") / "flows"
    generate(directory, messages=20_000, instances=9)
    return directory


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), python) as found:
        yield found


def test_spark_submit_runs_the_same_command(
    running: Cluster, history: Path, tmp_path: Path, spark: SparkSession
) -> None:
    words = ["--master", running.url, "--driver-memory", "1g", *SMALL, str(submit.__file__), "reconcile"]

    done = subprocess.run(
        [HOME / "bin" / "spark-submit", *words, "--journal", history, "--out", tmp_path],
        env=running.environment | {"PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )

    assert 0 == done.returncode, done.stderr.decode()
    assert on_this_machine(spark, history, "reconcile") == as_rows(stored.load(spark, tmp_path, "reconcile"))


def test_the_section_about_clusters_does_what_it_shows(
    running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {name: value for name, value in running.environment.items() if name != "SPARK_HOME"}
    page = section_of(DOCS / "pipeline.md", "On a cluster", tmp_path)
    generate(tmp_path / "journals", messages=1000)

    with Reading(page, ports={"7077": running.url.rpartition(":")[2]}, environ=environ) as reading:
        executed = reading.read()

    assert executed > 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", ["cli.md", "pipeline.md"])
def test_every_other_command_of_a_page_works(
    running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("journal", "journals", "journal-a", "journal-b", "a"):
        generate(tmp_path / name, messages=100)
    shell = (block.text for block in blocks((DOCS / page).read_text(encoding="utf-8")) if block.language == "sh")
    text = "\n".join(shell).replace("\\\n", " ")
    lines = dict.fromkeys(re.findall(r"^(?:broker pipeline|spark-submit) (?!.*127\.0\.0\.1).*$", text, re.MULTILINE))
    session = re.sub("/(?:var/lib/broker|mnt)/", "", "\n".join(lines)).replace("//head:", "//127.0.0.1:")
    environ = running.environment | {"PYSPARK_DRIVER_PYTHON": sys.executable}
    file = tmp_path / page
    file.write_text(f"```sh\n{session}\n```", encoding="utf-8")

    with Reading(file, ports={"7077": running.url.rpartition(":")[2]}, environ=environ) as reading:
        reading.read()

    assert lines
