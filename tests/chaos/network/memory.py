"""
How much memory the processes of one host may take together: a control group, version 1, below the harness's own.

Pages of files count as well: those of a tmpfs until they are removed, others only until they are written. Beyond the
limit the kernel first gives up the latter, and then kills a process of the group.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.network.impairment import ImpossibleError
from tests.chaos.network.tag import find_tag

ROOT = Path("/sys/fs/cgroup/memory")
UNLIMITED = -1
LEAST_UNLIMITED = 1 << 60  # bytes; what the kernel says of a group without a limit is above


def groups(tag: str) -> list[Path]:
    """The control groups of a tag, of every one with ""."""
    if not ROOT.is_dir():
        return []
    found = (path for path in ROOT.rglob("broker-hosts-*") if path.is_dir())
    return sorted(path for path in found if (find_tag(path.name) == tag if tag else find_tag(path.name)))


class Memory:
    """The memory of one host."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: Of the control group; begins with the tag of the network.

        Raises:
            ImpossibleError: there is no memory controller of version 1 that this process may write.
        """
        self._group = _own() / name
        try:
            self._group.mkdir()
        except OSError as error:
            raise ImpossibleError(f"no control group for memory: {error}") from error

    @property
    def words(self) -> tuple[str, ...]:
        """Words before a command whose process belongs to the host."""
        return ("sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self._group / "cgroup.procs"))

    def limit(self, count: int | None) -> None:
        """
        At most so many bytes from now on, None = as many as there are.

        Raises:
            OSError: EBUSY, more is in use and cannot be given up.
        """
        (self._group / "memory.limit_in_bytes").write_text(str(UNLIMITED if count is None else count), encoding="ascii")

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit now."""
        return int((self._group / "memory.limit_in_bytes").read_text(encoding="ascii")) < LEAST_UNLIMITED

    @property
    def used(self) -> int:
        """Bytes that the host has now, pages of files among them."""
        return int((self._group / "memory.usage_in_bytes").read_text(encoding="ascii"))

    @property
    def kills(self) -> int:
        """How many of its processes the kernel killed for want of memory."""
        found = re.search(
            r"^oom_kill (\d+)$", (self._group / "memory.oom_control").read_text(encoding="ascii"), re.MULTILINE
        )
        assert found
        return int(found.group(1))


def _own() -> Path:
    """The group of this process; the root where it is not to be seen, as in a container."""
    found = re.search(r"^\d+:memory:/(.*)$", Path("/proc/self/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    own = ROOT / found.group(1) if found else ROOT
    return own if own.is_dir() else ROOT
