"""
Thousands of stories, on all cores: `make simulate SEEDS=10000 FROM=1`; of whole instances
with mirrored pairs, of two targets of one dialog, and of pairs with a file for each partner.

A story that goes wrong is made smaller until nothing can be left out, and is then told with its history. The same
number always tells the same story: `make simulate OF=joined SEEDS=1 FROM=NUMBER`. What Python draws for the order of
its sets is always the same, for which this module begins anew where it has to.

Exit codes: 0 everything came true; 1 it did not, and the numbers are told.
"""

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from tests.simulation import command, joined, target_play
from tests.simulation.performance import Outcome

TOLD_MAX = 5  # failures that are made smaller and told; of the others the number only
SHRINK_SECONDS = 60.0
LOOK_SECONDS = 10.0  # between two lines of progress
HASHES = "PYTHONHASHSEED"


@dataclass(frozen=True)
class Subject:
    """What stories are about: how one is drawn from a number, played, and made smaller."""

    draw: Callable[[int], Any]
    play: Callable[[Any], Outcome]
    smaller: Callable[[Any], Iterator[Any]]


SUBJECTS = {
    "joined": Subject(joined.draw, joined.play, joined.smaller),
    "targets": Subject(target_play.draw, target_play.play, target_play.smaller),
    "commanded": Subject(command.draw, command.play, joined.smaller),
}


@dataclass(frozen=True)
class Told:
    """One story that was told. Shape: `problem` empty when all came true."""

    seed: int
    problem: str
    ratio: float


def trouble(story: Any, how: Callable[[Any], Outcome]) -> tuple[str, Outcome]:
    """What went wrong in a story, in one line, empty when nothing did; and how it went."""
    try:
        outcome = how(story)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - told by whoever waits
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).splitlines()[0] if str(error) else ""
        return f"{type(error).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}: {text}", Outcome()
    return "", outcome


def tell(name: str, seed: int) -> Told:
    subject = SUBJECTS[name]
    problem, outcome = trouble(subject.draw(seed), subject.play)
    return Told(seed, problem, outcome.frames / max(1, outcome.needed))


def shrunk(subject: Subject, story: Any) -> Any:
    """The smallest story found in SHRINK_SECONDS that still goes wrong."""
    deadline = time.monotonic() + SHRINK_SECONDS
    is_smaller = True
    while is_smaller and time.monotonic() < deadline:
        is_smaller = False
        for candidate in subject.smaller(story):
            if time.monotonic() > deadline:
                break
            if trouble(candidate, subject.play)[0]:
                story, is_smaller = candidate, True
                break
    return story


def explain(name: str, seed: int) -> str:
    """The smallest story of this number, its history, and what went wrong."""
    subject = SUBJECTS[name]
    story = shrunk(subject, subject.draw(seed))
    lines = [f"{name}, seed {seed}, made smaller: {story}"]
    try:
        subject.play(story)
    except BaseException as error:  # noqa: BLE001 - told by whoever waits
        lines += traceback.format_exception(error)
    return "\n".join(lines)


def simulate(name: str, seeds: range, processes: int) -> bool:
    """Play these numbers and tell how it went; whether everything came true."""
    begun = looked = time.monotonic()
    failed: list[int] = []
    done, worst = 0, Told(0, "", 0.0)
    with multiprocessing.Pool(processes, maxtasksperchild=500) as pool:
        for told in pool.imap_unordered(partial(tell, name), seeds, chunksize=10):
            done += 1
            worst = max(worst, told, key=lambda one: one.ratio)
            if told.problem:
                failed.append(told.seed)
                again = f"again: make simulate OF={name} SEEDS=1 FROM={told.seed}"
                click.echo(f"{name}, seed {told.seed}: {told.problem}; {again}")
            if time.monotonic() - looked > LOOK_SECONDS:
                looked = time.monotonic()
                click.echo(f"{name}: {done} of {len(seeds)}, {done / (looked - begun):.1f} a second")
    rate = done / (time.monotonic() - begun)
    most = f"most frames for each needed {worst.ratio:.1f}, in seed {worst.seed}"
    click.echo(f"{name}: {done} stories, {len(failed)} went wrong, {rate:.1f} a second; {most}")
    for seed in failed[:TOLD_MAX]:
        click.echo(explain(name, seed))
    return not failed


def main() -> int:
    if os.environ.get(HASHES) != "0":
        os.execve(sys.executable, sys.orig_argv, os.environ | {HASHES: "0"})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="what the stories are about")
    parser.add_argument("--seeds", type=int, default=1000, help="how many stories of each")
    parser.add_argument("--from", type=int, default=1, dest="first", help="number of the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    is_true = [simulate(name, seeds, options.processes) for name in options.of]
    return 0 if all(is_true) else 1


if __name__ == "__main__":
    sys.exit(main())
