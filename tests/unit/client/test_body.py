"""What is a body, where it becomes large, and how much of it is ever read at once."""

import io
import json
import os
import sqlite3
import subprocess
import sys
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, get_current_span, use_span

from broker.client.body import Carried, LargeBody, carried, context_of, headers_of, joined, read_body, temporary_file
from broker.client.dialog import Dialog, send
from broker.errors import ConversationError
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, Flag
from broker.store.sqlite.schema import LARGE_BYTES, PART_BYTES
from tests.support.shop import Shop


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
        ("żółw", "żółw".encode()),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(array("H", [0x4141])), b"AA"),
        (io.BytesIO(b"file"), b"file"),
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
        (2 * LARGE_BYTES - 5, [PART_BYTES] * 7 + [PART_BYTES - 5]),
    ],
)
def test_large_body_comes_in_parts(form: Any, length: int, parts: list[int]) -> None:
    data = bytes(range(251)) * (length // 251 + 1)

    assert (data[:length], parts) == read(form(data[:length]))


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
        ({b"order": b"7"}, r"an iterable of bytes, not dict; a structure is sent as text, as of json\.dumps"),
        (frozenset([b"x"]), "an iterable of bytes, not frozenset"),
        (MappingProxyType({}), "an iterable of bytes, not mappingproxy"),
    ],
)
def test_what_is_no_body_is_refused_with_what_would_be(body: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        read(body)


def test_no_body_and_text_that_is_no_utf_8_are_errors_of_the_original() -> None:
    with pytest.raises(ConversationError) as missing:
        read_body(None)  # type: ignore[arg-type]
    with pytest.raises(ConversationError, match=r"the message body .* cannot be written as UTF-8") as caught:
        read_body("\udcff" * 500)

    assert 8433 == missing.value.number == caught.value.number
    assert len(str(caught.value)) < 200


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, QUIET = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
ROWS = "SELECT message_sequence_number, headers, flags FROM broker_transmission ORDER BY transmission_id"


def span(state: TraceState | None = None) -> NonRecordingSpan:
    """A span of an application."""
    return NonRecordingSpan(
        SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
    )


@pytest.mark.parametrize(("parent", "flags"), [(SAMPLED, int(Flag.TRACE)), (QUIET, 0), ("nonsense", 0)])
def test_a_trace_that_is_sampled_is_followed_on_its_way(parent: str, flags: int) -> None:
    assert Carried(json.dumps({"traceparent": parent}), flags) == carried({"traceparent": parent})


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ("traceparent", "headers have to be a mapping of text to text, not str"),
        ({"a": 1}, "the header 'a' has to be text, not 1"),
        ({1: "a"}, "a header's name has to be text, not 1"),
        ({"": "a"}, "a header's name is empty"),
        ({"a": "\ud800"}, "the header 'a' .* cannot be written as UTF-8"),
        ({str(n): "" for n in range(HEADERS_MAX + 1)}, f"at most {HEADERS_MAX} headers"),
        ({"a": "\u00e9" * (HEADERS_MAX_BYTES // 2)}, f"these are 1, of {HEADERS_MAX_BYTES + 1} bytes"),
    ],
)
def test_what_are_no_headers_is_refused(headers: Any, problem: str) -> None:
    with pytest.raises(ConversationError, match=problem) as caught:
        carried(headers)

    assert 8412 == caught.value.number


def test_every_way_to_send_takes_headers(shop: Shop, dialog: Dialog) -> None:
    told, large = {"n": "1"}, bytes(2 << 20)

    dialog.send(b"small", headers=told)
    dialog.send(large, headers={"traceparent": SAMPLED})
    dialog.send_many([b"a", large], headers=told)
    send([dialog], b"all", headers=told)
    send([dialog], large, headers=told)
    dialog.send(b"without")

    one = ('{"n": "1"}', 0)
    traced = (json.dumps({"traceparent": SAMPLED}), int(Flag.TRACE))
    assert [one, traced, one, one, one, one, (None, 0)] == [row[1:] for row in shop.look(ROWS)]


def test_context_of_the_span_at_work_is_sent_by_itself(shop: Shop, dialog: Dialog) -> None:
    with use_span(span(state=TraceState([("vendor", "x")]))):
        dialog.send(b"body", headers={"tenant": "7"})

    ((_, headers, flags),) = shop.look(ROWS)
    assert {"tenant": "7", "traceparent": SAMPLED, "tracestate": "vendor=x"} == headers_of(headers)
    assert int(Flag.TRACE) == flags


def test_a_context_that_the_application_gives_counts_and_one_without_room_stays_here() -> None:
    full = {str(number): "" for number in range(HEADERS_MAX)}

    with use_span(span()):
        assert {"traceparent": QUIET} == joined({"traceparent": QUIET})
        assert full == joined(full)


def test_context_of_a_message_is_the_parent_of_a_span() -> None:
    context = context_of({"traceparent": SAMPLED, "tracestate": "vendor=x"})

    told = get_current_span(context).get_span_context()
    assert (TRACE, SPAN, True) == (f"{told.trace_id:032x}", f"{told.span_id:016x}", told.is_remote)


WITHOUT = """
import sys
from broker.client.body import carried, context_of, joined

assert joined(None) is None
carried({"a": "b"})
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "imported by sending"
sys.modules["opentelemetry"] = None  # as where it is not installed
assert context_of({"traceparent": sys.argv[1]}) is None
"""


def test_nothing_is_imported_for_those_who_do_not_trace() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, SAMPLED], check=False, capture_output=True, text=True, timeout=60
    )

    assert (0, "") == (done.returncode, done.stderr)


LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"


@pytest.fixture
def body(shop: Shop) -> LargeBody:
    """A body in fragments, on a connection with settings of its own."""
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive_large(dialog, LARGE, number=3)
    (count,) = db.execute("SELECT body_fragments FROM broker_message").fetchone()
    db.row_factory = sqlite3.Row
    return LargeBody(db, dialog.endpoint_id, 3, count)


@pytest.mark.parametrize("size", [1000, 59_999, 60_001, 700_000])
def test_body_is_read_in_any_portions(body: LargeBody, size: int) -> None:
    portions = list(iter(partial(body.open().read, size), b""))

    assert LARGE == b"".join(portions)
    assert {size} == {len(portion) for portion in portions[:-1]}


def test_body_whose_fragments_are_gone_says_when_to_read_it(body: LargeBody) -> None:
    file = body.open()
    file.read(1)
    body.db.execute("DELETE FROM broker_fragment")

    for read in (file.read, body.open().read, body.length):
        with pytest.raises(ValueError, match="before the transaction that received it ends"):
            read()


@pytest.mark.parametrize("refusal", [None, 95, 21], ids=["nameless", "not supported", "an old kernel"])
def test_file_has_no_name_and_keeps_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    plain = os.open

    def open_named(path: str, flags: int, mode: int) -> int:
        if refusal is not None and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(refusal, "refused")
        return plain(path, flags, mode)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "open", open_named)

    with temporary_file() as file:
        file.write(b"body")
        file.seek(0)

        assert (b"body", [], 0o600) == (file.read(), list(tmp_path.iterdir()), os.fstat(file.fileno()).st_mode & 0o777)
