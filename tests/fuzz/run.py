"""
Fuzz for so many seconds, guided by coverage, and keep what reached something new.

    python -m tests.fuzz.run --seconds 600

Needs atheris (requirements/fuzz.txt). Each target has a process of its own and its share of the time. What it finds
stands under `build/fuzz/findings`; the smallest inputs that together reach everything that was reached come into the
corpus, as far as there is room. The exit code is 1 when there is a finding, or a target that did not run.
"""

import argparse
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.target import CORPUS, Target, groups, targets

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
INSTRUMENTED = (
    "broker",
    "sqlglot",
    "tomllib",
    "aiohttp",
)  # what reads strangers' words
INPUT_SECONDS = 5
RSS_MB = 1024  # of a target's process, atheris and its tables in it
KEPT_MAX = 120  # inputs of a target, the smallest first
KEPT_BYTES_MAX = 64 * 1024
MERGE_SECONDS = 120
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_SECONDS = re.compile(r"Done \d+ runs in (\d+) second")
_PEAK = re.compile(r"stat::peak_rss_mb:\s*(\d+)")
_COVERED = re.compile(r"cov: (\d+) ft: (\d+)")


@dataclass
class Outcome:
    """What became of one target. Shape: `executed` inputs; `covered` edges; `peak_mb` of the process."""

    name: str
    seconds: float = 0.0
    executed: int = 0
    covered: int = 0
    peak_mb: int = 0
    kept: int = 0
    findings: list[Path] = field(default_factory=list)

    def row(self) -> str:
        """A line of the table."""
        rate = self.executed / self.seconds if self.seconds else 0
        return (
            f"| {self.name} | {self.seconds:,.0f} | {self.executed:,} | {rate:,.0f} | {self.covered:,} "
            f"| {self.peak_mb} | {self.kept} | {len(self.findings)} |"
        )


# --- the process of one target ------------------------------------------------------------------------------


def child(group: str, name: str, arguments: list[str]) -> None:
    """Fuzz one target of a module in this process, which libFuzzer ends; other modules are not imported."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        target = next(one for one in importlib.import_module(group).targets() if one.name == name)

        def take(data: bytes) -> None:
            target.attempt(data)

        for seed in target.seeds()[:1]:  # what is imported late is instrumented as well
            take(seed)
    # A merge runs its own command again, for an input may end the process.
    again = Path(tempfile.gettempdir(), "again")
    again.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.run --child {group} {name} "$@"\n')
    again.chmod(0o700)
    atheris.Setup([str(again), *arguments], take)
    atheris.Fuzz()


# --- all of them --------------------------------------------------------------------------------------------


def fuzz(target: Target, seconds: int, *, merge_seconds: int) -> Outcome:
    """Fuzz one target, and keep what is worth it."""
    outcome = Outcome(target.name)
    grown, findings = BUILD / "corpus" / target.name, BUILD / "findings" / target.name
    kept = CORPUS / target.name
    for directory in (grown, findings, kept):
        directory.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (grown / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.input_max}",
        f"-timeout={INPUT_SECONDS}",
        f"-rss_limit_mb={RSS_MB}",
        f"-artifact_prefix={findings}/",
        *([f"-dict={_dictionary(target)}"] if target.words else []),
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    began = time.monotonic()
    said = _run(target.name, [*options, str(grown), str(kept)])
    outcome.seconds = _last(_SECONDS, said) or time.monotonic() - began
    (BUILD / f"{target.name}.log").write_text(said)
    outcome.executed = _last(_EXECUTED, said)
    outcome.peak_mb = _last(_PEAK, said)
    outcome.findings = sorted(findings.iterdir())
    outcome.covered = _last(_COVERED, said)
    outcome.kept = _keep(target, grown, kept, merge_seconds)
    return outcome


def _dictionary(target: Target) -> Path:
    """The words of a target's language, as libFuzzer reads them."""
    path = BUILD / f"{target.name}.dict"
    quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in target.words)
    path.write_text("".join(f'"{word}"\n' for word in quoted))
    return path


def _keep(target: Target, grown: Path, kept: Path, seconds: int) -> int:
    """
    Replace the corpus by the smallest inputs that reach as much, within a bound; how many there are.

    In less than a second nothing is compared: then it is the smallest of all that have reached something new.
    """
    with tempfile.TemporaryDirectory(prefix="broker-merge-") as merged:
        options = ["-merge=1", f"-max_len={target.input_max}", f"-timeout={INPUT_SECONDS}", "-verbosity=0"]
        if seconds:
            _run(target.name, [*options, f"-max_total_time={seconds}", merged, str(kept), str(grown)])
        else:
            for path in (*kept.iterdir(), *grown.iterdir()):
                shutil.copy(path, merged)
        smallest = sorted(Path(merged).iterdir(), key=lambda path: (path.stat().st_size, path.name))
        if not smallest:
            return len(list(kept.iterdir()))
        for path in kept.iterdir():
            path.unlink()
        room = KEPT_BYTES_MAX
        for path in smallest[:KEPT_MAX]:
            room -= path.stat().st_size
            if room < 0:
                break
            shutil.copy(path, kept / path.name)
    return len(list(kept.iterdir()))


def _run(name: str, arguments: list[str]) -> str:
    """What a target's process writes."""
    group = next(one.__name__ for one in groups() if any(target.name == name for target in one.targets()))
    with tempfile.TemporaryDirectory(prefix="broker-fuzz-") as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.run", "--child", group, name, *arguments],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": scratch},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.stdout.decode(errors="replace")


def _last(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.findall(text)
    last = found[-1] if found else "0"
    return int(last[0] if isinstance(last, tuple) else last)


def main() -> int:
    """The command."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together; default %(default)s")
    parser.add_argument(
        "--target", action="append", choices=list(targets()), help="only this one; several times for several"
    )
    parser.add_argument("--merge-seconds", type=int, default=MERGE_SECONDS, help="to choose what is kept of a target")
    arguments = parser.parse_args()
    chosen = [targets()[name] for name in arguments.target or targets()]
    sys.stdout.write("| target | seconds | inputs | inputs/s | edges | peak MB | kept | findings |\n")
    sys.stdout.write("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
    outcomes = []
    for target in chosen:
        outcomes.append(fuzz(target, max(1, arguments.seconds // len(chosen)), merge_seconds=arguments.merge_seconds))
        sys.stdout.write(outcomes[-1].row() + "\n")
        sys.stdout.flush()
    idle = [outcome.name for outcome in outcomes if not outcome.executed]
    for name in idle:
        sys.stdout.write(f"{name}: nothing was tried; see {BUILD / name}.log\n")
    findings = [path for outcome in outcomes for path in outcome.findings]
    for path in findings:
        sys.stdout.write(f"finding: {path}; see {BUILD / path.parent.name}.log\n")
    return 1 if findings or idle else 0


if __name__ == "__main__":
    sys.exit(main())
