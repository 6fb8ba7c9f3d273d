"""Inputs that fuzzing has kept or set out from, as they are and spoilt: taken or refused, in time and memory."""

import gc
import struct
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.live import close
from tests.fuzz.target import CORPUS, KIB, SECONDS_MAX, Target, targets
from tests.support.tiers import examples

TARGETS = list(targets().values())
EACH = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
ROUNDS = 2
GROWTH_MAX = 16 * KIB * KIB  # of the process, over that many rounds of everything


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    close()


def tell(target: Target, data: bytes) -> str:
    """The beginning of an input that a test fails on, and where it is from."""
    kept = next((path.name for path in target.corpus() if path.read_bytes() == data), "a seed")
    return f"{target.name}: {kept}: {data[:200]!r}"


@EACH
def test_every_input_is_taken_or_refused_in_time(target: Target) -> None:
    """The errors that the module documents are the only ones."""
    for data in target.inputs():
        began = time.monotonic()
        try:
            target.attempt(data)
        except Exception as error:
            error.add_note(tell(target, data))
            raise

        assert time.monotonic() - began < SECONDS_MAX, tell(target, data)


@EACH
def test_no_input_takes_much_memory(target: Target) -> None:
    for data in target.inputs()[::7]:  # tracing makes it ten times as slow
        _, peak = target.measure(data)

        assert peak < target.memory_max, tell(target, data)


def test_corpus_has_a_folder_for_each_target_and_is_small() -> None:
    assert {target.name for target in TARGETS} == {path.name for path in CORPUS.iterdir()}
    for target in TARGETS:
        sizes = [path.stat().st_size for path in target.corpus()]
        assert 0 < max(sizes, default=0) <= target.input_max, target.name
        assert sum(sizes) <= 64 * KIB, target.name


def test_memory_does_not_grow_with_what_is_refused() -> None:
    """The first round fills caches that have bounds; the next ones may add nothing to speak of."""
    process = psutil.Process()

    def once() -> int:
        for target in TARGETS:
            for data in target.inputs():
                target.attempt(data)
        gc.collect()
        return process.memory_info().rss

    once()
    before = once()
    for _ in range(ROUNDS):
        after = once()

    assert after - before < GROWTH_MAX


@st.composite
def spoilt(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes that are cut, flipped, doubled, or have something put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["cut", "flip", "double", "insert", "length"])):
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "double":
                data[at:at] = data[at : at + 64]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "length" if at + 4 <= len(data):
                data[at : at + 4] = struct.pack(">I", draw(st.sampled_from([0, 1, 7, 8, 2**16, 2**31, 2**32 - 1])))
            case _:
                pass
    return bytes(data)


@pytest.mark.long
@EACH
@settings(max_examples=examples(200))
@given(st.data())
def test_what_is_nearly_right_is_taken_or_refused(target: Target, data: st.DataObject) -> None:
    """It goes deeper than what is random."""
    target.attempt(data.draw(st.sampled_from(target.inputs()).flatmap(spoilt))[: 4 * target.input_max])
