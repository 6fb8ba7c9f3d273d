"""Names that a running instance has, offered to the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from broker.cli import main


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


@pytest.mark.parametrize("command", ["sql", "explain"])
def test_databases_of_the_instance_are_offered_where_one_is_named(fake_admin: Any, command: str) -> None:
    fake_admin.answers["/v1/sql"] = rows("msdb", "orders")

    assert ["orders"] == offered(command, "--socket", fake_admin.path, "--database", "or")


def test_the_instance_is_found_through_its_configuration(configuration: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = rows("orders")

    assert ["orders"] == offered("sql", "-c", configuration, "-d", "")


@pytest.mark.parametrize("answer", [(500, {}), (200, b"no JSON")], ids=str)
def test_an_instance_that_cannot_answer_offers_nothing(fake_admin: Any, answer: tuple[int, Any]) -> None:
    fake_admin.answers["/v1/sql"] = answer

    assert [] == offered("sql", "--socket", fake_admin.path, "-d", "")


def test_no_instance_offers_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[instance", encoding="utf-8")

    assert [] == offered("sql", "--socket", tmp_path / "none.sock", "-d", "")
    assert [] == offered("sql", "-c", broken, "-d", "")
