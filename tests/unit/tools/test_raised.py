"""What the code says of a number is found, however it is written."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from broker.observe.views import MessageChannel
from tools.raised import Raised, raised, rendered


def found(root: Path, text: str, module: str = "control/a.py") -> list[Raised]:
    path = root / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return raised(root)


@pytest.mark.parametrize(
    ("text", "number", "kind", "sentence"),
    [
        ("raise StatementError(911, 'there is none')", 911, "StatementError", "there is none"),
        (
            "raise StatementError(911, f'{name!r} is none of {len(known)}')",
            911,
            "StatementError",
            "{name} is none of {...}",
        ),
        ("MOST = 7\nraise StatementError(911, f'at most {MOST}')", 911, "StatementError", "at most 7"),
        ("NONE = 911\nraise StatementError(NONE, 'none')", 911, "StatementError", "none"),
        ("def f():\n problem = 'none'\n raise StatementError(911, problem)", 911, "StatementError", "none"),
        ("raise self.error(911, 'none', kind=UnknownNameError)", 911, "UnknownNameError", "none"),
        ("raise StatementError(911, str(error))", 911, "StatementError", ""),
        ("TABLE = ((x, 911, 'there is none'),)  # number", 911, "", "there is none"),
        ("check_text(text, 'the text', 911)  # number", 911, "check_text", ""),
        ("def f(number: int = 911): ...", 911, "", ""),
        ("def f(*, number: int = 911): ...", 911, "", ""),
        ("self.number = 911", 911, "", ""),
        ("TABLE = ((911, 'the type {name!r}, or {0}'),)  # number", 911, "", "the type {name}, or {...}"),
    ],
)
def test_a_number_is_found_with_its_sentence(tmp_path: Path, text: str, number: int, kind: str, sentence: str) -> None:
    assert [Raised(number, (MessageChannel.STATEMENT,), kind, sentence, "control/a.py")] == found(tmp_path, text)


def test_either_of_two_numbers_is_found(tmp_path: Path) -> None:
    told = found(tmp_path, "raise kind(2714 if is_there else 15151, 'no')")

    assert [2714, 15151] == [one.number for one in told]


@pytest.mark.parametrize(
    ("module", "text", "places"),
    [
        ("observe/a.py", "StatementError(208, 'no')", (MessageChannel.SELECT,)),
        ("application/a.py", "ConversationError(208, 'no')", (MessageChannel.APPLICATION,)),
        ("store/a.py", "Fault(-208, 'no')", (MessageChannel.DIALOG,)),
        ("store/a.py", "Refusal(208, 'no')", (MessageChannel.APPLICATION, MessageChannel.DIALOG)),
        ("store/a.py", "GONE = -208\nf(code=GONE)  # number", (MessageChannel.DIALOG,)),
        ("store/a.py", 'problem = "error 208: no"', (MessageChannel.START,)),
        ("errors.py", "class AError(PeerError):\n code: ClassVar[int] = 208", (MessageChannel.CONNECTION,)),
    ],
)
def test_module_sign_and_kind_say_where_it_is_told(
    tmp_path: Path, module: str, text: str, places: tuple[MessageChannel, ...]
) -> None:
    assert [(208, places)] == [(one.number, one.places) for one in found(tmp_path, text, module)]


def test_a_sentence_that_begins_with_its_number_is_found_once(tmp_path: Path) -> None:
    told = found(tmp_path, 'number = 1\nproblem = f"error 9772: {name} is a copy" + "error 9772: no"')

    assert ["error 9772: no", "error 9772: {name} is a copy"] == [one.sentence for one in told]


def test_a_constant_of_another_module_is_known(tmp_path: Path) -> None:
    (tmp_path / "layout.py").write_text("NAME_MAX = 128  # bytes\n")

    told = found(tmp_path, "raise StatementError(103, f'at most {NAME_MAX}')")

    assert ["at most 128"] == [one.sentence for one in told]


@pytest.mark.parametrize(
    "text", ["StatementError(7, 'no')", "log.note('x', code=144)  # number", "wait(911, 'no')  # number"]
)
def test_other_numbers_are_none(tmp_path: Path, text: str) -> None:
    assert [] == found(tmp_path, text)


def test_a_class_gives_the_sentence_that_it_makes(tmp_path: Path) -> None:
    text = (
        "class AError(PeerError):\n code: ClassVar[int] = 28041\n"
        " def __str__(self):\n  return f'malformed: {self.problem}'\n"
    )

    assert ["malformed: {problem}"] == [one.sentence for one in found(tmp_path, text)]


def test_what_is_only_filled_in_is_no_sentence() -> None:
    assert "" == rendered(ast.parse("f'{problem}'", mode="eval").body)
