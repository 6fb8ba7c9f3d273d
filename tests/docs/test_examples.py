"""
No example of any page rots: what it names is there.

Most pages are executed elsewhere: test_reference.py says which. Here every example of every page is read: keys of the
configuration, statements, commands with their options, programs, JSON.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import click
import pytest

from broker.cli import main
from broker.config.load import load_settings
from broker.ddl.parser import STATEMENTS, read_script
from broker.errors import BrokerError, DdlSyntaxError, SettingsError
from tests.docs.page import DOCS, blocks
from tools.pages.example import Example

EXECUTED = "from-sql-server.md"  # shows what is refused as well, and is executed


@dataclass(frozen=True, slots=True)
class Shown:
    """Shape: `place` page and line; `text` of the block."""

    place: str
    text: str


def examples(language: str) -> list[Shown]:
    """Of one language, from every page but the numbers', which show what is refused."""
    return [
        Shown(f"{page.relative_to(DOCS)}:{block.line}", block.text)
        for page in sorted(DOCS.rglob("*.md"))
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language == language and page.parent.name != "errors"
    ]


def commands(language: str = "sh") -> Iterator[tuple[str, list[str]]]:
    """Where a command is shown, and its words behind `broker`."""
    for example in examples(language):
        for line in example.text.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#.*$|\s+&$|\s[0-9]?[<>|].*$", "", line.strip())
            if command.startswith("broker ") and not re.search(r"\$\(|\.\.\.", command):
                yield example.place, shlex.split(command)[1:]


def test_keys_of_the_configuration_are_known_and_their_values_good(tmp_path: Path) -> None:
    path, wrong = tmp_path / "broker.toml", []
    for example in examples("toml"):
        path.write_text(example.text, encoding="utf-8")
        try:
            load_settings(path, environ={})
        except SettingsError as error:
            wrong += [f"{example.place}: {one}" for one in error.errors if "is missing" not in str(one)]

    assert [] == wrong


def test_statements_are_understood() -> None:
    wrong = [
        f"{example.place}: {outcome}"
        for example in examples("sql")
        if not example.text.startswith("SELECT") and not example.place.startswith(EXECUTED)
        for outcome in read_script(example.text)
        if isinstance(outcome, DdlSyntaxError)
    ]

    assert [] == wrong


def test_files_of_the_repository_that_pages_name_are_there() -> None:
    named = {
        (page.name, found)
        for page in DOCS.rglob("*.md")
        for found in re.findall(
            r"`((?:tests|bench|tools|model|deploy|examples)/[\w./-]*\w)[`:]", page.read_text("utf-8")
        )
    }

    assert len(named) > 50
    assert [] == sorted(one for one in named if not (DOCS.parent / one[1]).exists())


def test_targets_of_make_and_modules_that_pages_call_are_there() -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    lines = [(example.place, line) for example in examples("sh") for line in example.text.splitlines()]
    made = [(place, found[1]) for place, line in lines if (found := re.match(r"make (\w+)", line))]
    called = [(place, found[1]) for place, line in lines if (found := re.search(r"python -m ([\w.]+)", line))]

    assert made
    assert called
    assert [] == [one for one in made if not re.search(f"^{one[1]}:", makefile, re.MULTILINE)]
    assert [] == [one for one in called if find_spec(one[1]) is None]


def test_every_statement_is_on_its_page() -> None:
    page = (DOCS / "statements.md").read_text(encoding="utf-8")

    assert [] == [words for words in STATEMENTS if not re.search(rf"\b{words}\b", page)]


def test_views_and_columns_that_are_asked_for_are_there(tmp_path: Path) -> None:
    shown = [
        (example.place, question)
        for example in examples("sql")
        if example.text.startswith("SELECT")
        for question in example.text.split(";\n")
        if question.strip()
    ]
    shown += [
        (place, word)
        for place, words in commands()
        if not place.startswith("how-to/")  # asks for what its page has made, and is executed
        for word in words
        if word.startswith("SELECT")
    ]
    wrong = []
    with Example(tmp_path) as instance:
        for place, question in shown:
            try:
                instance.select(question, database="shop")
            except BrokerError as error:
                wrong.append(f"{place}: {error}")

    assert [] == wrong
    assert len(shown) > 5


def test_commands_and_their_options_are_there() -> None:
    wrong, shown = [], set()
    for place, all_words in commands():
        context, command, words = click.Context(main), cast("click.Command", main), all_words
        try:
            while isinstance(command, click.Group):
                name, found, words = command.resolve_command(context, words)
                assert found is not None
                shown.add(name)
                context, command = click.Context(found, parent=context), found
            command.make_parser(context).parse_args(args=list(words))
        except click.exceptions.Exit:  # it asked for help, or for the version
            continue
        except click.UsageError as error:
            wrong.append(f"{place}: {error.format_message()}")

    assert [] == wrong
    assert {"check", "serve", "send", "receive", "explain", "why", "sql", "status"} <= shown


def test_programs_can_be_compiled() -> None:
    for example in examples("python"):
        compile(example.text, example.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("example", examples("json"), ids=lambda example: example.place)
def test_json_is_json(example: Shown) -> None:
    json.loads(example.text)
