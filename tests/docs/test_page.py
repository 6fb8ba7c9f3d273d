"""The reader of pages finds what is wrong with one: a page that lies does not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import Reading, blocks, matches


def read(directory: Path, text: str) -> int:
    page = directory / "page.md"
    page.write_text(text, encoding="utf-8")
    with Reading(page) as reading:
        return reading.read()


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("one\ntwo", "one two\n"),
        ("a ... z", "a b\nc z"),
        ("since 2026-01-01 10:00:00 UTC, 3 ms", "since 2026-11-22 18:00:00.123 UTC, 0.4 ms"),
        ("at 2026-12-13 00:00 UTC", "at 2026-12-14 00:00 UTC"),
        ("of 8A0E2B77-13C5-4A0F-B0A7-6D2F3F1C9E03", "of 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"),
        ("│ a │ 1 │", "│ a   │ 1  │"),
    ],
)
def test_what_differs_at_every_run_does_not_count(expected: str, printed: str) -> None:
    assert matches(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"), [("3 held", "4 held"), ("a ... z", "a b"), ("a", "a b"), ("a.c", "abc")]
)
def test_anything_else_counts(expected: str, printed: str) -> None:
    assert not matches(expected, printed)


def test_a_guid_that_the_page_itself_has_written_counts() -> None:
    mine, other = "8a0e2b77-13c5-4a0f-b0a7-6d2f3f1c9e03", "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"

    assert matches(mine.upper(), mine, fixed=frozenset({mine}))
    assert not matches(mine, other, fixed=frozenset({mine}))


def test_blocks_in_lists_lose_their_indentation() -> None:
    (found,) = blocks("1. First:\n\n   ```sh\n   echo a\n   ```\n")

    assert ("sh", "echo a\n", 4) == (found.language, found.text, found.line)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```sh\necho a\n```\n\n```text\nb\n```\n", "page.md:2: printed\na"),
        ("\n```sh\nfalse\n```\n", "page.md:3: false: ended with 1"),
        ("```sh\ntrue   # exit code 3\n```\n", "ended with 0"),
        ("```python\nprint(1)\n```\n", "page.md:2: a block that nothing executes"),
        ("```toml\na = 1\n```\n", "page.md:2: a block that nothing executes"),
        ("```text\na\n```\n", "page.md:2: printed by nothing"),
    ],
)
def test_a_page_that_is_wrong_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(AssertionError) as failed:
        read(tmp_path, text)

    assert problem in str(failed.value)


def test_files_variables_and_lines_that_go_on_work_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "```python\n# made/of.py\na = 'tcp://127.0.0.1:4022'\n```\n"
        "```sh\ngrep -c 4022 made/of.py   # exit code 1\n```\n```text\n0\n```\n"
        "```sh\ngrep -o '127.*' \\\n  made/of.py\n```\n```text\n127.0.0.1:4022'\n```\n"
    )

    assert 5 == read(tmp_path, text)
