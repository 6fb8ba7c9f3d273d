"""A process that runs has no descriptors left when it is told so, and has them again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.network.descriptors import Descriptors

# Opens as often as a line says, and tells the number of the error, 0 for none.
OPEN = """
import os, sys
os.dup2(0, 50)
for line in sys.stdin:
    opened, told = [], 0
    try:
        for _ in range(int(line)):
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        told = error.errno
    for one in opened:
        os.close(one)
    print(told, flush=True)
"""


class Opener:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert 0 == self.open(1)

    def open(self, times: int) -> int:
        """The number of the error, 0 for none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(times, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    made = Opener()
    yield made
    with made.process:
        made.process.kill()


def test_an_exhausted_process_opens_nothing_until_it_is_restored(opener: Opener) -> None:
    descriptors = Descriptors(opener.process.pid)

    assert not descriptors.is_lowered
    descriptors.exhaust()

    assert descriptors.is_lowered
    assert errno.EMFILE == opener.open(1)
    descriptors.restore()
    assert 0 == opener.open(1)
    assert not descriptors.is_lowered


@pytest.mark.parametrize(("times", "expected"), [(3, 0), (4, errno.EMFILE)])
def test_as_many_are_spared_as_are_asked_for(opener: Opener, times: int, expected: int) -> None:
    """One of its numbers is far above the others, which a limit by count would get wrong."""
    descriptors = Descriptors(opener.process.pid)

    descriptors.exhaust(spare=3)

    assert expected == opener.open(times)
    descriptors.restore()


def test_it_is_told_how_many_there_are() -> None:
    descriptors = Descriptors(os.getpid())
    before = descriptors.used

    with open(os.devnull, "rb"):  # noqa: PTH123 - any descriptor
        assert before + 1 == descriptors.used
