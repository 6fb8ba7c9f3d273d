"""
The end of a network: its processes, mounts, control groups and namespaces, found by their tag in the system itself.

A tag names the process that made the network by its number and the instant at which it started (`/proc/PID/stat`, field
22): a number alone comes back some day. `remove` is called by the switch when its network closes or its harness dies,
and `remove_dead` by the next network for what even the switch has left behind.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from tests.chaos.network.impairment import NetworkError

SECONDS = 30.0


def run(*words: str, lines: list[str] | None = None) -> None:
    """
    Run a command; `lines` are its standard input.

    Raises:
        NetworkError: it is not there, or says that it failed; with its last words.
    """
    told = None if lines is None else "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(words, input=told, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        raise NetworkError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip() or done.returncode}")


PATTERN = re.compile(r"broker-hosts-(\d+)-(\d+)-\d+")
_numbers = count(1)


def new_tag() -> str:
    """A tag of this process that no other network has."""
    return f"broker-hosts-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"


def find_tag(text: str) -> str:
    """The tag that a name begins with; "" when it has none."""
    found = PATTERN.match(text)
    return found.group() if found else ""


def is_alive(tag: str) -> bool:
    """Whether the process that made it still runs."""
    found = PATTERN.fullmatch(tag)
    assert found, tag
    return _started(int(found.group(1))) == int(found.group(2))


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the system did; None when there is none, or only what is left of it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


NAMESPACES = Path("/run/netns")
CONTROL_GROUPS = Path("/sys/fs/cgroup/memory")
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
        troubles += _tried("umount", "--lazy", str(directory), is_left=directory.is_mount)
    for group in groups(tag):
        troubles += emptied(group)
    for path in namespaces(tag):
        troubles += _tried("ip", "netns", "delete", path.name, is_left=path.exists)
    if troubles:
        raise NetworkError("; ".join(troubles))


def namespaces(tag: str) -> list[Path]:
    """Files of the network namespaces of a tag, of every one with ""."""
    found = NAMESPACES.iterdir() if NAMESPACES.is_dir() else ()
    return sorted(path for path in found if _belongs(path.name, tag))


def mounts(tag: str) -> list[tuple[str, Path]]:
    """Source and directory of the mounts of a tag, of every one with ""."""
    pairs = [line.split()[:2] for line in MOUNTS.read_text(encoding="utf-8").splitlines()]
    # Blanks are written as backslash and three octal digits.
    unescaped = [(source, directory.encode().decode("unicode_escape")) for source, directory in pairs]
    return [(source, Path(directory)) for source, directory in unescaped if _belongs(source, tag)]


def groups(tag: str) -> list[Path]:
    """The control groups of a tag, of every one with ""."""
    if not CONTROL_GROUPS.is_dir():
        return []
    found = (path for path in CONTROL_GROUPS.rglob("broker-hosts-*") if path.is_dir())
    return sorted(path for path in found if _belongs(path.name, tag))


def processes(tag: str) -> set[int]:
    """Who runs in the namespaces of a tag, but for this process; control groups are entered from there alone."""
    ids = {_identity(path) for path in namespaces(tag)} - {None}
    running = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    return {pid for pid in running - {os.getpid()} if _identity(Path(f"/proc/{pid}/ns/net")) in ids}


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
    while left := {pid for pid in processes(tag) if _started(pid) is not None}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            yield f"processes that do not die: {sorted(left)}"
            return
        time.sleep(POLL_SECONDS)


def _belongs(name: str, tag: str) -> bool:
    return find_tag(name) == tag if tag else bool(find_tag(name))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino


def _tried(*words: str, is_left: Callable[[], bool]) -> Iterator[str]:
    try:
        run(*words)
    except NetworkError as error:
        if is_left():
            yield str(error)
