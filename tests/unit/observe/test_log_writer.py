"""A log that nobody takes holds nobody up: lines wait, are lost past a bound, and that is told."""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.observe import logs as log_writer
from broker.observe.logs import LogWriter

LOOK_SECONDS = 0.01
PATIENCE_SECONDS = 20.0


class Held(io.StringIO):
    """A stream that takes nothing until `gate` is set. Shape: `begun` set once something is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.begun = threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        return super().write(text)


@pytest.fixture
def held() -> Iterator[Held]:
    stream = Held()
    yield stream
    stream.gate.set()


def test_lines_are_written_in_their_order() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)

    for number in range(1000):
        writer.write(f"line {number}")
    writer.close()

    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(1000)]


def test_lines_of_several_threads_are_not_mixed() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    threads = [
        threading.Thread(target=lambda name=name: deque(map(writer.write, [name * 50] * 200), maxlen=0))
        for name in "abc"
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    assert dict.fromkeys(("a" * 50, "b" * 50, "c" * 50), 200) == {
        line: stream.getvalue().splitlines().count(line) for line in set(stream.getvalue().splitlines())
    }


def test_nobody_waits_for_a_stream_that_is_held(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LINES_MAX", 5)
    told: list[int] = []
    writer = LogWriter(held, told.append)
    writer.write("first")
    assert held.begun.wait(PATIENCE_SECONDS)

    for number in range(12):
        writer.write(f"line {number}")
    assert (writer.dropped, told) == (7, [])
    held.gate.set()
    writer.close(PATIENCE_SECONDS)

    assert held.getvalue().splitlines() == ["first", *(f"line {number}" for number in range(5))]
    assert told == [7]


def test_lines_have_a_bound_in_bytes_as_well(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "BYTES_MAX", 100)
    writer = LogWriter(held)
    writer.write("first")
    assert held.begun.wait(PATIENCE_SECONDS)

    for _ in range(3):
        writer.write("x" * 40)

    assert writer.dropped == 1


def test_pipe_that_is_full_holds_nobody_up() -> None:
    """A real one, whose reader sleeps: it takes 64 KiB, and a direct write would wait for ever."""
    reader, end = os.pipe()
    with os.fdopen(end, "w") as stream:
        writer = LogWriter(stream)

        for _ in range(3 * log_writer.LINES_MAX):  # one queue is in the thread's hands, another waits
            writer.write("x" * 100)
        dropped, read = writer.dropped, 0
        while not writer.flush(0.0):
            if select.select([reader], [], [], LOOK_SECONDS)[0]:  # all may be read, and not yet known to be written
                read += len(os.read(reader, 1 << 16))
        writer.close()
    os.close(reader)

    assert dropped >= log_writer.LINES_MAX - 100
    assert read <= 101 * (3 * log_writer.LINES_MAX - dropped)


def test_reader_that_is_gone_stops_nothing() -> None:
    reader, end = os.pipe()
    os.close(reader)
    with os.fdopen(end, "w") as stream:
        writer = LogWriter(stream)

        writer.write("nobody hears it")

        assert writer.flush(PATIENCE_SECONDS)
        writer.close()


def test_descriptor_that_does_not_wait_is_waited_for() -> None:
    reader, end = os.pipe()
    os.set_blocking(end, False)
    with os.fdopen(end, "w") as stream:
        writer = LogWriter(stream)
        for _ in range(2000):
            writer.write("x" * 99)

        read = b""
        while len(read) < 200_000:
            read += os.read(reader, 1 << 16)
        writer.close()
    os.close(reader)

    assert read == (b"x" * 99 + b"\n") * 2000


def test_end_waits_for_a_held_stream_no_longer_than_it_may(held: Held) -> None:
    writer = LogWriter(held)
    writer.write("first")
    assert held.begun.wait(PATIENCE_SECONDS)

    writer.close(0.01)
    writer.write("too late")

    assert writer.dropped == 0
    held.gate.set()


def test_what_no_encoding_has_a_byte_for_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        writer = LogWriter(stream)
        writer.write("half a pair: \ud800")
        writer.close()

    assert path.read_text() == "half a pair: \\ud800\n"
