"""The catalogue of numbers is read as it is written, and says something of everything in it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.conversation.state import ConversationState
from broker.errors import StoreUnavailableError
from broker.flow import NUMBER, Disposition
from broker.observe import views as module
from broker.observe.query import SELF_MADE, SystemViews, shown_value
from broker.observe.views import (
    AUDIT_COLUMNS,
    COLUMN_COLUMNS,
    GUID_COLUMNS,
    INSTANT_COLUMNS,
    MEMORY_VIEWS,
    MESSAGE_COLUMNS,
    MSDB_ROUTES,
    UNTRIED,
    VIEW_COLUMNS,
    MessageChannel,
    MessageEntry,
    audit_rows,
    catalogue,
    column_rows,
    make_row,
    message_rows,
    read,
    view_rows,
)
from broker.store.sqlite.views import FILE_VIEWS, QUEUE

TABLE = """
[9744]
title = "T"
remedy = "R"
when.statement = "S"
example.statement = '''
CREATE ROUTE
'''
"""


def test_a_table_becomes_an_entry(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TABLE)

    expected = MessageEntry(
        9744,
        "T",
        {MessageChannel.STATEMENT: "S"},
        "R",
        example={MessageChannel.STATEMENT: "CREATE ROUTE"},
        original="",
        reason="",
        told="",
    )
    assert {"9744": expected} == read(tmp_path)


def test_numbers_come_in_their_order_and_words_behind_them(tmp_path: Path) -> None:
    for key in ("forwarded", "9744", "102", "28041"):
        (tmp_path / f"{key}.toml").write_text(TABLE.replace("9744", key))

    entries = read(tmp_path)

    assert ["102", "9744", "28041", "forwarded"] == list(entries)
    assert 0 == entries["forwarded"].number


def test_a_number_is_in_one_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(TABLE)

    with pytest.raises(ValueError, match=r"b\.toml has a second table \[9744\]"):
        read(tmp_path)


def test_everything_has_words() -> None:
    silent = [
        key
        for key, entry in catalogue().items()
        if not (entry.title and entry.when and entry.remedy) or (entry.number and not entry.original)
    ]

    assert [] == silent


def test_of_what_fails_a_dialog_it_is_said_who_is_told() -> None:
    assert [] == [key for key, entry in catalogue().items() if MessageChannel.DIALOG in entry.when and not entry.told]


def test_every_disposition_is_there_with_its_number_and_who_is_told() -> None:
    reasons = {entry.reason: entry for entry in catalogue().values() if entry.reason}

    assert {str(one): one.number for one in Disposition} == {reason: entry.number for reason, entry in reasons.items()}
    assert all(entry.told and MessageChannel.FRAME in entry.when for entry in reasons.values())
    assert len(NUMBER) == sum(1 for entry in reasons.values() if entry.number)


START = datetime(2026, 11, 22, tzinfo=UTC)


def _write(path: Path, first: int, last: int) -> None:
    lines = ({"at": (START + timedelta(seconds=n)).isoformat(), "target": str(n)} for n in range(first, last))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _targets(path: Path) -> list[int]:
    index = list(AUDIT_COLUMNS).index("target")
    return [int(str(row[index])) for row in audit_rows(path)]


def test_rows_are_those_of_the_file_the_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 20, 23)
    _write(tmp_path / "audit.jsonl.1", 10, 13)

    assert [20, 21, 22] == _targets(path)


@pytest.mark.parametrize(
    ("line", "unsaid"),
    [
        ('{"at": "2026-11-22", "unsaid": 9223372036854775808}', ["9223372036854775808"]),
        ('{"at": "2026-11-22", "unsaid": -9223372036854775808}', [-(2**63)]),
        ('{"at": "2026-11-22", "unsaid": "\\ud800x"}', ["?x"]),
        ('{"at": "0001-01-01T00:00:00+23:59", "unsaid": 1}', []),
        ('{"at": "9999-12-31T23:59:59-23:59", "unsaid": 1}', []),
    ],
)
def test_whatever_stands_in_the_file_a_view_can_hold_it(tmp_path: Path, line: str, unsaid: list[object]) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(line)

    rows = audit_rows(path)

    assert unsaid == [row[list(AUDIT_COLUMNS).index("unsaid")] for row in rows]
    assert all(shown_value(row[0]) for row in rows)


def test_a_row_has_the_columns_of_the_view(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    line = {"at": START.isoformat(), "who": "user:root", "statement": "DROP ROUTE [a];", "unsaid": 3}
    path.write_text(json.dumps(line))

    [row] = audit_rows(path)

    told = {name: value for name, value in zip(AUDIT_COLUMNS, row, strict=True) if value is not None}
    assert {
        "audit_time": START,
        "principal_name": "user:root",
        "statement": "DROP ROUTE [a];",
        "unsaid": 3,
    } == told


def test_a_line_that_is_none_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 0, 2)
    path.write_bytes(b"\xff\n{}\n[]\n" + b"[" * 100_000 + b"\n" + path.read_bytes() + b'{"at": "now"}\n{"at"')

    assert [0, 1] == _targets(path)


def test_without_a_file_there_are_no_rows(tmp_path: Path) -> None:
    assert [] == audit_rows(tmp_path / "audit.jsonl")


def test_of_many_rows_the_newest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 4)
    path = tmp_path / "audit.jsonl"
    _write(path, 0, 13)

    assert [9, 10, 11, 12] == _targets(path)


def test_of_many_bytes_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 100, 110)
    monkeypatch.setattr(module, "BYTES_MAX", path.stat().st_size // 2)

    assert [106, 107, 108, 109] == _targets(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="Is a directory"):
        audit_rows(tmp_path)


# --- test_discovery ---
# The views about the views.


OF_FILE = {"sys.routes": ("name", "address")}
OF_INSTANCE = {"sys.databases": ("name",)}


def test_each_view_has_a_row_that_says_whether_it_is_of_the_instance() -> None:
    rows = [dict(zip(VIEW_COLUMNS, row, strict=True)) for row in view_rows(OF_FILE, OF_INSTANCE)]

    assert [("databases", -1, True), ("routes", -2, False)] == [
        (row["name"], row["object_id"], row["is_instance"]) for row in rows
    ]


def test_each_column_has_a_row_in_its_place_under_the_number_of_its_view() -> None:
    rows = [dict(zip(COLUMN_COLUMNS, row, strict=True)) for row in column_rows(OF_FILE, OF_INSTANCE)]

    assert [(-1, "databases", "name", 1), (-2, "routes", "name", 1), (-2, "routes", "address", 2)] == [
        (row["object_id"], row["view_name"], row["name"], row["column_id"]) for row in rows
    ]


# --- test_message ---
# The view of the numbers.


ROWS = [dict(zip(MESSAGE_COLUMNS, row, strict=True)) for row in message_rows()]


def test_each_number_has_a_row_in_order() -> None:
    expected = [entry.number for entry in catalogue().values() if entry.number]

    assert expected == [row["message_id"] for row in ROWS]
    assert sorted(expected) == expected


def test_a_row_says_what_a_number_means_and_what_to_do() -> None:
    [row] = [row for row in ROWS if row["message_id"] == 11285]

    assert ("hops exhausted", 1033, 16, False) == (
        row["reason"],
        row["language_id"],
        row["severity"],
        row["is_event_logged"],
    )
    assert "gateways" in str(row["text"])
    assert "max_hops" in str(row["remedy"])


def test_a_number_is_asked_for_as_a_number() -> None:
    snapshots = {name: tuple for name in MEMORY_VIEWS if name not in SELF_MADE}
    views = SystemViews(databases={}, snapshots=snapshots, transmission_statuses=dict)

    found = views.select("SELECT message_id FROM sys.messages WHERE message_id IN (102, 9744)", database=None).rows

    assert [(102,), (9744,)] == found


def test_links_of_pages_are_words() -> None:
    assert [] == [row["message_id"] for row in ROWS if "](" in f"{row['text']}{row['remedy']}"]


PAGE = Path(__file__).parents[3] / "docs" / "views.md"


def page_columns() -> dict[str, list[str]]:
    """The first column of the first table below each heading of the page."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for section in sections:
        table = re.search(r"^\| Column \|.*?(?=\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)
        if table:
            found[section.splitlines()[0]] = re.findall(r"^\| \*?`(\w+)`\*? \|", table[0], flags=re.MULTILINE)
    return found


# --- the page and the code ----------------------------------------------------------------------------------


def test_page_tells_every_view_and_column_in_order() -> None:
    expected = {name: list(view.columns) for name, view in FILE_VIEWS.items()}
    expected |= {name: list(columns) for name, columns in MEMORY_VIEWS.items() if name != MSDB_ROUTES}
    expected["A queue itself"] = list(QUEUE.columns)

    assert expected == page_columns()


# The columns of the original, in the order in which its pages have them.
ORIGINAL = {
    "sys.routes": "name route_id principal_id remote_service_name broker_instance lifetime address mirror_address",
    "sys.dm_broker_forwarded_messages": (
        "conversation_id is_initiator to_service_name to_broker_instance from_service_name from_broker_instance"
        " adjacent_broker_address message_sequence_number message_fragment_number hops_remaining time_to_live"
        " time_consumed message_id"
    ),
    "sys.dm_broker_connections": (
        "connection_id transport_stream_id state state_desc connect_time login_time last_activity_time"
        " authentication_method principal_name remote_user_name is_accept login_state login_state_desc"
        " peer_certificate_id encryption_algorithm encryption_algorithm_desc receives_posted sends_posted"
        " is_receive_flow_controlled is_send_flow_controlled total_bytes_sent total_bytes_received"
        " total_fragments_sent total_fragments_received total_sends total_receives peer_arbitration_id"
    ),
    "sys.conversation_endpoints": (
        "conversation_handle conversation_id is_initiator service_contract_id conversation_group_id service_id lifetime"
        " state state_desc far_service far_broker_instance principal_id far_principal_id"
        " outbound_session_key_identifier inbound_session_key_identifier security_timestamp dialog_timer send_sequence"
        " last_send_tran_id end_dialog_sequence receive_sequence receive_sequence_frag system_sequence"
        " first_out_of_order_sequence last_out_of_order_sequence last_out_of_order_frag is_system priority"
    ),
    "sys.transmission_queue": (
        "conversation_handle to_service_name to_broker_instance from_service_name service_contract_name enqueue_time"
        " message_sequence_number message_type_name is_conversation_error is_end_of_dialog message_body"
        " transmission_status priority"
    ),
    "sys.dm_broker_queue_monitors": (
        "database_id queue_id state last_empty_rowset_time last_activated_time tasks_waiting"
    ),
}


@pytest.mark.parametrize("view", ORIGINAL)
def test_a_view_begins_with_the_columns_of_the_original_and_the_page_marks_the_others(view: str) -> None:
    expected = ORIGINAL[view].split()
    columns = list(FILE_VIEWS[view].columns) if view in FILE_VIEWS else list(MEMORY_VIEWS[view])
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {view}\n")[2].partition("\n## ")[0]

    assert expected == columns[: len(expected)]
    assert expected == re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)[: len(expected)]
    assert columns[len(expected) :] == re.findall(r"^\| \*`(\w+)`\* \|", section, flags=re.MULTILINE)


def test_page_tells_every_state() -> None:
    told = re.findall(r"^\| ([A-Z]{2}) \| (\w+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert told == [(state.value, state.name) for state in ConversationState]


def test_page_tells_the_status_of_what_was_not_tried() -> None:
    assert f"`{UNTRIED}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("names", [GUID_COLUMNS, INSTANT_COLUMNS])
def test_special_columns_are_columns_of_some_view(names: frozenset[str]) -> None:
    every = {name for view in (*FILE_VIEWS.values(), QUEUE) for name in view.columns}
    every |= {name for columns in MEMORY_VIEWS.values() for name in columns}

    assert names <= every


# --- rows of memory views -----------------------------------------------------------------------------------


def test_row_has_a_value_for_each_column_in_order() -> None:
    row = make_row("sys.databases", path="/a", name="orders")

    assert row == ("orders", None, None, None, None, "/a")


def test_row_with_a_value_for_no_column_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"sys.databases has no column \['nam'\]"):
        make_row("sys.databases", nam="orders")
