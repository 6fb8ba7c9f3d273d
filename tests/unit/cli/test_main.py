"""Completion by the shell: the script it runs, and what the program answers to it."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

import broker
from broker.cli import main
from broker.cli.main import COMMANDS as TABLE
from broker.cli.main import SECTIONS
from tests.support.command import run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_program(shell: str) -> None:
    result = run("completion", shell)

    assert 0 == result.exit_code
    assert f"_BROKER_COMPLETE={shell}_complete" in result.stdout


def test_bash_completes_commands_options_and_values() -> None:
    """A real one, with the program in its path."""
    programs = Path(sys.executable).parent  # where the package is installed
    bash = shutil.which("bash")
    assert bash is not None
    asked = (
        'complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _broker_completion broker;'
        ' echo "${COMPREPLY[*]}"; }\n'
        "complete_words broker sta; complete_words broker sql --out; complete_words broker status -o j\n"
    )
    script = run("completion", "bash").stdout + asked
    environ = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}

    done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, check=True, env=environ)

    assert ["status", "--output", "json"] == done.stdout.split()


GROUPS = {name: one for name, one in main.commands.items() if name in TABLE and isinstance(one, click.Group)}
INNER = (f"{name} {one}" for name, group in GROUPS.items() for one, made in group.commands.items() if not made.hidden)
COMMANDS = sorted([*TABLE, *INNER])


def command(name: str) -> click.Command:
    """A command, or one of a group."""
    found: click.Command = main
    for word in name.split():
        assert isinstance(found, click.Group)
        found = found.commands[word]
    return found


# --- commands in texts ---


PACKAGE = Path(broker.__file__).parent
COMMAND = re.compile(rf"\bbroker ((?:{'|'.join(TABLE)})\b[^;|\n]*)")
GAP = re.compile(r"[A-Z][A-Z:/=_]*")  # for the reader, or what the program fills in


def texts() -> Iterator[str]:
    """The texts of the package but for its docstrings; what the program fills in is X."""
    for path in sorted(PACKAGE.rglob("*.toml")):
        yield re.sub(r"\{\w+\}", "X", path.read_text().replace("{config_option}", " -c X"))
    for source in filter(COMMAND.search, (path.read_text() for path in sorted(PACKAGE.rglob("*.py")))):
        yield from texts_of(ast.parse(source))


def texts_of(node: ast.AST) -> Iterator[str]:
    """The texts of a part of a module."""
    if isinstance(node, ast.JoinedStr):
        written = ast.unparse(node).replace("{option_of(config)}", " -c X").replace("{config_option}", " -c X")
        parts = ast.parse(written, mode="eval").body
        values = parts.values if isinstance(parts, ast.JoinedStr) else [parts]
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in values)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        for one in ast.iter_child_nodes(node):
            yield from texts_of(one)


def words_of(text: str) -> list[str]:
    """A command at the beginning of a text with its arguments, up to the words of the sentence around it."""
    found: list[str] = []
    named: click.Command = main
    for written in re.findall(r"\"[^\"]*\"|\S+", text):
        word = written.strip("`'\".,:()")
        before = [one for one in named.params if found and found[-1] in one.opts]
        is_value = any(not getattr(one, "is_flag", True) for one in before)
        if isinstance(named, click.Group) and word in named.commands:
            named = named.commands[word]
        elif isinstance(named, click.Group) or not (word.startswith("-") or GAP.fullmatch(word) or is_value):
            break
        found.append(word)
        if written[-1] in ".,:)":
            break
    return found


def problem_of(words: Sequence[str]) -> str:
    """Why a command does not run; a value that is filled in may be wrong."""
    depth = 1 + isinstance(command(words[0]), click.Group)
    try:
        command(" ".join(words[:depth])).make_context(words[0], list(words[depth:]))
    except click.exceptions.Exit:  # --help
        return ""
    except click.UsageError as error:
        is_value = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
        return "" if is_value else f"broker {' '.join(words)}: {error.format_message()}"
    return ""


def test_commands_in_texts_run_as_they_stand() -> None:
    """One without arguments is only named."""
    named = {tuple(words_of(found[1])) for text in texts() for found in COMMAND.finditer(text)}
    complete = [words for words in sorted(named) if GAP.fullmatch(words[-1]) or any(one[0] == "-" for one in words)]

    assert len(complete) > 15
    assert [] == [problem for words in complete if (problem := problem_of(words))]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_a_line_exit_codes_options_and_two_examples(name: str) -> None:
    result = run(*name.split(), "--help")

    heading, *examples = result.stdout.rstrip().splitlines()[-3:]
    assert (0, "Examples:") == (result.exit_code, heading.strip())
    assert all(f"broker {name}" in example for example in examples)
    is_group = isinstance(command(name), click.Group)
    assert is_group or "Exit codes:" in " ".join(result.stdout.split())
    options = [one for one in command(name).params if isinstance(one, click.Option)]
    assert [] == [option.name for option in options if not option.help]
    assert not command(name).get_short_help_str(limit=70).endswith("...")
    if name in TABLE:
        assert TABLE[name][1] == command(name).get_short_help_str(limit=200)


def test_the_help_of_the_program_lists_every_command_once_and_every_exit_code() -> None:
    text, _, listed = run("--help").stdout.partition(f"{next(iter(SECTIONS))}:")

    assert run("--version").stdout.startswith("broker, version ")
    assert sorted(TABLE) == sorted(
        line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "
    )
    assert (
        "Exit codes: 0 success, 1 error, 2 usage, 3 not found, 4 daemon unreachable, 5 not permitted, 6 refused because"
        " it would do harm, 7 timed out; serve also 75 (port taken, store locked) and 78 (bad configuration). Two"
        " differ: reload ends with 2 when the configuration is wrong, and health with 0 to 3 as monitoring plugins do"
        " (2 not ready)."
    ) in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("bogus", "No such command 'bogus'"),
        ("completion tcsh", "'tcsh' is not one of"),
        ("status --bogus", "No such option"),
        ("status -o yaml", "'yaml' is not one of"),
        ("send -d x", "Missing option '--from'"),
        ("send -d x --from a --to b --lines y", "leave out BODY and --file"),
        ("send -d x --from a --to b --lines --file -", "leave out BODY and --file"),
        ("send -d x --from a --to b --file - y", "the body is --file or BODY, not both"),
        ("send -d x --from a --to b --file /no/such/file", "'/no/such/file' does not exist"),
        ("receive -d x --queue q --top 0", "0 is not in the range"),
        ("receive -d x --queue q --wait -1", "-1.0 is not in the range"),
        ("dialogs end -d x --older-than 7d --cleanup --error 1", "--cleanup sends nothing to the far side"),
        ("dialogs end -d x --older-than 7d --description y", "--description belongs to --error"),
        ("dialogs end -d x --older-than 7d --state DO", "only --cleanup ends it"),
        ("explain", "name a service with --to"),
        ("explain --to S -d orders --incoming", "leave out one"),
        ("explain --to S -c broker.toml --offline --socket admin.sock", "--offline asks no running instance"),
        ("explain --to S -c broker.toml --offline --through", "--offline asks no running instance"),
        ("explain --to S --admin tcp://far=admin.sock", "--admin says where --through asks"),
        ("explain --to S --conversation x", "'x' is not a valid UUID"),
        ("routes plan", "Missing argument 'SCRIPT'"),
        ("routes plan nix.sql", "'nix.sql' does not exist"),
        ("routes plan - --admin tcp://far=admin.sock", "--admin says where --through asks"),
        ("bench forwarding", "Missing option '--address'"),
        ("bench forwarding --address LOCAL", "'LOCAL' is not the address of an instance: write tcp://host:port"),
        ("bench dialogs /none/orders.db /none/billing.db", "'/none/orders.db' does not exist"),
        ("pipeline paths --journal . --out o --from 2026-03-02 --to 2026-03-01", "--from is not before --to"),
        ("pipeline paths --journal .", "--out is missing"),
        ("pipeline reconcile --out o", "--journal is missing"),
        ("pipeline run --journal . --out ./x --master nothing://at-all", "would lie among the journals"),
        ("pipeline report --journal s3a://b/f --out . --master nothing://at-all", "s3a://b/f is not on a"),
        ("pipeline capacity --journal . --out o --window 0.5s", "whole seconds"),
        ("pipeline report --journal . --explain", "use --explain with its jobs"),
        ("certs issue", "give either the NAME of an endpoint or --database NAME"),
        ("certs issue a --database b", "give either the NAME of an endpoint or --database NAME"),
        ("certs issue a", "give --ca DIRECTORY, or run broker certs init --self-signed DIRECTORY without one"),
        ("certs issue --database a --host b", "a database is on no host"),
        ("certs issue --database a --days 826", "--days 826 is above 825"),
        ("certs issue --database a --spiffe http://a", "SPIFFE id"),
        ("certs init ca --host a", "an authority has neither hosts nor a SPIFFE id"),
        ("certs init ca --days 99999999", "is beyond the last day there is"),
        ("certs show", "name files, or a configuration with -c FILE"),
        ("token create ../x", "a name has 1 to 64 letters, digits, dots, hyphens and underscores"),
        ("token create x --expires soon", "invalid duration 'soon': write one like 90d or 12h, or never"),
        ("token create x --expires 9999999d", "that is beyond the calendar: write a shorter time, or never"),
        ("token create x --role root", "'root' is not one of"),
        ("quarantine resume -d x", "name the conversations, or say --all"),
        ("quarantine resume -d x --all x", "name the conversations, or say --all"),
        ("quarantine end -d x --error 0 --all", "0 is not in the range"),
        ("quarantine end -d x --error 1 --cleanup --all", "say --error CODE"),
        ("quarantine end -d x --all", "say --error CODE"),
    ],
)
def test_wrong_usage_is_2_does_nothing_and_points_at_the_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run(*arguments.split())

    assert (2, "", []) == (result.exit_code, result.stdout, list(tmp_path.iterdir()))
    assert "--help' for help." in result.stderr
    assert problem in " ".join(result.stderr.replace("│", " ").split())
