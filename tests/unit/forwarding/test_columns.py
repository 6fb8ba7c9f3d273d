"""What a header says is copied, what numbers stand for is looked up, and nothing that is no record is taken for one."""

from array import array

import pytest

from broker.forwarding.columns import IS_FROM_HERE, Columns, Legend, PlainDecoder, microseconds
from broker.forwarding.kernels import DECODERS, make_decoder
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK
from broker.protocol.layout import Flag, FrameKind
from tests.support.records import frame

ENDING = (2, 3, 4, 5, 6, 7, 8)  # outcome here, elsewhere, reason, code, route, route_table, adjacent_out
EVERY_DECODER = pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS)


def record(data: bytes, *, way: int = 0, arrival: int = 0) -> bytes:
    told = data[:-4]  # without the body
    return HEAD.pack(HEAD_BYTES + len(told), way, arrival, 1000.5) + told


def legend(*endings: tuple[int, ...], flags: int = 0) -> Legend:
    numbers = [number for ending in endings or (ENDING,) for number in ending]
    return Legend(
        array("i", numbers), array("q", [123]), array("i", [9]), array("b", [flags]), array("i", [10]), offset=0.25
    )


def numbers(columns: Columns, name: str, code: str = "i") -> list[int]:
    return memoryview(columns.values[name]).cast(code).tolist()  # type: ignore[call-overload,no-any-return]


@EVERY_DECODER
def test_row_has_what_the_header_says(make: type[PlainDecoder]) -> None:
    data = frame(
        kind=FrameKind.FAULT,
        flags=Flag.FROM_TARGET,
        hop_count=2,
        hop_limit=9,
        time_to_live=60_000,
        time_consumed=12,
        sequence_number=7,
        fragment_number=3,
        to_broker_instance=b"t" * 16,
    )
    decoder = make()

    columns = decoder.fill(record(data), 1, legend())

    assert [2] == numbers(columns, "kind")
    assert b"\1" == columns.values["from_target"]
    assert [(2, 9), (3, len(data))] == [
        (*numbers(columns, one), *numbers(columns, other))
        for one, other in (("hop_count", "hop_limit"), ("fragment_number", "bytes"))
    ]
    assert [[60_000], [12], [7]] == [
        numbers(columns, name, "q") for name in ("time_to_live_ms", "time_consumed_ms", "sequence_number")
    ]
    assert bytes(range(16)) == columns.values["message_id"]
    assert b"t" * 16 == columns.values["to_broker_instance"]
    assert b"\1" == columns.valid["to_broker_instance"]
    assert [b"//to", b"//from"] == decoder.names
    assert ([0], [1]) == (numbers(columns, "to_service"), numbers(columns, "from_service"))


@EVERY_DECODER
def test_row_has_what_the_legend_says_of_its_numbers(make: type[PlainDecoder]) -> None:
    elsewhere = make().fill(record(frame()), 1, legend())
    here = make().fill(record(frame()), 1, legend(flags=IS_FROM_HERE))

    words = ("outcome", "reason", "code", "route", "route_table", "adjacent_out", "adjacent_in")
    assert [[3], [4], [5], [6], [7], [8], [9]] == [numbers(elsewhere, name) for name in words]
    assert [123] == numbers(elsewhere, "entered_at", "q")
    assert [microseconds(1000.75)] == numbers(elsewhere, "left_at", "q")
    assert [2] == numbers(here, "outcome")
    assert [10] == numbers(here, "route_table")


@EVERY_DECODER
@pytest.mark.parametrize("damage", ["short", "long", "names"])
def test_what_is_no_record_is_refused(make: type[PlainDecoder], damage: str) -> None:
    good = record(frame())
    data = {
        "short": good + good[:-1],
        "long": good + good + b"x",
        "names": good + good[:50] + bytes((good[50] ^ 1,)) + good[51:-1],
    }[damage]

    with pytest.raises(ValueError, match="no record at byte"):
        make().scan(data)
    with pytest.raises(ValueError, match="no record at byte"):
        make().fill(data, 9, legend())


@EVERY_DECODER
def test_record_that_the_legend_does_not_tell_of_is_refused(make: type[PlainDecoder]) -> None:
    for data, count in ((record(frame(), way=1), 1), (record(frame(), arrival=1), 1), (record(frame()) * 2, 1)):
        with pytest.raises(ValueError, match="no record at byte"):
            make().fill(data, count, legend())
    with pytest.raises(ValueError, match="a way has the number"):
        make().scan(record(frame(), way=TAKEN_BACK - 1))


@EVERY_DECODER
def test_names_are_numbered_anew_after_they_were_forgotten(make: type[PlainDecoder]) -> None:
    decoder = make()
    decoder.fill(record(frame(to_service="//a")), 1, legend())
    decoder.forget()

    columns = decoder.fill(record(frame(to_service="//b", from_service="//b")), 1, legend())

    assert [b"//b"] == decoder.names
    assert [0] == numbers(columns, "to_service") == numbers(columns, "from_service")


def test_compiled_decoder_is_the_first_choice_and_reads_the_memory_of_a_ring_where_it_is() -> None:
    """A view of a part of a bytearray does as well as bytes, and is let go of afterwards."""
    compiled = pytest.importorskip("broker.forwarding.compiled_columns", reason="no compiler built it")
    memory, decoder = bytearray(8), make_decoder()

    assert isinstance(decoder, compiled.CompiledDecoder)
    assert (0, []) == decoder.scan(memoryview(memory)[:0])
    assert 0 == decoder.fill(memoryview(memory)[:0], 0, Legend()).rows
    memory += b"x"  # a view that is still held would forbid it
