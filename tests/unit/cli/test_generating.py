"""The command that makes a synthetic history."""

import json
from pathlib import Path

from click.testing import CliRunner

from broker.cli.generating import generate


def test_a_history_is_made_and_counted(tmp_path: Path) -> None:
    """What is printed is what the truth says."""
    arguments = [str(tmp_path / "history"), "--messages", "50", "--instances", "3", "--hours", "0.2", "-o", "json"]

    told = CliRunner().invoke(generate, arguments)

    truth = json.loads((tmp_path / "history" / "_truth" / "truth.json").read_text())
    assert (0, truth["counts"]) == (told.exit_code, json.loads(told.stdout))


def test_nothing_but_the_counts_is_printed_where_no_terminal_is(tmp_path: Path) -> None:
    """Progress is for who watches it: its bare label would be a word without meaning in a log."""
    arguments = [str(tmp_path / "history"), "--messages", "50", "--instances", "3", "--hours", "0.2"]

    told = CliRunner().invoke(generate, arguments)

    assert (0, "", 1) == (told.exit_code, told.stderr, len(told.stdout.splitlines()))


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    """Exit code 1, and nothing is written."""
    (tmp_path / "mine").write_text("mine")

    told = CliRunner().invoke(generate, [str(tmp_path), "--messages", "50"])

    assert 1 == told.exit_code
    assert ["mine"] == [path.name for path in tmp_path.iterdir()]
