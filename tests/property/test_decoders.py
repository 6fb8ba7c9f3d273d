"""The two decoders are one: any records, any legend, cut anywhere, come to the same columns and names."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.forwarding.columns import HAS_QUEUED, IS_FROM_HERE, NOTHING, ColumnDecoder, Columns, Legend, PlainDecoder
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK
from broker.protocol.layout import HEADER
from tests.support.tiers import examples

compiled = pytest.importorskip("broker.forwarding.compiled_columns", reason="no compiler built it")

NUMBERS, ARRIVALS = 6, 4
GUIDS = st.sampled_from([bytes(16), b"\0" * 15 + b"\1", b"g" * 16])
NAMES = st.one_of(st.binary(min_size=0, max_size=40), st.integers(0, 3000).map(lambda number: b"//name/%d" % number))
BYTE = st.integers(0, 255)
U32 = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 2**31 - 1, 2**31]))
U64 = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([2**63 - 1, 2**63]))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    to_service, from_service = draw(NAMES), draw(NAMES)
    header = HEADER.pack(
        draw(U32),
        draw(st.integers(0x10, 255)),
        *(draw(BYTE), draw(BYTE), draw(BYTE), draw(U32), draw(U32), draw(GUIDS), draw(GUIDS), draw(U64), draw(U32)),
        *(draw(U32), draw(U64), draw(U32), len(from_service), 0, draw(GUIDS), draw(GUIDS), len(to_service)),
    )
    told = header + to_service + from_service
    number = draw(st.sampled_from([*range(NUMBERS), TAKEN_BACK]))
    left = draw(st.floats(0, 1e7))
    return HEAD.pack(HEAD_BYTES + len(told), number, draw(st.integers(0, ARRIVALS - 1)), left) + told


WORD = st.integers(NOTHING, 9)
LEGENDS = st.builds(
    Legend,
    endings=st.lists(st.tuples(*[WORD] * 7), min_size=NUMBERS, max_size=NUMBERS).map(
        lambda rows: array("i", [number for row in rows for number in row])
    ),
    entered=st.lists(st.integers(0, 2**62), min_size=ARRIVALS, max_size=ARRIVALS).map(lambda it: array("q", it)),
    adjacent_in=st.lists(WORD, min_size=ARRIVALS, max_size=ARRIVALS).map(lambda it: array("i", it)),
    flags=st.lists(st.integers(0, IS_FROM_HERE | HAS_QUEUED), min_size=ARRIVALS, max_size=ARRIVALS).map(
        lambda it: array("b", it)
    ),
    table=st.lists(WORD, min_size=ARRIVALS, max_size=ARRIVALS).map(lambda it: array("i", it)),
    offset=st.floats(0, 2e9),
)


def told(
    decoder: ColumnDecoder, parts: list[bytes], legend: Legend
) -> list[tuple[int, list[int], Columns, list[bytes]]]:
    seen = []
    for data in parts:
        count, numbers = decoder.scan(data)
        seen.append((count, numbers, decoder.fill(data, count, legend), decoder.names))
    return seen


@settings(max_examples=examples(150))
@given(st.lists(st.lists(records(), max_size=20).map(b"".join), min_size=1, max_size=3), LEGENDS)
def test_both_make_the_same_of_any_records(parts: list[bytes], legend: Legend) -> None:
    assert told(PlainDecoder(), parts, legend) == told(compiled.CompiledDecoder(), parts, legend)


def problem(decoder: ColumnDecoder, data: bytes, legend: Legend) -> list[str]:
    """What a decoder says of bytes that may be none of its own."""
    found = []
    try:
        decoder.scan(data)
    except ValueError as error:
        found.append(str(error))
    try:
        decoder.fill(data, 3, legend)
    except ValueError as error:
        found.append(str(error))
    return found


@settings(max_examples=examples(150))
@given(st.lists(records(), min_size=1, max_size=5).map(b"".join), LEGENDS, st.data())
def test_both_refuse_the_same_of_what_is_cut_or_damaged(data: bytes, legend: Legend, more: st.DataObject) -> None:
    """Never a crash, whatever the bytes say of their own length."""
    damaged = bytearray(data[: more.draw(st.integers(0, len(data)))])
    if damaged:
        damaged[more.draw(st.integers(0, len(damaged) - 1))] ^= more.draw(st.integers(1, 255))

    assert problem(PlainDecoder(), bytes(damaged), legend) == problem(
        compiled.CompiledDecoder(), bytes(damaged), legend
    )


def test_more_names_than_the_table_was_made_for_keep_their_numbers() -> None:
    names = [b"//%d" % number for number in range(5000)]
    data = bytearray()
    for name in [*names, *reversed(names)]:
        zeros = (0, 0x10, 0, 0, 0, 0, 0, bytes(16), bytes(16), 0, 0, 0, 0, 0, 1, 0, bytes(16), bytes(16))
        told = HEADER.pack(*zeros, len(name)) + name + b"f"
        data += HEAD.pack(HEAD_BYTES + len(told), 0, 0, 0.0) + told
    legend = Legend(array("i", [0] * 7), array("q", [0]), array("i", [0]), array("b", [0]), array("i", [0]))
    decoder = compiled.CompiledDecoder()

    columns = decoder.fill(bytes(data), 10_000, legend)

    numbers = memoryview(columns.values["to_service"]).cast("i").tolist()
    assert [*names, *reversed(names)] == [decoder.names[number] for number in numbers]
    assert 5001 == len(decoder.names)
