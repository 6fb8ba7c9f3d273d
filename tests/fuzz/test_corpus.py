"""Every input that fuzzing has kept, and every one it set out from, is taken or refused, in time and within memory."""

from __future__ import annotations

import gc
import time

import psutil
import pytest

from tests.fuzz.door import inputs, targets
from tests.fuzz.target import CORPUS, KIB, SECONDS_MAX, Target

TARGETS = list(targets().values())
ROUNDS = 2
GROWTH_MAX = 16 * KIB * KIB  # of the process, over that many rounds of everything


def tell(target: Target, data: bytes) -> str:
    """The beginning of an input that a test fails on, and where it is from."""
    kept = next((path.name for path in target.corpus() if path.read_bytes() == data), "a seed")
    return f"{target.name}: {kept}: {data[:200]!r}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_input_is_taken_or_refused_in_time(target: Target) -> None:
    """The errors that the module documents are the only ones."""
    for data in inputs(target):
        began = time.monotonic()
        try:
            target.attempt(data)
        except Exception as error:
            error.add_note(tell(target, data))
            raise

        assert time.monotonic() - began < SECONDS_MAX, tell(target, data)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_takes_much_memory(target: Target) -> None:
    for data in inputs(target)[::7]:  # tracing makes it ten times as slow
        _, peak = target.measure(data)

        assert peak < target.memory_max, tell(target, data)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_corpus_is_small_and_has_no_input_that_is_too_long(target: Target) -> None:
    sizes = [path.stat().st_size for path in target.corpus()]

    assert sizes, "nothing has been kept: make fuzz"
    assert max(sizes) <= target.input_max
    assert sum(sizes) <= 64 * KIB


def test_memory_does_not_grow_with_what_is_refused() -> None:
    """The first round fills caches that have bounds; the next ones may add nothing to speak of."""
    process = psutil.Process()

    def once() -> int:
        for target in TARGETS:
            for data in inputs(target):
                target.attempt(data)
        gc.collect()
        return process.memory_info().rss

    once()
    before = once()
    after = [once() for _ in range(ROUNDS)][-1]

    assert after - before < GROWTH_MAX


def test_folders_of_the_corpus_are_targets() -> None:
    folders = {path.name for path in CORPUS.iterdir()}

    assert {target.name for target in TARGETS} == folders
