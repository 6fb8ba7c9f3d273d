"""`broker dialogs`: the census of files and of a daemon, and the end of those whom nobody ends."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from broker.protocol.frame import Envelope, encode_envelope
from tests.support.command import run
from tests.support.shop import Shop

# --- send and receive ---


def send(shop: Path, *more: object, stdin: str | bytes | None = None) -> Result:
    return run("send", "-d", shop, "--from", "Orders", "--to", "//far/Billing", *more, stdin=stdin)


def receive(shop: Path, *more: object) -> Result:
    return run("receive", "-d", shop, "--queue", "OrdersQueue", *more)


def look(shop: Path, query: str) -> list[Any]:
    db = sqlite3.connect(shop)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def sent(shop: Path) -> list[bytes]:
    return [row[0] for row in look(shop, "SELECT message_body FROM broker_transmission ORDER BY transmission_id")]


def arrive(shop: Path, *bodies: bytes) -> str:
    """Messages that came for Orders on one dialog; its handle."""
    handle = send(shop, "hello").stdout.strip()
    db = sqlite3.connect(shop)
    with db:
        for number, body in enumerate(bodies):
            db.execute(
                "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
                " message_body, message_enqueue_time) SELECT q.queue_id, c.endpoint_id, ?, 'T', ?, 0"
                " FROM broker_queue q, broker_conversation c WHERE c.conversation_handle = ?",
                (number, body, uuid.UUID(handle).bytes),
            )
    db.close()
    return handle


def test_send_commits_one_message_and_prints_the_handle(shop: Path) -> None:
    result = send(shop, "--contract", "C", "--type", "T", "--lifetime", "60", '{"order": 7}')

    handle = uuid.UUID(result.stdout.strip())
    assert 0 == result.exit_code
    assert [b'{"order": 7}'] == sent(shop)
    assert [(handle.bytes, "//far/Billing", "C")] == look(
        shop, "SELECT conversation_handle, far_service, contract FROM broker_conversation"
    )


@pytest.mark.parametrize(("option", "security"), [(["--encryption"], [("NONE",)]), (["--no-encryption"], []), ([], [])])
def test_send_says_whether_the_dialog_has_to_be_sealed(shop: Path, option: list[str], security: list[Any]) -> None:
    assert 0 == send(shop, *option, "text").exit_code

    assert security == look(shop, "SELECT security FROM broker_session_key")


def test_send_takes_the_body_from_standard_input_as_it_is(shop: Path) -> None:
    send(shop, stdin=b"\xff\x00\r\n")

    assert [b"\xff\x00\r\n"] == sent(shop)


def test_send_lines_sends_a_message_a_line_on_one_dialog(shop: Path) -> None:
    result = send(shop, "--lines", stdin=b"one\r\n\ntwo")

    assert 1 == len(result.stdout.splitlines())
    assert [b"one", b"", b"two"] == sent(shop)


def test_send_ends_the_conversation_behind_the_last_message(shop: Path) -> None:
    send(shop, "--end", "bye")

    assert [b"bye", b""] == sent(shop)
    assert [("DO",)] == look(shop, "SELECT state FROM broker_conversation")


def test_receive_prints_json_and_takes_what_it_printed(shop: Path) -> None:
    handle = arrive(shop, b"one", "zwei \N{SNOWMAN}".encode(), b"\xff")

    result = receive(shop, "-o", "json")

    rows = json.loads(result.stdout)
    assert {
        "conversation_handle": handle,
        "message_sequence_number": 0,
        "service_name": "Orders",
        "message_type_name": "T",
        "message_body": "one",
    } == rows[0]
    assert ["one", "zwei \N{SNOWMAN}", "\\xff"] == [row["message_body"] for row in rows]
    assert [] == look(shop, "SELECT * FROM broker_message")


def test_receive_ends_a_conversation_once(shop: Path) -> None:
    arrive(shop, b"one", b"two")

    result = receive(shop, "--end")

    assert 0 == result.exit_code
    assert [("DO",)] == look(shop, "SELECT state FROM broker_conversation")


def test_receive_of_nothing_is_7_and_prints_nothing(shop: Path) -> None:
    result = receive(shop, "-o", "json")

    assert (7, "") == (result.exit_code, result.stdout)
    assert "nothing in OrdersQueue; with --wait SECONDS, wait for it\n" == result.stderr


@pytest.mark.parametrize("output", ["table", "json"])
def test_messages_that_could_not_be_printed_stay_in_the_queue(shop: Path, output: str) -> None:
    arrive(shop, b"one", b"two")
    command = [sys.executable, "-m", "broker", "receive", "-d", str(shop), "--queue", "OrdersQueue", "-o", output]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # the reader has gone
        code = process.wait()

    assert 1 == code
    assert [(b"one",), (b"two",)] == look(shop, "SELECT message_body FROM broker_message ORDER BY queuing_order")


def test_messages_for_a_full_disk_stay_in_the_queue(shop: Path) -> None:
    arrive(shop, b"one")
    command = [sys.executable, "-m", "broker", "receive", "-d", str(shop), "--queue", "OrdersQueue"]

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert 1 == done.returncode
    assert "[Errno 28] No space left on device" == done.stderr.splitlines()[0]
    assert [(b"one",)] == look(shop, "SELECT message_body FROM broker_message")


# --- large bodies, groups ---

LARGE = bytes(range(256)) * 5000  # above 1 MiB


def large_sent(shop: Path) -> bytes:
    rows = look(shop, "SELECT body FROM broker_transmission_part ORDER BY transmission_id, part_number")
    return b"".join(row[0] for row in rows)


def arrive_large(shop: Path) -> str:
    """A large message that came for Orders in fragments; its handle."""
    handle = send(shop, "hello").stdout.strip()
    db = sqlite3.connect(shop)
    pieces = [encode_envelope(Envelope(type="T")) + LARGE[:700_000], LARGE[700_000:]]
    with db:
        (endpoint,) = db.execute(
            "SELECT endpoint_id FROM broker_conversation WHERE conversation_handle = ?", (uuid.UUID(handle).bytes,)
        ).fetchone()
        db.executemany(
            "INSERT INTO broker_fragment VALUES (?, 0, ?, 0, ?)", [(endpoint, *p) for p in enumerate(pieces)]
        )
        db.execute(
            "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
            " message_enqueue_time, body_fragments) SELECT queue_id, ?, 0, 'T', 0, 2 FROM broker_queue LIMIT 1",
            (endpoint,),
        )
    db.close()
    return handle


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_send_takes_the_body_from_a_file(shop: Path, tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "body"
    path.write_bytes(body)

    results = [send(shop, "--file", path), send(shop, "--file", "-", stdin=body), send(shop, stdin=body)]

    assert [0, 0, 0] == [result.exit_code for result in results]
    if body is LARGE:
        assert LARGE * 3 == large_sent(shop)
    else:
        assert [body] * 3 == sent(shop)


@pytest.mark.parametrize(
    "arguments", [["--lines", "x"], ["--lines", "--file", "-"], ["--file", "-", "x"], ["--file", "/no/such/file"]]
)
def test_body_of_send_is_one_thing(shop: Path, arguments: list[str]) -> None:
    assert 2 == send(shop, *arguments).exit_code
    assert [] == sent(shop)


def test_receive_takes_from_one_conversation_or_group(shop: Path) -> None:
    one, two = arrive(shop, b"one"), arrive(shop, b"two")
    query = "SELECT conversation_group_id FROM broker_conversation WHERE conversation_handle = ?"
    db = sqlite3.connect(shop)
    group = uuid.UUID(bytes=db.execute(query, (uuid.UUID(one).bytes,)).fetchone()[0])
    db.close()

    first = json.loads(receive(shop, "--conversation", two, "-o", "json").stdout)
    second = json.loads(receive(shop, "--group", group, "-o", "json").stdout)

    assert (["two"], ["one"]) == tuple([row["message_body"] for row in rows] for rows in (first, second))
    assert 3 == receive(shop, "--conversation", uuid.uuid4()).exit_code


def test_receive_saves_bodies_as_files(shop: Path, tmp_path: Path) -> None:
    handle = arrive_large(shop)
    arrive(shop, b"small")

    result = receive(shop, "--save", tmp_path, "-o", "json")

    rows = json.loads(result.stdout)
    assert str(tmp_path / f"{handle}-0") == rows[0]["message_body"]
    assert [LARGE, b"small"] == [Path(row["message_body"]).read_bytes() for row in rows]
    assert [] == look(shop, "SELECT * FROM broker_message")


def test_large_message_is_not_printed_and_stays(shop: Path) -> None:
    arrive(shop, b"small")
    handle = arrive_large(shop)

    result = receive(shop)

    assert (6, "") == (result.exit_code, result.stdout)
    assert f"message 0 of {handle} has {len(LARGE)} bytes: take it with --save DIRECTORY; all stay" in result.stderr
    assert [(2,)] == look(shop, "SELECT count(*) FROM broker_message")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["receive", "-d", "SHOP", "--queue", "Nope"], 3, "Msg 208: the queue 'Nope' does not exist in this database"),
        (["send", "-d", "SHOP", "--from", "Nope", "--to", "b", "x"], 3, "Msg 15151: the service 'Nope' does not exist"),
        (["receive", "-d", "/none.db", "--queue", "q"], 3, "Msg 911: there is no database file '/none.db': give the"),
        (["receive", "-d", "/", "--queue", "q"], 3, "Msg 911: there is no database file '/': give the path of one"),
        (["receive", "-c", "CONFIG", "-d", "bill", "--queue", "q"], 3, "the configuration has ['orders'], and broker"),
        (
            ["send", "-d", "SHOP", "--from", "Orders", "--to", "b", "--lifetime", "0", "x"],
            1,
            "Msg 8489: lifetime has to be",
        ),
        (["send", "-d", "SHOP", "--from", "Orders", "--to", "b", "--broker-instance", "z", "x"], 1, "Msg 8413: 'z'"),
        (["receive", "-d", "CONFIG", "--queue", "q"], 1, "file is not a database"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_send_and_receive_refuse(
    shop: Path, configuration: Path, arguments: list[str], code: int, sentence: str
) -> None:
    names = {"SHOP": shop, "CONFIG": configuration}

    result = run(*(names.get(argument, argument) for argument in arguments))

    assert code == result.exit_code
    assert sentence in result.stderr
    assert "" == result.stdout


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Shop]:
    store = Shop(tmp_path / "shop.db")
    yield store
    store.close()


def crowd(store: Shop) -> None:
    """Ten conversations that the far side has ended long ago."""
    db = store.connect()
    with db:
        for _ in range(10):
            store.begin(db)
    db = store.connect(isolation_level=None)
    db.execute("UPDATE broker_conversation SET state = 'DI', create_date = 0")


def test_a_file_is_counted_without_a_daemon(store: Shop) -> None:
    crowd(store)

    done = run("dialogs", "census", "-d", store.path)

    text = " ".join(done.stdout.split())
    assert 0 == done.exit_code
    assert "DI │ a week and more │ 10" in text
    assert "0 messages not acknowledged 0 tombstones of closed sides, 0 of them due" in text
    assert "0 dialogs in quarantine, 0 tried again" in text
    assert "BillingQueue" in text
    assert "sizes are counted" in text


def test_the_ledger_of_a_file_is_told_without_a_daemon(store: Shop) -> None:
    db = store.connect(isolation_level=None)
    store.begin(db).send_many([b"1", b"2", b"3"])
    over = store.begin(db)
    over.send(b"4")
    store.change(over, "state", "DI")
    over.end()

    text = run("dialogs", "census", "-d", store.path).stdout
    [told] = json.loads(run("dialogs", "census", "-d", store.path, "-o", "json").stdout)["databases"]

    sentence = "4 sent = 0 acknowledged + 3 held + 1 failed (1 the far side had ended)"
    assert f"ledger: {sentence}\n" in text
    assert {
        "sent": 4,
        "acknowledged": 0,
        "held": 3,
        "failed": {"the far side had ended": 1},
        "unaccounted": 0,
        "sentence": sentence,
    } == told["ledger"]


def test_what_the_ledger_does_not_account_for_is_told(store: Shop) -> None:
    db = store.connect(isolation_level=None)
    store.begin(db).send(b"1")
    db.execute("DELETE FROM broker_transmission")

    assert "0 failed + 1 UNACCOUNTED" in run("dialogs", "census", "-d", store.path).stdout


def test_as_json_it_has_every_figure(store: Shop) -> None:
    crowd(store)

    [told] = json.loads(run("dialogs", "census", "-d", store.path, "-o", "json").stdout)["databases"]

    assert 10 == told["census"]["groups"][0]["conversations"]
    assert told["meaning"] == []
    assert {"broker_conversation", "broker_queue"} <= {table["table"] for table in told["census"]["tables"]}


def test_the_databases_of_a_configuration_are_counted(store: Shop, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    other = Shop(tmp_path / "other.db")
    other.close()
    config.write_text(
        '[instance]\nname = "i"\nstate_dir = "."\n'
        '[databases.shop]\npath = "shop.db"\n[databases.other]\npath = "other.db"\n'
    )

    both = run("dialogs", "census", "-c", config)
    one = run("dialogs", "census", "-c", config, "-d", "other")

    assert ["database shop", "database other"] == _heads(both.stdout)
    assert ["database other"] == _heads(one.stdout)
    assert store.path.is_file()


def _heads(text: str) -> list[str]:
    return [line.partition(",")[0] for line in text.splitlines() if line.startswith("database ")]


def test_a_daemon_is_asked_where_a_socket_is_named(fake_admin: Any) -> None:
    told: dict[str, Any] = {"databases": []}
    fake_admin.answers["/v1/census?database=a%20b"] = (200, told)

    done = run("dialogs", "census", "--socket", fake_admin.path, "-d", "a b", "-o", "json")

    assert (0, told) == (done.exit_code, json.loads(done.stdout))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = run("dialogs", "census", "-d", tmp_path / "absent.db")

    assert 3 == done.exit_code
    assert "there is no database file" in done.stderr


def test_without_a_file_or_a_configuration_there_is_nothing_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROKER_CONFIG", raising=False)

    assert 2 == run("dialogs", "census").exit_code


# --- end ---


def test_what_nobody_ends_is_ended(store: Shop) -> None:
    crowd(store)

    dry = run("dialogs", "end", "-d", store.path, "--state", "DI", "--older-than", "7d", "--dry-run")
    assert (0, 10) == (dry.exit_code, len(store.seen()["conversations"]))
    assert "10 conversations would end" in dry.stdout

    done = run("dialogs", "end", "-d", store.path, "--state", "DI", "--older-than", "7d", "--yes")

    assert (0, []) == (done.exit_code, store.seen()["conversations"])
    assert "10 conversations ended" in done.stdout


def test_those_that_are_young_or_of_others_stay(store: Shop) -> None:
    crowd(store)
    for words in (("--state", "CO", "--older-than", "7d"), ("--service", "Billing", "--older-than", "1h")):
        told = json.loads(run("dialogs", "end", "-d", store.path, *words, "--yes", "-o", "json").stdout)
        assert {"chosen": [], "ended": 0} == told
    with store.connect() as db:
        store.begin(db)

    told = json.loads(run("dialogs", "end", "-d", store.path, "--older-than", "1h", "--yes", "-o", "json").stdout)

    [chosen] = told["chosen"]
    assert (10, "DI", 10, ["SO"]) == (
        told["ended"],
        chosen["state"],
        chosen["conversations"],
        store.seen()["conversations"],
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "confirm it with --yes"),
        (("--cleanup", "--error", "1"), "--cleanup sends nothing to the far side"),
        (("--description", "abandoned"), "--description belongs to --error"),
        (("--cleanup", "--description", "abandoned"), "--description belongs to --error"),
        (("--state", "DO"), "only --cleanup ends it"),
    ],
)
def test_nothing_is_ended_unasked_or_by_halves(store: Shop, words: tuple[str, ...], problem: str) -> None:
    crowd(store)

    result = run("dialogs", "end", "-d", store.path, "--older-than", "7d", *words)

    assert (2, 10) == (result.exit_code, len(store.seen()["conversations"]))
    assert problem in " ".join(result.stderr.replace("│", " ").split())
