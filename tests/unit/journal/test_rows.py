"""What became of a frame, told in the columns of the journal."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from broker.flow import COLUMNS, Disposition
from broker.forwarding.entry import ForwardingEntry, Queued
from broker.forwarding.kernels import DECODERS, make_decoder
from broker.forwarding.outbox import DropSink
from broker.journal.rows import RowBuffer
from broker.protocol.layout import NO_GUID, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.route import MirroredPair
from tests.support.records import EAST, HEADER, Tape, frame, outbox, way

OFFSET = 1_767_000_000.0 - 1000.0  # monotonic 1000 is this instant
NOW = datetime.fromtimestamp(1_767_000_000, UTC)
PAIR = MirroredPair("//to", UUID(int=1), EAST, NetworkAddress("far"))


def rows_of(tape: Tape, decoder: str = "") -> list[dict[str, Any]]:
    rows = RowBuffer("gw", make_decoder(decoder))
    rows.add(tape.batch(offset=OFFSET))
    found: list[dict[str, Any]] = rows.take().to_pylist()
    return found


@pytest.mark.parametrize("decoder", DECODERS)
def test_forwarded_frame_is_a_whole_row(decoder: str) -> None:
    tape = Tape()
    tape.enter(frame(to_broker_instance=NO_GUID), way(), now=1000.5)

    (row,) = rows_of(tape, decoder)

    assert [column.name for column in COLUMNS] == list(row)
    assert {
        "entered_at": NOW + timedelta(seconds=0.5),
        "left_at": NOW + timedelta(seconds=0.5),
        "instance": "gw",
        "outcome": "forwarded",
        "reason": None,
        "code": None,
        "kind": "message",
        "message_id": HEADER.message_id,
        "conversation_id": HEADER.conversation_id,
        "from_target": False,
        "sequence_number": 0,
        "fragment_number": 0,
        "hop_count": 0,
        "hop_limit": HEADER.hop_limit,
        "time_to_live_ms": HEADER.time_to_live,
        "time_consumed_ms": 0,
        "bytes": len(frame()),
        "to_service": "//to",
        "from_service": "//from",
        "to_broker_instance": None,
        "from_broker_instance": b"f" * 16,
        "route": "ToEast",
        "route_table": "msdb",
        "adjacent_in": "west",
        "adjacent_out": str(EAST),
    } == row


HERE, ELSEWHERE = None, "west"
DROP = DropSink(Disposition.NO_ROUTE, lambda *_: None)
LOST = way(Disposition.NO_ROUTE, route="", sink=DROP)


@pytest.mark.parametrize(
    ("taken", "come_from", "expected"),
    [
        (way(), ELSEWHERE, ("forwarded", None, None)),
        (way(), HERE, ("sent", None, None)),
        (way(Disposition.DELIVERED), HERE, ("sent", None, None)),
        (LOST, ELSEWHERE, ("dropped", "no route", 9798)),
        (LOST, HERE, ("dropped", "no route", 9798)),
    ],
)
def test_way_says_what_became_of_a_frame(
    taken: ForwardingEntry, come_from: str | None, expected: tuple[Any, ...]
) -> None:
    tape = Tape()
    tape.enter(frame(), taken, come_from=come_from)

    (row,) = rows_of(tape)

    assert expected == (row["outcome"], row["reason"], row["code"])


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, ("acknowledged", None, None)),
        (Disposition.DELIVERED, ("delivered", None, None)),
        (Disposition.DUPLICATE, ("duplicate", None, None)),
        (Disposition.OUT_OF_SEQUENCE, ("dropped", "out of sequence", 11217)),
    ],
)
def test_database_says_what_became_of_a_frame(verdict: Disposition | None, expected: tuple[Any, ...]) -> None:
    tape = Tape()
    tape.tell(frame(hop_count=1), verdict, entered=990.0, left=1001.0)

    (row,) = rows_of(tape)

    assert expected == (row["outcome"], row["reason"], row["code"])
    assert (NOW - timedelta(seconds=10), NOW + timedelta(seconds=1)) == (row["entered_at"], row["left_at"])
    assert (None, None, None) == (row["route"], row["route_table"], row["adjacent_out"])


def test_what_the_pass_gave_a_database_is_left_to_that() -> None:
    tape = Tape()
    tape.enter(frame(), way(Disposition.DELIVERED))
    rows = RowBuffer("gw", make_decoder())

    assert 0 == rows.add(tape.batch())
    assert (0, 0) == (rows.count, rows.take().num_rows)


def test_frame_from_a_queue_entered_when_it_was_put_there() -> None:
    ids = [bytes((number,)) * 16 for number in range(4)]
    queued = {
        ids[0]: Queued(NOW.timestamp() - 7.25, is_resend=False),
        ids[1]: Queued(NOW.timestamp() - 60, is_resend=True),
        ids[2]: Queued(NOW.timestamp() + 60, is_resend=False),  # somebody has set the clock back
    }
    tape = Tape()
    for number, message_id in enumerate(ids):
        tape.enter(frame(message_id=message_id, sequence_number=number), way(), come_from=None, queued=queued)

    rows = rows_of(tape)

    assert ["sent", "resent", "sent", "sent"] == [row["outcome"] for row in rows]
    waited = [(row["left_at"] - row["entered_at"]).total_seconds() for row in rows]
    assert [7.25, 60.0, 0.0, 0.0] == waited


@pytest.mark.parametrize("decoder", DECODERS)
def test_route_of_what_a_database_here_sends_is_of_its_own_table(decoder: str) -> None:
    tape, shared = Tape(), way()
    for database in ("orders", "billing", ""):
        tape.enter(frame(), shared, come_from=None, database=database)
    tape.enter(frame(), way(route=""), come_from=None, database="orders")
    tape.enter(frame(), shared)

    rows = rows_of(tape, decoder)

    assert ["orders", "billing", None, None, "msdb"] == [row["route_table"] for row in rows]
    assert [None, None, None, None, "west"] == [row["adjacent_in"] for row in rows]


def test_mirrored_pair_is_written_as_where_its_principal_was() -> None:
    tape, rows = Tape(), RowBuffer("gw", make_decoder())
    to_pair = ForwardingEntry(outbox(), Disposition.FORWARDED, kind=FrameKind.MESSAGE, route="Pair")
    to_pair.sink.address = PAIR  # type: ignore[attr-defined]
    for principals in ({}, {PAIR: EAST}, {PAIR: NetworkAddress("far")}):
        tape.enter(frame(), to_pair)
        rows.add(tape.batch()._replace(principals=principals))

    table = rows.take()

    assert [str(PAIR), str(EAST), str(NetworkAddress("far"))] == table["adjacent_out"].to_pylist()


def test_batches_share_their_words_until_they_are_taken() -> None:
    tape, rows = Tape(), RowBuffer("gw", make_decoder())
    for name in ("//a", "//b", "//a"):
        tape.enter(frame(to_service=name), way(route=f"r{name}"), come_from=name)
        assert 1 == rows.add(tape.batch())
    assert 3 == rows.count

    first = rows.take()
    tape.enter(frame(to_service="//c"), way(route="c"))
    rows.add(tape.batch())
    second = rows.take()

    assert (["//a", "//b", "//a"], ["r//a", "r//b", "r//a"]) == (
        first["to_service"].to_pylist(),
        first["route"].to_pylist(),
    )
    assert [["//c"], ["c"], ["west"]] == [second[name].to_pylist() for name in ("to_service", "route", "adjacent_in")]
    dictionary = second["to_service"].chunk(0).dictionary.to_pylist()
    assert ["//c", "//from"] == dictionary  # and none of earlier


def test_number_that_stands_for_another_way_by_now_is_told_anew() -> None:
    tape, rows = Tape(), RowBuffer("gw", make_decoder())
    old = way(route="Old")
    tape.enter(frame(), old)
    rows.add(tape.batch())
    tape.ring.retire([old])
    tape.take()
    tape.enter(frame(), way(route="New"))
    rows.add(tape.batch())

    assert ["Old", "New"] == rows.take()["route"].to_pylist()


def test_name_that_is_no_text_is_written_as_far_as_it_is_one() -> None:
    broken = bytearray(frame(to_service="//tx"))
    broken[broken.index(b"//tx") + 3] = 0xFF
    tape = Tape()
    tape.enter(bytes(broken), way())

    assert ["//t�"] == [row["to_service"] for row in rows_of(tape)]
