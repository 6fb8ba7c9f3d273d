"""Which words are offered where, at the prompt and in the shell, and what is asked for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from broker.cli import main
from broker.cli.names import Names, completions

COLUMNS = [("sys", "routes", "name"), ("sys", "routes", "address"), ("sys", "services", "service_id")]
LIVE: dict[str, list[str | None]] = {
    "sys.databases": ["msdb", "orders"],
    "sys.routes": ["Far", "my route"],
    "remote_service_name": ["//shop/Billing", None],
    "address": ["LOCAL", "tcp://b:4022"],
    "sys.services": ["//shop/Orders", "evil\x1b[2J"],
    "sys.service_queues": ["OrdersQueue", "Bil]l"],
}


@pytest.fixture
def asked() -> list[str]:
    """What the instance was asked."""
    return []


@pytest.fixture
def names(asked: list[str]) -> Names:
    def ask(question: str) -> Sequence[Sequence[Any]]:
        asked.append(question)
        if "system_columns" in question:
            return COLUMNS
        for word in ("remote_service_name", "address"):
            if f" {word} " in question:
                return [(name,) for name in LIVE[word]]
        return [(name,) for key, names in LIVE.items() if f"FROM {key}" in question for name in names][:2]

    return Names(ask)


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "sel", ["select"]),
        ("", "SEL", ["SELECT"]),
        ("SELECT * FROM ", "sys.r", ["sys.routes"]),
        ("SELECT * FROM ", "Or", ["OrdersQueue"]),
        ("SELECT * FROM ", "or", ["orders."]),
        ("SELECT * FROM ", "Bil", ["[Bil]]l]"]),
        ("SELECT * FROM ", "orders.sys.s", ["orders.sys.services"]),
        ("SELECT * FROM sys.routes WHERE ", "na", ["name"]),
        ("SELECT * FROM sys.routes r WHERE ", "r.ad", ["r.address"]),
        ("SELECT * FROM sys.services WHERE ", "ad", ["address"]),
        ("SELECT * FROM sys.services WHERE ", "serv", ["service_id", "service", "service_name"]),
        ("DROP ROUTE ", "", ["Far", "[my route]"]),
        ("ALTER ROUTE ", "my", ["[my route]"]),
        ("CREATE SERVICE s ON QUEUE ", "O", ["OrdersQueue"]),
        ("GRANT SEND ON SERVICE::", "", ["[//shop/Orders]"]),
        ("USE ", "o", ["orders"]),
        ("CREATE ROUTE r WITH SERVICE_NAME = '", "//shop/B", ["//shop/Billing"]),
        ("CREATE ROUTE r WITH ADDRESS = '", "tcp", ["tcp://b:4022"]),
        ("SELECT 'a ", "sel", []),
        ("", "zzz", []),
    ],
)
def test_what_fits_is_offered(names: Names, before: str, word: str, expected: list[str]) -> None:
    assert expected == completions(names, before, word)


def test_names_are_asked_again_when_they_are_old_or_something_was_changed(
    names: Names, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ["//shop/Orders"] == names.of("service") == names.of("service")
    assert 1 == len(asked)
    names.forget()
    names.of("service")
    assert 2 == len(asked)
    monkeypatch.setattr("broker.cli.names.FRESH_SECONDS", 0.0)
    names.of("service")
    assert 3 == len(asked)


def offered(*words: object) -> list[str]:
    """What the last word may become behind the others."""
    *before, word = map(str, words)
    found = ShellComplete(main, {}, "broker", "_BROKER_COMPLETE").get_completions(before, word)
    return [item.value for item in found]


def rows(*names: str) -> tuple[int, Any]:
    return 200, {"columns": ["name"], "rows": [[name] for name in names], "messages": []}


def test_services_of_the_instance_are_offered_where_a_service_is_named(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = rows("//shop/Billing", "//shop/Basket", "//stock/Items")

    assert ["//shop/Basket", "//shop/Billing"] == offered("explain", "--socket", fake_admin.path, "--to", "//shop/B")
    assert any("remote_service_name" in body["statement"] for _, _, body in fake_admin.asked)


def test_an_instance_that_cannot_answer_offers_nothing(fake_admin: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[instance", encoding="utf-8")

    answers: list[tuple[int, Any]] = [(500, {}), (200, b"no JSON")]
    for answer in answers:
        fake_admin.answers["/v1/sql"] = answer
        assert [] == offered("sql", "--socket", fake_admin.path, "-d", "")
    assert [] == offered("sql", "--socket", tmp_path / "none.sock", "-d", "")
    assert [] == offered("sql", "-c", broken, "-d", "")
