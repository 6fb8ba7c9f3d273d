"""
A synthetic history: the journals of many instances over hours, with all that goes wrong, and the truth beside them.

The history is made stretch by stretch, each of a quarter of an hour or less, so memory does not grow with it. What is
begun in a stretch and ends later waits for the stretch in which it ends, as it would in the instances. The same seed
makes the same files with the same rows.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.support.histories.dialogs import make_dialogs
from tests.support.histories.files import Files
from tests.support.histories.rows import Rows
from tests.support.histories.sending import Sending, known_of
from tests.support.histories.truth import Truth
from tests.support.histories.world import SECOND, Longs, Scenario, make_world

TRUTH = "_truth"  # readers of journals skip what begins with an underscore
LONGEST_STRETCH = 900 * SECOND  # as old as the files of a journal become
STRETCH_MESSAGES = 120_000  # of which some 800,000 visits are made: half a gigabyte


def generate(directory: Path, scenario: Scenario) -> dict[str, int]:
    """
    Write a history, and the truth of it in `_truth`.

    Args:
        directory: Made when it is missing; else empty.
        scenario: What is asked for.

    Returns:
        How many messages, dialogs, transmissions, visits and files there are.

    Raises:
        ValueError: the directory holds something.
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty; name a new directory")
    world = make_world(scenario)
    dialogs = make_dialogs(scenario, world)
    rows = Rows(dialogs, world)
    truth = Truth(directory / TRUTH, rows, world, scenario)
    rng = np.random.default_rng([scenario.seed, 3])
    files = Files(directory, world, scenario.sample, rng, scenario.late_share)
    waiting = _Waiting()
    for number, (begin, end) in enumerate(_stretches(scenario)):
        chance = np.random.default_rng([scenario.seed, 4, number])
        sent = Sending(dialogs, world, scenario, chance).between(begin, end)
        journalled = known_of(sent, scenario.duration, dialogs.is_sampled)
        truth.add(sent, journalled)
        waiting.add(rows.table(journalled, sent.frames), journalled.node, journalled.left)
        files.write(*waiting.take(end), begin)
    files.close(scenario.duration)
    truth.finish()
    if scenario.has_bad_files:
        files.spoil()
    counts = {
        "messages": scenario.messages,
        "dialogs": dialogs.count,
        "transmissions": truth.count,
        "visits": sum(files.written.values()),
        "files": len(files.written),
    }
    told = {"scenario": asdict(scenario), "counts": counts, "bad_files": files.bad}
    (directory / TRUTH / "truth.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return counts


class _Waiting:
    """Rows that are made and not due yet."""

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._node: list[Longs] = []
        self._left: list[Longs] = []

    def add(self, rows: pa.Table, node: Longs, left: Longs) -> None:
        self._rows.append(rows)
        self._node.append(node)
        self._left.append(left)

    def take(self, end: int) -> tuple[pa.Table, Longs, Longs]:
        """What left before an instant."""
        rows = pa.concat_tables(self._rows)
        node, left = np.concatenate(self._node), np.concatenate(self._left)
        due = left < end
        self._rows, self._node, self._left = [rows.filter(pa.array(~due))], [node[~due]], [left[~due]]
        return rows.filter(pa.array(due)), node[due], left[due]


def _stretches(scenario: Scenario) -> list[tuple[int, int]]:
    by_size = scenario.duration * STRETCH_MESSAGES // scenario.messages
    length = max(SECOND, min(LONGEST_STRETCH, by_size))
    begins = range(0, scenario.duration, length)
    return [(begin, min(begin + length, scenario.duration)) for begin in begins]
