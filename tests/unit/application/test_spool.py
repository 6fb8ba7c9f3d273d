"""Bodies that wait in memory and in a file: they come back as they were put, whoever made them."""

from __future__ import annotations

import io
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.sending import BATCH_BYTES, Spool, settled
from broker.errors import StoreUnavailableError


def told(spool: Spool) -> list[tuple[str, bytes | list[bytes]]]:
    return [(name, data if isinstance(data, bytes) else list(data)) for name, data in spool.messages()]


@pytest.mark.parametrize("size", [0, 1, BATCH_BYTES // 2, BATCH_BYTES + 1])
def test_messages_come_back_in_order(size: int) -> None:
    put: list[tuple[str, bytes | list[bytes]]] = [
        ("T", b"a" * size),
        ("ż", [b"b" * size, b"c", b"d" * size]),
        ("U", [b"e"]),
        ("T", b""),
        ("V", b"f" * size),
    ]
    with Spool() as spool:
        for name, data in put:
            spool.put(name, data if isinstance(data, bytes) else iter(data))

        assert put == told(spool)


def test_memory_is_that_of_a_few_batches() -> None:
    length = 0
    tracemalloc.start()
    try:
        with Spool() as spool:
            for number in range(64):
                spool.put("T", bytes([number]) * BATCH_BYTES)
            for _, data in spool.messages():
                assert isinstance(data, bytes)
                length += len(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert 64 * BATCH_BYTES == length
    assert peak < 8 * BATCH_BYTES


def test_no_room_for_the_file_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    with (
        Spool() as spool,
        pytest.raises(StoreUnavailableError, match="gone: a body cannot be kept in a temporary file"),
    ):
        spool.put("T", bytes(BATCH_BYTES))


def test_parts_that_an_application_makes_are_all_read_first() -> None:
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        for number in range(3):
            seen.append(number)
            yield bytes([number]) * BATCH_BYTES

    made = parts()
    with settled(made, made) as read:
        assert [0, 1, 2] == seen
        assert [bytes([number]) * BATCH_BYTES for number in range(3)] == list(read)


def test_parts_of_bytes_and_real_files_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"x")
    parts = iter([b"x"])

    with path.open("rb") as buffered, path.open("rb", buffering=0) as raw:
        for body in (b"x", bytearray(b"x"), "x", io.BytesIO(b"x"), buffered, raw):
            with settled(body, parts) as read:
                assert parts is read


def test_a_pipe_is_read_first() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    parts = iter([b"x"])

    with os.fdopen(reading, "rb") as pipe, settled(pipe, parts) as read:
        assert parts is not read
        assert [b"x"] == list(read)


def test_a_file_whose_bytes_an_application_makes_is_read_first() -> None:
    class Made(io.RawIOBase):
        def readable(self) -> bool:
            return True

    parts = iter([b"x"])

    with settled(io.BufferedReader(Made()), parts) as read:
        assert parts is not read
        assert [] == list(parts)
        assert [b"x"] == list(read)
