from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.conversation.state import ConversationState
from broker.observe.views import GUID_COLUMNS, INSTANT_COLUMNS, MEMORY_VIEWS, MSDB_ROUTES, UNTRIED, make_row
from broker.store.sqlite.views import FILE_VIEWS, QUEUE

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
