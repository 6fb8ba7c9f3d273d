"""`broker dialogs`: the census of files and of a daemon, and the end of those whom nobody ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


def crowd(shop: Shop) -> None:
    """Ten conversations that the far side has ended long ago."""
    db = shop.connect()
    with db:
        for _ in range(10):
            shop.begin(db)
    db = shop.connect(isolation_level=None)
    db.execute("UPDATE broker_conversation SET state = 'DI', create_date = 0")


def test_a_file_is_counted_without_a_daemon(shop: Shop) -> None:
    crowd(shop)

    done = run("dialogs", "census", "-d", shop.path)

    text = " ".join(done.stdout.split())
    assert 0 == done.exit_code
    assert "DI │ a week and more │ 10" in text
    assert "0 messages not acknowledged 0 tombstones of closed sides, 0 of them have served" in text
    assert "0 dialogs in quarantine, 0 tried again" in text
    assert "BillingQueue" in text
    assert "sizes are counted" in text


def test_the_ledger_of_a_file_is_told_without_a_daemon(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    shop.begin(db).send_many([b"1", b"2", b"3"])
    over = shop.begin(db)
    over.send(b"4")
    shop.change(over, "state", "DI")
    over.end()

    text = run("dialogs", "census", "-d", shop.path).stdout
    [told] = json.loads(run("dialogs", "census", "-d", shop.path, "-o", "json").stdout)["databases"]

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


def test_what_the_ledger_does_not_account_for_is_told(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    shop.begin(db).send(b"1")
    db.execute("DELETE FROM broker_transmission")

    assert "0 failed + 1 UNACCOUNTED" in run("dialogs", "census", "-d", shop.path).stdout


def test_a_lifetime_beyond_the_calendar_is_shown(shop: Shop) -> None:
    crowd(shop)
    shop.connect(isolation_level=None).execute("UPDATE broker_conversation SET lifetime = 1e15")

    assert "in a far future" in run("dialogs", "census", "-d", shop.path).stdout


def test_as_json_it_has_every_figure(shop: Shop) -> None:
    crowd(shop)

    [told] = json.loads(run("dialogs", "census", "-d", shop.path, "-o", "json").stdout)["databases"]

    assert 10 == told["census"]["groups"][0]["conversations"]
    assert told["meaning"] == []
    assert {"broker_conversation", "broker_queue"} <= {table["table"] for table in told["census"]["tables"]}


def test_the_databases_of_a_configuration_are_counted(shop: Shop, tmp_path: Path) -> None:
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
    assert shop.path.is_file()


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


# --- end ----------------------------------------------------------------------------------------------------


def test_what_nobody_ends_is_ended(shop: Shop) -> None:
    crowd(shop)

    dry = run("dialogs", "end", "-d", shop.path, "--state", "DI", "--older-than", "7d", "--dry-run")
    assert (0, 10) == (dry.exit_code, len(shop.seen()["conversations"]))
    assert "10 conversations would end" in dry.stdout

    done = run("dialogs", "end", "-d", shop.path, "--state", "DI", "--older-than", "7d", "--yes")

    assert (0, []) == (done.exit_code, shop.seen()["conversations"])
    assert "10 conversations ended" in done.stdout


def test_those_that_are_young_or_of_others_stay(shop: Shop) -> None:
    crowd(shop)
    for words in (("--state", "CO", "--older-than", "7d"), ("--service", "Billing", "--older-than", "1h")):
        told = json.loads(run("dialogs", "end", "-d", shop.path, *words, "--yes", "-o", "json").stdout)
        assert {"chosen": [], "ended": 0} == told
    with shop.connect() as db:
        shop.begin(db)

    told = json.loads(run("dialogs", "end", "-d", shop.path, "--older-than", "1h", "--yes", "-o", "json").stdout)

    [chosen] = told["chosen"]
    assert (10, "DI", 10, ["SO"]) == (
        told["ended"],
        chosen["state"],
        chosen["conversations"],
        shop.seen()["conversations"],
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "say --yes, or look first with --dry-run"),
        (("--cleanup", "--error", "1"), "there is nobody to tell an --error"),
        (("--description", "abandoned"), "--description is told with an --error only"),
        (("--cleanup", "--description", "abandoned"), "--description is told with an --error only"),
        (("--state", "DO"), "only --cleanup ends it"),
    ],
)
def test_nothing_is_ended_unasked_or_by_halves(shop: Shop, words: tuple[str, ...], problem: str) -> None:
    crowd(shop)

    result = run("dialogs", "end", "-d", shop.path, "--older-than", "7d", *words)

    assert (2, 10) == (result.exit_code, len(shop.seen()["conversations"]))
    assert problem in " ".join(result.stderr.replace("│", " ").split())
