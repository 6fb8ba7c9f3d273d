"""A standalone Spark cluster on loopback: a master and workers, from the PySpark that is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from broker.pipeline import session as java
from examples.demo.topology import free_port, wait_for

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
