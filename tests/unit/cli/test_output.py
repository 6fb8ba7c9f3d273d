"""Values as JSON, rows as JSON or as a table."""

from __future__ import annotations

import io
import json
import os
import pty
import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.cli.output import (
    COLUMNS_MAX,
    Terminal,
    TextLine,
    cells,
    encodable,
    folded,
    print_lines,
    quoted_path,
    show_json,
    show_rows,
)

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


# --- test_line ---
# Lines of prose: wrapped between words, nothing cut, nothing obeyed.


GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def printed(*lines: TextLine, width: int) -> list[str]:
    file = io.StringIO()
    print_lines(lines, Terminal(file, width=width))
    return file.getvalue().splitlines()


def test_lines_go_to_standard_output_eighty_columns_wide(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([TextLine("word " * 30)])

    assert ["word " * 15 + "word", "  " + "word " * 13 + "word"] == capsys.readouterr().out.splitlines()


def test_a_line_goes_on_below_its_text() -> None:
    assert ["  ! one two", "      three"] == printed(TextLine("one two three", 2, "!"), width=11)


def test_a_value_that_is_copied_is_never_broken() -> None:
    assert ["  for", f"    {GUID}"] == printed(TextLine(f"for {GUID}", 2), width=20)


def test_no_line_is_longer_than_one_can_read() -> None:
    assert COLUMNS_MAX == max(map(len, printed(TextLine("x " * 200), width=300))) + 1


def test_a_table_is_left_as_it_is() -> None:
    assert ["  a  b  c  d  e  f"] == printed(TextLine("a  b  c  d  e  f", 2, is_table=True), width=8)


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert ["\\x1b[31mevil"] == printed(TextLine("\x1b[31mevil"), width=80)


def test_an_empty_line_is_one() -> None:
    assert ["", "  -"] == [line.rstrip() for line in printed(TextLine(""), TextLine("", 2, "-"), width=80)]


# --- test_terminal ---
# Lines and tables: nothing is cut, everything lines up, and a file that is no terminal gets text alone.


class _Tty(io.StringIO):
    """A terminal whose size nobody knows."""

    def isatty(self) -> bool:
        return True


def drawn(columns: list[str], rows: list[list[str]], *, width: int = 80, title: str = "") -> list[str]:
    file = io.StringIO()
    Terminal(file, width=width).table(columns, rows, title)
    return file.getvalue().splitlines()


def test_a_table_lines_up_whatever_columns_a_character_takes() -> None:
    lines = drawn(["name", "state"], [["東京", "up"], ["e\u0301", "down"]], title="Peers")

    assert [
        "Peers",
        "┏━━━━━━┳━━━━━━━┓",
        "┃ name ┃ state ┃",
        "┡━━━━━━╇━━━━━━━┩",
        "│ 東京 │ up    │",
        "│ e\u0301    │ down  │",
        "└──────┴───────┘",
    ] == lines


def test_a_table_without_rows_has_its_heads() -> None:
    assert ["┏━━━┓", "┃ a ┃", "┡━━━┩", "└───┘"] == drawn(["a"], [])


def test_a_table_without_columns_says_that_there_is_nothing() -> None:
    assert ["Peers", "no rows"] == drawn([], [], title="Peers")


def test_the_widest_column_gives_way_and_is_folded_between_words() -> None:
    lines = drawn(["handle", "why"], [[GUID, "no route leads to the service, and none of last resort is there"]])

    assert [
        f"│ {GUID} │ no route leads to the service, and    │",
        f"│ {'':36} │ none of last resort is there          │",
    ] == lines[3:-1]


def test_a_table_for_which_there_is_no_room_becomes_blocks() -> None:
    assert ["-- 1 of 1", f"one  {GUID}", f"東   {GUID}"] == drawn(["one", "東"], [[GUID, GUID]], width=40)


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 5, [""]),
        ("short", 5, ["short"]),
        ("two words", 5, ["two", "words"]),
        ("abcdefgh", 5, ["abcde", "fgh"]),
        ("a bcdefgh", 5, ["a", "bcdef", "gh"]),
        ("one  two", 5, ["one", "two"]),
        ("ends with blank ", 15, ["ends with blank"]),
        ("東京大学", 5, ["東京", "大学"]),
        ("x" * 100_000, 40_000, ["x" * 40_000, "x" * 40_000, "x" * 20_000]),
    ],
)
def test_a_text_is_folded(text: str, width: int, lines: list[str]) -> None:
    assert lines == folded(text, width)


@pytest.mark.parametrize(
    ("text", "lines"),
    [(f"see {GUID} now", ["see", GUID, "now"]), (GUID, [GUID]), (f"{GUID} now", [GUID, "now"])],
)
def test_a_word_stays_whole_where_it_is_asked_for(text: str, lines: list[str]) -> None:
    assert lines == folded(text, 10, breaks_words=False)


def test_prose_is_as_wide_as_what_it_is_printed_on() -> None:
    file = io.StringIO()

    Terminal(file, elsewhere=12).prose("some words and more")

    assert "some words\nand more\n" == file.getvalue()


def test_a_terminal_shows_styles_and_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = _Tty(), io.StringIO()

    for one in (terminal, file):
        Terminal(one).line("bad news", "bold red")
        Terminal(one).line("news")

    assert "\x1b[1;31mbad news\x1b[0m\nnews\n" == terminal.getvalue()
    assert "bad news\nnews\n" == file.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    terminal = _Tty()

    Terminal(terminal).line("bad news", "red")

    assert "bad news\n" == terminal.getvalue()


def test_the_width_is_that_of_the_terminal_else_the_one_that_is_set_else_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        asked = Terminal(terminal).width
        os.close(ours)
    unknown = Terminal(_Tty()).width
    monkeypatch.setenv("COLUMNS", "132")

    assert (80, 80, 132) == (asked, unknown, Terminal(_Tty()).width)


@pytest.mark.parametrize(
    ("text", "shown"), [("│ ✓ done", "| * done"), ("┏━┓", "+-+"), ("é", "\\xe9"), ("plain", "plain")]
)
def test_what_the_encoding_lacks_is_written_out(text: str, shown: str) -> None:
    assert shown == encodable(text, "ascii")


def test_a_table_lines_up_in_any_encoding() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", newline="\n")

    Terminal(file).table(["a"], [["é"]])
    file.flush()

    assert [b"+------+", b"| a    |", b"+------+", b"| \\xe9 |", b"+------+"] == raw.getvalue().splitlines()


@pytest.mark.parametrize(("text", "columns"), [("", 0), ("abc", 3), ("東京", 4), ("e\u0301", 1)])
def test_columns_of_a_text(text: str, columns: int) -> None:
    assert columns == cells(text)
