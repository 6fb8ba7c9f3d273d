"""Completion by the shell: the script it runs, and what the program answers to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_program(shell: str) -> None:
    result = run("completion", shell)

    assert 0 == result.exit_code
    assert f"_BROKER_COMPLETE={shell}_complete" in result.stdout


def test_another_shell_is_wrong_usage() -> None:
    assert 2 == run("completion", "tcsh").exit_code


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
