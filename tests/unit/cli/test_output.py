"""What commands print: JSON, CSV, tables that line up, prose that is wrapped and never broken inside a value."""

import io
import json
import os
import pty
from typing import Any

import pytest

from broker.cli.output import PROSE_COLUMNS_MAX, Terminal, TextLine, encodable, print_lines, show_json, show_rows
from tests.support.command import printed

ROWS: list[dict[str, Any]] = [{"name": "a", "mirror_address": None}, {"name": "b", "mirror_address": "tcp://m:4022"}]
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


class _Tty(io.StringIO):
    """A terminal that does not report its size."""

    def isatty(self) -> bool:
        return True


def drawn(columns: list[str], rows: list[list[str]], *, width: int = 80, title: str = "") -> list[str]:
    file = io.StringIO()
    Terminal(file, width=width).table(columns, [dict(zip(columns, row, strict=True)) for row in rows], title)
    return file.getvalue().splitlines()


def test_json_is_the_value_indented_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"name": "é"})

    assert '{\n  "name": "\\u00e9"\n}\n' == capsys.readouterr().out
    for rows in (ROWS, []):
        show_rows(rows, "json", ["name", "mirror_address"])
        assert rows == json.loads(capsys.readouterr().out)


def test_a_table_lines_up_whatever_columns_a_character_takes() -> None:
    lines = drawn(["name", "state"], [["東京", "up"], ["[red]", "down"]], title="Peers")

    assert [
        "Peers",
        "┏━━━━━━━┳━━━━━━━┓",
        "┃ name  ┃ state ┃",
        "┡━━━━━━━╇━━━━━━━┩",
        "│ 東京  │ up    │",
        "│ [red] │ down  │",
        "└───────┴───────┘",
    ] == lines


def test_a_wide_column_is_folded_between_words_and_what_has_no_room_becomes_blocks() -> None:
    lines = drawn(["handle", "why"], [[GUID, "no route leads to the service, and none of last resort is there"]])

    assert 80 >= max(map(len, lines))
    assert [GUID in line for line in lines[3:-1]] == [True, False]
    assert ["-- 1 of 1", f"one  {GUID}", f"東   {GUID}"] == drawn(["one", "東"], [[GUID, GUID]], width=40)
    assert ["Peers", "no rows"] == drawn([], [], title="Peers")


def test_a_table_lines_up_in_any_encoding() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", newline="\n")

    Terminal(file).table(["a"], [{"a": "é"}])
    file.flush()

    assert [b"+------+", b"| a    |", b"|------|", b"| \\xe9 |", b"+------+"] == raw.getvalue().splitlines()


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"v": None}, "NULL"),
        ({"v": False}, "False"),
        ({}, ""),
        ({"v": "[/x] [b]"}, "[/x] [b]"),
        ({"v": "\x1b[2Jgone"}, "\\x1b[2Jgone"),
        ({"v": "two\nlines\a"}, "two\\nlines\\x07"),
    ],
)
def test_a_value_is_shown_as_it_is_and_a_terminal_obeys_nothing(row: dict[str, Any], shown: str) -> None:
    file = io.StringIO()

    Terminal(file).table(["v"], [row])

    assert shown == file.getvalue().splitlines()[3].strip("│").strip()


@pytest.mark.parametrize(
    ("line", "width", "expected"),
    [
        (TextLine("one two three", 2, "!"), 11, ["  ! one two", "      three"]),
        (TextLine(f"for {GUID}", 2), 20, ["  for", f"    {GUID}"]),
        (TextLine("a  b  c  d  e  f", 2, is_table=True), 8, ["  a  b  c  d  e  f"]),
        (TextLine("\x1b[31mevil"), 80, ["\\x1b[31mevil"]),
        (TextLine(""), 80, [""]),
        (TextLine("x " * 200), 300, [("x " * 50).rstrip(), *["  " + ("x " * 49).rstrip()] * 3, "  x x x"]),
    ],
    ids=["goes on below its text", "a value is whole", "a table", "written out", "empty", "as long as one can read"],
)
def test_a_line_is_wrapped_between_words(line: TextLine, width: int, expected: list[str]) -> None:
    assert expected == printed([line], width=width).splitlines()
    assert PROSE_COLUMNS_MAX >= max(map(len, expected))


def test_a_terminal_shows_styles_unless_turned_off_and_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(file: io.StringIO, term: str, no_color: str = "") -> str:
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("NO_COLOR", no_color)
        Terminal(file).line("bad news", "red")
        Terminal(file).line("news")
        return file.getvalue()

    assert "\x1b[31mbad news\x1b[0m\nnews\n" == shown(_Tty(), "xterm")
    assert {"bad news\nnews\n"} == {shown(_Tty(), "xterm", "1"), shown(_Tty(), "dumb"), shown(io.StringIO(), "xterm")}


def test_the_width_is_that_of_the_terminal_or_the_one_that_is_set_or_the_usual(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        asked = Terminal(terminal).width
        os.close(ours)
    unknown = Terminal(_Tty()).width
    print_lines([TextLine("word " * 30)])
    monkeypatch.setenv("COLUMNS", "132")

    assert (80, 80, 132) == (asked, unknown, Terminal(_Tty()).width)
    assert ["word " * 15 + "word", "  " + "word " * 13 + "word"] == capsys.readouterr().out.splitlines()


def test_what_the_encoding_lacks_is_written_out() -> None:
    assert ["* done", "\\xe9", "plain"] == [encodable(text, "ascii") for text in ("✓ done", "é", "plain")]
