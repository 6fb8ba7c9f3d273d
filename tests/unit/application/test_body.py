"""What is a body, where it becomes large, and how much of it is ever read at once."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from broker.client.body import read_body
from broker.errors import ConversationError
from broker.store.sqlite.schema import LARGE_BYTES, PART_BYTES


def read(body: Any) -> tuple[bytes, list[int]]:
    """All of a body, and the lengths of its parts; none when it is one value."""
    found = read_body(body)
    if isinstance(found, bytes):
        return found, []
    parts = list(found)
    return b"".join(parts), list(map(len, parts))


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"", b""),
        ("", b""),
        ("żółw", "żółw".encode()),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(array("H", [0x4141])), b"AA"),
        (io.BytesIO(b"file"), b"file"),
        (io.BytesIO(), b""),
        ([b"a", bytearray(b"b"), memoryview(b"c"), b""], b"abc"),
        ((piece for piece in (b"x", b"y")), b"xy"),
        ([], b""),
    ],
)
def test_small_body_is_one_value(body: Any, value: bytes) -> None:
    assert (value, []) == read(body)


@pytest.mark.parametrize("form", [bytes, io.BytesIO, lambda data: [data], lambda data: [data[:7], data[7:]], bytearray])
@pytest.mark.parametrize(
    ("length", "parts"),
    [
        (LARGE_BYTES, []),
        (LARGE_BYTES + 1, [PART_BYTES] * 4 + [1]),
        (LARGE_BYTES + PART_BYTES, [PART_BYTES] * 5),
        (2 * LARGE_BYTES - 5, [PART_BYTES] * 7 + [PART_BYTES - 5]),
    ],
)
def test_large_body_comes_in_parts(form: Any, length: int, parts: list[int]) -> None:
    data = bytes(range(251)) * (length // 251 + 1)

    assert (data[:length], parts) == read(form(data[:length]))


def test_file_is_a_body(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"z" * (LARGE_BYTES + 3))

    with path.open("rb") as file, path.open("rb", buffering=0) as unbuffered:
        lengths = [len(read(file)[0]), len(read(unbuffered)[0])]

    assert [LARGE_BYTES + 3] * 2 == lengths


def test_no_more_is_read_than_tells_whether_a_body_is_large() -> None:
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(PART_BYTES)

    parts = read_body(endless())

    assert LARGE_BYTES // PART_BYTES + 1 == len(taken)
    assert not isinstance(parts, bytes)
    assert PART_BYTES == len(next(parts))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (5, "is bytes, str, a binary file or an iterable of bytes, not int"),
        ([1, 2], "the pieces of a message body are bytes, not int"),
        (["text"], "are bytes, not str"),
        (io.StringIO("text"), "open the file in binary mode"),
        ({}, r"an iterable of bytes, not dict; a structure is sent as text, as of json\.dumps"),
        ({"order": 7}, "an iterable of bytes, not dict"),
        ({b"order": b"7"}, "an iterable of bytes, not dict"),
        (set(), "an iterable of bytes, not set"),
        (frozenset([b"x"]), "an iterable of bytes, not frozenset"),
        (MappingProxyType({}), "an iterable of bytes, not mappingproxy"),
    ],
)
def test_what_is_no_body_is_refused_with_what_would_be(body: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        read(body)


def test_file_that_has_nothing_now_is_refused() -> None:
    class NonBlocking(io.RawIOBase):
        def read(self, size: int = -1) -> None:
            return None

    with pytest.raises(TypeError, match="not NoneType"):
        read_body(NonBlocking())


def test_no_body_is_an_error_of_the_original() -> None:
    with pytest.raises(ConversationError) as caught:
        read_body(None)  # type: ignore[arg-type]

    assert 8433 == caught.value.number


def test_text_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ConversationError, match=r"the message body .* cannot be written as UTF-8") as caught:
        read_body("\udcff" * 500)

    assert 8433 == caught.value.number
    assert len(str(caught.value)) < 200
