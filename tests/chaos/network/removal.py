"""
The end of a network: its processes, mounts, control groups and namespaces, found by their tag in the system itself.

Nothing is remembered in a file, so that it does not matter who made them and how far that got. `remove` is called by
the switch when its network closes or its harness dies, and `remove_dead` by the next network for what even the switch
has left behind. Both may meet somebody who does the same: what is gone is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.network.command import run
from tests.chaos.network.impairment import NetworkError
from tests.chaos.network.memory import groups
from tests.chaos.network.tag import find_tag, is_alive

NAMESPACES = Path("/run/netns")
MOUNTS = Path("/proc/self/mounts")
DYING_SECONDS = 10.0
POLL_SECONDS = 0.01


def remove_dead() -> None:
    """Remove the networks of harnesses that do not live any more."""
    names = [path.name for path in namespaces("")] + [source for source, _ in mounts("")]
    names += [group.name for group in groups("")]
    for tag in {find_tag(name) for name in names}:
        if tag and not is_alive(tag):
            remove(tag)


def remove(tag: str) -> None:
    """
    Remove everything of one network.

    Raises:
        NetworkError: something would not go; the rest is gone.
    """
    troubles = [*_kill(tag)]
    for _, directory in mounts(tag):
        troubles += _tried("umount", "--lazy", str(directory), gone=lambda at=directory: not os.path.ismount(at))
    for group in groups(tag):
        troubles += emptied(group)
    for path in namespaces(tag):
        troubles += _tried("ip", "netns", "delete", path.name, gone=lambda at=path: not at.exists())
    if troubles:
        raise NetworkError("; ".join(troubles))


def namespaces(tag: str) -> list[Path]:
    """Files of the network namespaces of a tag, of every one with ""."""
    found = NAMESPACES.iterdir() if NAMESPACES.is_dir() else ()
    return sorted(path for path in found if _belongs(path.name, tag))


def mounts(tag: str) -> list[tuple[str, Path]]:
    """Source and directory of the mounts of a tag, of every one with ""."""
    pairs = [line.split()[:2] for line in MOUNTS.read_text(encoding="utf-8").splitlines()]
    return [(source, Path(_unescaped(directory))) for source, directory in pairs if _belongs(source, tag)]


def processes(tag: str) -> set[int]:
    """Who runs in the namespaces of a tag, but for this process; control groups are entered from there alone."""
    ids = {_identity(path) for path in namespaces(tag)} - {None}
    found = {pid for pid in _all_processes() if _identity(Path(f"/proc/{pid}/ns/net")) in ids}
    return found - {os.getpid()}


def is_running(pid: int) -> bool:
    """Whether it is more than what its parent has to reap."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def emptied(group: Path) -> Iterator[str]:
    """Remove a control group; the kernel keeps it while the last thread of a process that was killed is ending."""
    deadline = time.monotonic() + DYING_SECONDS
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                yield f"{group}: {error.strerror}"
                return
            time.sleep(POLL_SECONDS)
        else:
            return


def _kill(tag: str) -> Iterator[str]:
    deadline = time.monotonic() + DYING_SECONDS
    while left := {pid for pid in processes(tag) if is_running(pid)}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            yield f"processes that do not die: {sorted(left)}"
            return
        time.sleep(POLL_SECONDS)


def _belongs(name: str, tag: str) -> bool:
    return find_tag(name) == tag if tag else bool(find_tag(name))


def _all_processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino


def _tried(*words: str, gone: object) -> list[str]:
    try:
        run(*words)
    except NetworkError as error:
        return [] if callable(gone) and gone() else [str(error)]
    return []


def _unescaped(text: str) -> str:
    """As /proc/mounts writes blanks: backslash and three octal digits."""
    return text.encode().decode("unicode_escape")
