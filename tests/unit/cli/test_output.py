"""Values as JSON, rows as JSON or as a table."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.cli.output import quoted_path, show_json, show_rows

ROWS: list[dict[str, Any]] = [{"name": "a", "mirror_address": None}, {"name": "b", "mirror_address": "tcp://m:4022"}]


def test_json_is_the_value_indented(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"ready": True})

    assert '{\n  "ready": true\n}\n' == capsys.readouterr().out


@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "no rows"])
def test_rows_as_json_are_a_list_of_objects(capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]]) -> None:
    show_rows(rows, "json", ["name", "mirror_address"])

    assert rows == json.loads(capsys.readouterr().out)


def test_rows_as_a_table_have_their_keys_above_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, "table")

    text = capsys.readouterr().out
    assert [] == [word for word in ("name", "mirror_address", "NULL", "tcp://m:4022") if word not in text]


def test_a_table_of_no_rows_shows_the_columns_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], "table", ["name", "mirror_address"])

    assert "mirror_address" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.pem", 'a "b".pem', "a\\b.pem", "größe.pem", "a\nb.pem"])
def test_a_path_is_quoted_as_toml_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)

    assert {"path": str(tmp_path / name)} == tomllib.loads(f"path = {quoted_path(Path(name))}")
