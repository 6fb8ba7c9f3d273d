"""Models checked by spin: every state that can be reached is looked at, within the bounds of the model."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "model"
MEMORY_MB = 6000
DEPTH = 500_000
SECONDS = 900
HASTE = {"command.pml": "-O0"}  # a compiler takes 1.4 s for it, and 21 s to make its run shorter by 2 s

needs_spin = pytest.mark.skipif(
    (shutil.which("spin") is None or shutil.which("gcc") is None) and not os.environ.get("BROKER_TEST_COMPLETE"),
    reason="spin is not installed: apt-get install spin",
)


def check(directory: Path, model: str, *, claim: str = "", **bounds: int) -> list[str]:
    """
    Look at every state of a model, of which there are many when nothing is wrong; errors as spin tells them.

    Args:
        directory: For what is compiled.
        model: Its file in `model/`.
        claim: A formula to hold under weak fairness; without one assertions and dead ends are looked for.
        bounds: What the model takes as `#define`.
    """
    for path in MODELS.glob("*.pml"):
        shutil.copy(path, directory)
    run(directory, "spin", *(f"-D{name}={value}" for name, value in bounds.items()), "-a", model)
    modes = {True: ("-DNFAIR=5",), False: ("-DSAFETY", "-DNOCLAIM")}
    how = (HASTE.get(model, "-O2"), "-w", "-DCOLLAPSE", *modes[bool(claim)], f"-DMEMLIM={MEMORY_MB}")
    run(directory, "gcc", *how, "-o", "pan", "pan.c")
    words = ("-a", "-f", "-N", claim) if claim else ()
    told = run(directory, "./pan", f"-m{DEPTH}", *words)
    assert "max search depth too small" not in told, told
    assert "out of memory" not in told, told
    found = re.search(r"errors: (\d+)", told)
    states = re.search(r"(\d+) states, stored", told)
    assert found is not None, told
    assert states is not None, told
    errors = re.findall(r"^pan:\d+: (.*)$", told, re.MULTILINE)
    assert bool(int(found[1])) == bool(errors), told
    assert errors or int(states[1]) > 1_000, told
    print(f"{model} {bounds}: {int(states[1]):,} states, {len(errors)} errors")  # noqa: T201 - for whoever reads the run
    return errors


def run(directory: Path, *words: str) -> str:
    """The output of a program that has to succeed."""
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
