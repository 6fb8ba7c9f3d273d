"""`broker dialogs`: the census of files and of a daemon, and the end of those whom nobody ends."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from broker.client.dialog import Dialog
from broker.protocol.layout import show_guid
from tests.support.command import run
from tests.support.shop import Shop


def send(shop: Shop, *more: object, stdin: str | bytes | None = None) -> Result:
    return run("send", "-d", shop.path, "--from", "Orders", "--to", "//far/Billing", *more, stdin=stdin)


def receive(shop: Shop, *more: object) -> Result:
    return run("receive", "-d", shop.path, "--queue", "OrdersQueue", *more)


def arrive(shop: Shop, *bodies: bytes, large: bytes = b"") -> Dialog:
    """Messages for Orders on one dialog, the last one large."""
    dialog = shop.arrived(*bodies, type_name="T")
    if large:
        shop.arrive_large(dialog, large, number=len(bodies))
    return dialog


@pytest.mark.parametrize(("option", "security"), [(["--encryption"], ["NONE"]), (["--no-encryption"], []), ([], [])])
def test_send_commits_one_message_and_prints_the_handle(shop: Shop, option: list[str], security: list[Any]) -> None:
    result = send(shop, "--contract", "C", "--type", "T", "--lifetime", "60", *option, '{"order": 7}')

    handle = uuid.UUID(result.stdout.strip())
    assert (0, [b'{"order": 7}']) == (result.exit_code, shop.seen()["sent"])
    assert [(handle.bytes, "//far/Billing", "C")] == shop.look(
        "SELECT conversation_handle, far_service, contract FROM broker_conversation"
    )
    assert security == shop.look("SELECT security FROM broker_session_key")


@pytest.mark.parametrize(
    ("arguments", "stdin", "bodies"),
    [
        ([], b"\xff\x00\r\n", [b"\xff\x00\r\n"]),
        (["--lines"], b"one\r\n\ntwo", [b"one", b"", b"two"]),
        (["--end", "bye"], b"", [b"bye", b""]),
    ],
)
def test_send_takes_bodies_from_standard_input_and_ends_when_asked(
    shop: Shop, arguments: list[str], stdin: bytes, bodies: list[bytes]
) -> None:
    result = send(shop, *arguments, stdin=stdin)

    assert (1, bodies) == (len(result.stdout.splitlines()), shop.seen()["sent"])
    assert ["DO" if "--end" in arguments else "CO"] == shop.look("SELECT state FROM broker_conversation")


def test_receive_prints_json_and_takes_what_it_printed(shop: Shop) -> None:
    handle = arrive(shop, b"one", "zwei \N{SNOWMAN}".encode(), b"\xff")

    rows = json.loads(receive(shop, "--end", "-o", "json").stdout)

    expected = {"conversation_handle": show_guid(handle.conversation_handle), "message_sequence_number": 0}
    expected |= {"service_name": "Orders", "message_type_name": "T", "message_body": "one"}
    assert expected == rows[0]
    assert ["one", "zwei \N{SNOWMAN}", "\\xff"] == [row["message_body"] for row in rows]
    assert [] == shop.look("SELECT * FROM broker_message")
    assert ["DO"] == shop.look("SELECT state FROM broker_conversation")


def test_receive_of_nothing_is_7_and_prints_nothing(shop: Shop) -> None:
    result = receive(shop, "-o", "json")

    assert (7, "") == (result.exit_code, result.stdout)
    assert "nothing in OrdersQueue; with --wait SECONDS, wait for it\n" == result.stderr
    waited = receive(shop, "--wait", "0.01")
    assert (7, "nothing in OrdersQueue within 0.01 s\n") == (waited.exit_code, waited.stderr)


@pytest.mark.parametrize("problem", ["Broken pipe", "No space left on device"])
def test_messages_that_could_not_be_printed_stay_in_the_queue(shop: Shop, problem: str) -> None:
    arrive(shop, b"one", b"two")
    reader, pipe = os.pipe()
    os.close(reader)  # it has gone
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "broker", "receive", "-d", str(shop.path), "--queue", "OrdersQueue"]

    with os.fdopen(pipe, "wb") as closed, Path("/dev/full").open("wb") as full:
        output = closed if problem == "Broken pipe" else full
        done = subprocess.run(command, env=environ, stdout=output, stderr=subprocess.PIPE, text=True, check=False)

    assert (1, problem != "Broken pipe") == (done.returncode, problem in done.stderr)
    assert [b"one", b"two"] == shop.look("SELECT message_body FROM broker_message ORDER BY queuing_order")


LARGE = bytes(range(256)) * 5000  # above 1 MiB


def test_send_takes_the_body_from_a_file(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(LARGE)

    results = [send(shop, "--file", path), send(shop, "--file", "-", stdin=LARGE), send(shop, stdin=LARGE)]

    assert [0, 0, 0] == [result.exit_code for result in results]
    parts = shop.look("SELECT body FROM broker_transmission_part ORDER BY transmission_id, part_number")
    assert LARGE * 3 == b"".join(parts)


def test_receive_takes_from_one_conversation_or_group(shop: Shop) -> None:
    one, two = arrive(shop, b"one"), arrive(shop, b"two")

    first = json.loads(receive(shop, "--conversation", two.conversation_handle, "-o", "json").stdout)
    second = json.loads(receive(shop, "--group", one.conversation_group_id, "-o", "json").stdout)

    assert (["two"], ["one"]) == tuple([row["message_body"] for row in rows] for rows in (first, second))
    assert 3 == receive(shop, "--conversation", uuid.uuid4()).exit_code


def test_large_bodies_are_saved_as_files_and_never_printed(shop: Shop, tmp_path: Path) -> None:
    handle = show_guid(arrive(shop, large=LARGE).conversation_handle)
    arrive(shop, b"small")

    refused = receive(shop)
    rows = json.loads(receive(shop, "--save", tmp_path, "-o", "json").stdout)

    assert (6, "") == (refused.exit_code, refused.stdout)
    assert f"message 0 of {handle} has {len(LARGE)} bytes: take it with --save DIRECTORY; all stay" in refused.stderr
    assert str(tmp_path / f"{handle}-0") == rows[0]["message_body"]
    assert [LARGE, b"small"] == [Path(row["message_body"]).read_bytes() for row in rows]
    assert [] == shop.look("SELECT * FROM broker_message")


def test_a_file_of_the_configuration_that_is_gone_may_be_open_in_a_daemon(shop: Shop, configuration: Path) -> None:
    shop.path.unlink()

    result = run("receive", "-c", configuration, "-d", "orders", "--queue", "Q")

    assert 3 == result.exit_code
    assert f"broker status -c {configuration} says what to do where a daemon runs" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("receive -d SHOP --queue Nope", 3, "Msg 208: the queue 'Nope' does not exist in this database"),
        ("send -d SHOP --from Nope --to b x", 3, "Msg 15151: the service 'Nope' does not exist"),
        ("receive -d /none.db --queue q", 3, "Msg 911: there is no database file '/none.db': give the"),
        ("receive -c CONFIG -d bill --queue q", 3, "the configuration has ['orders']\n"),
        ("send -d SHOP --from Orders --to b --lifetime 0 x", 1, "Msg 8489: lifetime has to be"),
        ("send -d SHOP --from Orders --to b --broker-instance z x", 1, "Msg 8413: 'z'"),
    ],
)
def test_what_send_and_receive_refuse(
    shop: Shop, configuration: Path, arguments: str, code: int, sentence: str
) -> None:
    words = arguments.replace("SHOP", str(shop.path)).replace("CONFIG", str(configuration)).split()

    result = run(*words)

    assert (code, "") == (result.exit_code, result.stdout)
    assert sentence in result.stderr


def crowd(shop: Shop) -> None:
    """Ten conversations that the far side has ended long ago."""
    db = shop.connect()
    with db:
        for _ in range(10):
            shop.begin(db)
    db = shop.connect(isolation_level=None)
    db.execute("UPDATE broker_conversation SET state = 'DI', create_date = 0")


def census(*words: object) -> tuple[str, Any]:
    """The page and the JSON."""
    return run("dialogs", "census", *words).stdout, json.loads(run("dialogs", "census", *words, "-o", "json").stdout)


def test_a_file_is_counted_without_a_daemon(shop: Shop) -> None:
    crowd(shop)
    db = shop.connect(isolation_level=None)
    shop.begin(db).send_many([b"1", b"2", b"3"])
    over = shop.begin(db)
    over.send(b"4")
    shop.change(over, "state", "DI")
    over.end()

    page, answer = census("-d", shop.path)

    [told] = answer["databases"]
    ledger = {"sent": 4, "held": 3, "failed": {"the far side had ended": 1}, "unaccounted": 0}
    assert ledger.items() <= told["ledger"].items()
    assert {"broker_conversation", "broker_queue"} <= {table["table"] for table in told["census"]["tables"]}
    text = " ".join(page.split())
    for shown in (
        "ledger: 4 sent = 0 acknowledged + 3 held + 1 failed (1 the far side had ended)",
        "DI │ a week and more │ 10",
        "3 messages not acknowledged, the oldest since 20",
        "0 of them due 0 dialogs in quarantine, 0 tried again",
        "BillingQueue",
    ):
        assert shown in text
    db.execute("DELETE FROM broker_transmission")
    assert " 3 UNACCOUNTED" in census("-d", shop.path)[0]


def test_the_databases_of_a_configuration_are_counted(shop: Shop, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    Shop(tmp_path / "other.db").close()
    assert shop.path == tmp_path / "orders.db"
    config.write_text(
        '[instance]\nname = "i"\nstate_dir = "."\n'
        '[databases.shop]\npath = "orders.db"\n[databases.other]\npath = "other.db"\n'
    )

    both, _ = census("-c", config)
    one, _ = census("-c", config, "-d", "other")

    assert (["database shop", "database other"], ["database other"]) == tuple(
        [line.partition(",")[0] for line in text.splitlines() if line.startswith("database ")] for text in (both, one)
    )
    assert 2 == run("dialogs", "census").exit_code


def test_a_daemon_is_asked_where_a_socket_is_named(fake_admin: Any) -> None:
    guid = str(uuid.UUID(int=7))
    nothing: dict[str, Any] = {"databases": []}
    fake_admin.answers |= {"/v1/retry": (200, {"dialogs": 1}), "/v1/census?database=a%20b": (200, nothing)}

    retried = [run("dialogs", "retry", *words, "--socket", fake_admin.path) for words in ([], [guid])]
    census = run("dialogs", "census", "--socket", fake_admin.path, "-d", "a b", "-o", "json")

    assert [(0, "1 dialog sent again\n")] * 2 == [(done.exit_code, done.stdout) for done in retried]
    assert [("POST", "/v1/retry", {"id": asked}) for asked in (None, guid)] == fake_admin.asked[:2]
    assert (0, nothing) == (census.exit_code, json.loads(census.stdout))


def test_conversations_that_no_application_ends_are_ended(shop: Shop) -> None:
    crowd(shop)
    with shop.connect() as db:
        shop.begin(db)

    def end(*words: str) -> Result:
        return run("dialogs", "end", "-d", shop.path, "--older-than", "1h", *words)

    dry, unasked = end("--dry-run"), end()
    assert (0, 2, 11) == (dry.exit_code, unasked.exit_code, len(shop.seen()["conversations"]))
    assert "10 conversations would end" in dry.stdout
    assert "confirm it with --yes" in " ".join(unasked.stderr.split())
    for words in (("--state", "CO"), ("--service", "Billing")):
        assert {"chosen": [], "ended": 0} == json.loads(end(*words, "--yes", "-o", "json").stdout)
    told = json.loads(end("--state", "DI", "--yes", "-o", "json").stdout)

    [chosen] = told["chosen"]
    assert (10, "DI", 10) == (told["ended"], chosen["state"], chosen["conversations"])
    assert ["SO"] == shop.seen()["conversations"]
    assert "0 conversations ended" in end("--yes").stdout
