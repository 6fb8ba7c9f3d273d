"""What a source of roles says is one of three words; everything else says nothing, and why."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from broker.config.settings import Settings
from broker.daemon.roles import CommandSource, LockSource, role_source
from broker.routing.mirrored import EPOCH_MAX, MirrorRole, RoleAnswer


def source(code: str, *, hold: float = 20.0) -> CommandSource:
    return CommandSource([sys.executable, "-c", code], interval=1.0, hold=hold)


def test_what_is_configured_is_what_is_asked(load: Callable[..., Settings]) -> None:
    text = '[instance]\nstate_dir = "s"\n[databases.a]\npath = "a"\n[databases.b]\npath = "b"\nmirroring = "lock"\n'
    command = '[databases.c]\npath = "c"\nmirroring = "command"\nrole_command = ["true"]\nrole_interval = "2s"\n'
    databases = load(text + command).databases

    asked = [role_source(databases[name]) for name in "abc"]

    assert [None, "lock", "command"] == [one and one.name for one in asked]
    assert isinstance(asked[2], CommandSource)
    assert (2.0, 10.0) == (asked[2].interval, asked[2].hold)


async def test_whoever_gets_the_lock_should_have_it() -> None:
    assert RoleAnswer(MirrorRole.PRINCIPAL) == await LockSource().ask()


@pytest.mark.parametrize(
    ("printed", "word"),
    [
        ("principal", RoleAnswer(MirrorRole.PRINCIPAL)),
        ("principal\n", RoleAnswer(MirrorRole.PRINCIPAL)),
        (" principal 12 \n", RoleAnswer(MirrorRole.PRINCIPAL, 12)),
        ("mirror", RoleAnswer(MirrorRole.MIRROR)),
    ],
)
async def test_a_role_is_one_line(printed: str, word: RoleAnswer) -> None:
    assert word == await source(f"print({printed!r}, end='')").ask()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", "printed '', and should print principal, principal EPOCH or mirror"),
        ("print('Principal')", "printed 'Principal\\\\n', and should"),
        ("print('mirror 3')", "printed 'mirror 3\\\\n', and should"),
        ("print('principal -1')", "printed 'principal -1\\\\n', and should"),
        ("print('principal', 10 ** 30)", "printed 'principal 1000"),
        (f"print('principal', {EPOCH_MAX})", f"printed the epoch {EPOCH_MAX}, above which nobody could take over"),
        ("print('principal'); raise SystemExit('gone wrong')", "has failed with exit code 1: gone wrong"),
        ("print('mirror' * 100_000)", "printed 'mirrormirror"),
    ],
)
async def test_anything_else_says_nothing_and_why(code: str, problem: str) -> None:
    word = await source(code).ask()

    assert (MirrorRole.UNKNOWN, 0) == (word.role, word.epoch)
    assert problem.replace("\\\\", "\\") in word.problem


async def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    word = await CommandSource([str(tmp_path / "none")], interval=1.0, hold=1.0).ask()

    assert MirrorRole.UNKNOWN is word.role
    assert "cannot be started: No such file or directory" in word.problem


async def test_no_shell_reads_the_command() -> None:
    word = await CommandSource(["echo", "principal; echo mirror"], interval=1.0, hold=20.0).ask()

    assert MirrorRole.UNKNOWN is word.role


async def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {started}; wait"

    word = await CommandSource(["sh", "-c", script], interval=1.0, hold=3.0).ask()

    assert "has not ended within 3 s" in word.problem
    assert await is_gone(int(started.read_text()))


@pytest.mark.parametrize("output", ["/dev/stdout", "/dev/null"])
async def test_what_a_command_leaves_behind_is_ended_and_its_answer_counts(tmp_path: Path, output: str) -> None:
    started = tmp_path / "pid"
    script = f"echo principal 7; sleep 600 >{output} 2>&1 & echo $! > {started}"

    word = await CommandSource(["sh", "-c", script], interval=1.0, hold=20.0).ask()

    assert RoleAnswer(MirrorRole.PRINCIPAL, 7) == word
    assert await is_gone(int(started.read_text()))


async def test_whoever_stops_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    code = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    asking = asyncio.create_task(source(code).ask())
    while not (started.exists() and started.read_text()):  # noqa: ASYNC110 - a file of another process
        await asyncio.sleep(0.01)

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    assert await is_gone(int(started.read_text()))


async def is_gone(pid: int) -> bool:
    """Whether a process ends, or is one that waits to be reaped by whoever adopted it."""
    for _ in range(1000):
        try:
            state = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            return True
        if state == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.01)
    return False
