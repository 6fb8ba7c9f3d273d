"""The columns of the system views, on their page and here, and the rows of those that live in memory or in files."""

import json
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.errors import StoreUnavailableError
from broker.observe import views as module
from broker.observe.query import shown_value
from broker.observe.snapshot import MirrorSnapshot, read_snapshot
from broker.observe.status import MirrorStatus
from broker.observe.views import (
    ACTIVATED_TASKS,
    AUDIT_COLUMNS,
    DATABASE_MIRRORING,
    DATABASES,
    FORWARDED_MESSAGES,
    MEMORY_VIEWS,
    MIRRORS,
    SYSTEM_COLUMNS,
    SYSTEM_VIEWS,
    audit_rows,
)
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirroredRoute, MirrorRole, OwnRoleStatus
from broker.routing.route import MirroredPair
from broker.store.sqlite.database import open_store
from broker.store.sqlite.reader_slots import QueueRecord, ReaderSlot
from broker.store.sqlite.views import FILE_VIEWS, QUEUE
from tests.support.shop import Shop

PAGE = Path(__file__).parents[3] / "docs" / "views.md"


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
    "sys.dm_broker_activated_tasks": "spid database_id queue_id procedure_name execute_as",
    "sys.service_queue_usages": "service_id service_queue_id",
    "A queue itself": (
        "status priority queuing_order conversation_group_id conversation_handle message_sequence_number service_name"
        " service_id service_contract_name service_contract_id message_type_name message_type_id validation"
        " message_body message_enqueue_time"
    ),
}
FROM_FILES = {**FILE_VIEWS, "A queue itself": QUEUE}


@pytest.mark.parametrize("view", ORIGINAL)
@pytest.mark.promise("views 1", "views 2", "views 3")
def test_a_view_begins_with_the_columns_of_the_original_and_the_page_marks_the_others(view: str) -> None:
    expected = ORIGINAL[view].split()
    columns = list(FROM_FILES[view].columns) if view in FROM_FILES else list(MEMORY_VIEWS[view])
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {view}\n")[2].partition("\n## ")[0]

    assert expected == columns[: len(expected)]
    assert expected == re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)[: len(expected)]
    assert columns[len(expected) :] == re.findall(r"^\| \*`(\w+)`\* \|", section, flags=re.MULTILINE)


def shown(view: Any, source: Any) -> list[dict[str, Any]]:
    return [dict(zip(view.columns, row, strict=True)) for row in view.rows(source)]


@pytest.fixture
async def snapshot(start: Any) -> Any:
    return read_snapshot(await start("near"), ["roles"])


NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")


@pytest.mark.promise("R6.5")
async def test_a_mirrored_route_has_both_partners_and_what_waits(snapshot: Any) -> None:
    route = MirroredRoute(NORTH, SOUTH, lambda: 0.0)
    route.use(100.0)
    route.on_reply(NORTH, "principal", 3, 101.0)
    route.on_unreachable(SOUTH, "Connection refused", 101.0)
    pair, seen = MirroredPair("//billing", UUID(int=1), NORTH, SOUTH), (route.seen[NORTH], route.seen[SOUTH])
    status = MirrorStatus("to billing", state=route.state.name, principal=str(NORTH), epoch=3, held=2, held_bytes=700)
    mirror = MirrorSnapshot(status, pair, route.state.value, *seen, 105.0)

    (row,) = shown(MIRRORS, msgspec.structs.replace(snapshot, mirrors=(mirror,)))

    instants = {"address_probe_time": 100.0, "mirror_probe_time": 100.0, "address_answer_time": 101.0}
    known = {name: snapshot.utc(at) for name, at in (instants | {"next_probe_time": 105.0}).items()}
    known |= {"route_name": "to billing", "remote_service_name": "//billing", "broker_instance": UUID(int=1)}
    known |= {"address": "tcp://north:4022", "mirror_address": "tcp://south:4022", "epoch": 3}
    known |= {"principal_address": "tcp://north:4022", "state": 2, "state_desc": "PRINCIPAL_ONLY"}
    known |= {"address_role": "principal", "address_epoch": 3, "mirror_problem": "Connection refused"}
    known |= {"waiting_messages": 2, "waiting_bytes": 700}
    assert dict.fromkeys(MIRRORS.columns) | known == row


@pytest.mark.parametrize(
    ("values", "state", "role", "partner"),
    [
        ({}, (4, "SYNCHRONIZED"), (1, "PRINCIPAL"), None),
        ({"principal": "us"}, (4, "SYNCHRONIZED"), (1, "PRINCIPAL"), None),
        ({"role": MirrorRole.MIRROR, "principal": "them"}, (4, "SYNCHRONIZED"), (2, "MIRROR"), "them"),
        ({"role": MirrorRole.MIRROR, "is_resting": True, "problem": "x"}, (3, "PENDING_FAILOVER"), (2, "MIRROR"), None),
        ({"role": MirrorRole.MIRROR, "problem": "x"}, (0, "SUSPENDED"), (2, "MIRROR"), None),
        ({"source": "off"}, (None, None), (None, None), None),
    ],
)
async def test_the_role_for_a_database_has_the_words_of_the_original(
    snapshot: Any, values: dict[str, Any], state: tuple[Any, Any], role: tuple[Any, Any], partner: str | None
) -> None:
    known = {"broker_instance": None, "role": MirrorRole.PRINCIPAL, "epoch": 3, "since": 0.0, "source": "lock"}
    roles = (("orders", OwnRoleStatus(**{**known, **values})),)

    (row,) = shown(DATABASE_MIRRORING, msgspec.structs.replace(snapshot, roles=roles))

    assert state == (row["mirroring_state"], row["mirroring_state_desc"])
    assert role == (row["mirroring_role"], row["mirroring_role_desc"])
    assert (3, partner) == (row["mirroring_role_sequence"], row["mirroring_partner_name"])
    assert ("orders", datetime(1970, 1, 1, tzinfo=UTC)) == (row["database_name"], row["role_since"])


@pytest.mark.promise("forwarding 16")
async def test_a_held_frame_ages_while_it_waits(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb="CREATE ROUTE r WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'")
    take(gateway, time_to_live=60_000, time_consumed=1_500, sequence_number=7, hop_limit=16, hop_count=3)
    now = read_snapshot(gateway, ["held"])

    (row,) = shown(FORWARDED_MESSAGES, msgspec.structs.replace(now, loop_time=now.loop_time + 10.0))

    assert 10_000 <= row.pop("held_ms") < 12_000
    assert row.pop("why_held").startswith("waiting for a connection to tcp://127.0.0.1:1")
    known = {"conversation_id": UUID(int=2), "message_id": UUID(int=1), "is_initiator": True}
    known |= {"to_service_name": "//far", "to_broker_instance": None, "adjacent_broker_address": "tcp://127.0.0.1:1"}
    known |= {"from_service_name": "//near", "from_broker_instance": UUID(int=3)}
    known |= {"message_sequence_number": 7, "message_fragment_number": 0, "hops_remaining": 12}
    known |= {"time_to_live": 60, "time_consumed": 11}
    known |= {"frame_bytes": 114 + len("//far") + len("//near") + len("body")}
    assert known == row


@pytest.fixture
def files(shop: Shop, tmp_path: Path) -> dict[str, Path]:
    """msdb, one database, and one whose file is none."""
    open_store(tmp_path / "msdb.db").close()
    (tmp_path / "text.db").write_text("this is a text, and no database at all")
    return {"msdb": tmp_path / "msdb.db", "shop": shop.path, "broken": tmp_path / "text.db"}


@pytest.mark.promise("routes 4", "views 4")
def test_every_database_has_a_row_also_when_its_file_is_none(files: dict[str, Path]) -> None:
    rows = shown(DATABASES, files)

    told = [(row["name"], row["database_id"], row["is_broker_enabled"], row["path"]) for row in rows]
    msdb, shop, broken = map(str, files.values())
    assert [("msdb", 4, True, msdb), ("shop", 6, True, shop), ("broken", 5, False, broken)] == told


@pytest.mark.promise("views 3")
def test_each_worker_of_a_reader_is_an_activated_task(files: dict[str, Path]) -> None:
    with closing(ReaderSlot(str(files["shop"]))) as slot:
        slot.record([QueueRecord("BillingQueue", 1, 0.0, None, 42, "billing.handle", 2)])

        rows = shown(ACTIVATED_TASKS, files)

    billing = {"spid": 42, "database_id": 6, "queue_id": 2, "procedure_name": "billing.handle", "execute_as": None}
    billing |= {"database_name": "shop", "queue_name": "BillingQueue"}
    assert [billing | {"is_waiting": True}, billing | {"is_waiting": False}] == rows


START = datetime(2026, 11, 22, tzinfo=UTC)


def _write(path: Path, first: int, last: int) -> None:
    lines = ({"at": (START + timedelta(seconds=n)).isoformat(), "target": str(n)} for n in range(first, last))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _targets(path: Path) -> list[int]:
    index = list(AUDIT_COLUMNS).index("target")
    return [int(str(row[index])) for row in audit_rows(path)]


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
    known = {"audit_time": START, "principal_name": "user:root", "statement": "DROP ROUTE [a];", "unsaid": 3}
    assert known == told


def test_a_line_that_is_none_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 0, 2)
    path.write_bytes(b"\xff\n{}\n[]\n" + b"[" * 100_000 + b"\n" + path.read_bytes() + b'{"at": "now"}\n{"at"')

    assert [0, 1] == _targets(path)


def test_of_many_lines_the_newest_are_shown_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    assert [] == audit_rows(path)
    _write(path, 100, 110)
    _write(tmp_path / "audit.jsonl.1", 10, 13)
    monkeypatch.setattr(module, "AUDIT_ROWS_MAX", 7)

    assert list(range(103, 110)) == _targets(path)
    monkeypatch.setattr(module, "BYTES_MAX", path.stat().st_size // 2)
    assert list(range(106, 110)) == _targets(path)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="Is a directory"):
        audit_rows(tmp_path)


def test_each_view_and_column_has_a_row_under_the_number_of_its_view() -> None:
    views = {row["name"]: row for row in shown(SYSTEM_VIEWS, {})}
    columns = shown(SYSTEM_COLUMNS, {})

    assert (True, False) == (views["databases"]["is_instance"], views["routes"]["is_instance"])
    assert sorted(views) == sorted(views, key=lambda name: -views[name]["object_id"])
    assert all(row["object_id"] == views[row["view_name"]]["object_id"] for row in columns)
    assert [(1, "name"), (2, "database_id")] == [
        (row["column_id"], row["name"]) for row in columns if row["view_name"] == "databases"
    ][:2]
