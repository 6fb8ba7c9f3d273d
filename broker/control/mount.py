"""
Whether what is to be written would land beside the disk that it belongs on.

Where a disk is not mounted, its mount point is an empty directory like any other: an instance would begin there anew,
with another identity and without its messages. `/etc/fstab` names what should be mounted; whatever is mounted by other
means (units of systemd, a container's volumes) has to be waited for by those, as with `RequiresMountsFor=`.

Source: fstab(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FSTAB, MOUNTINFO = Path("/etc/fstab"), Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def mount_problem(path: Path, *, fstab: Path = FSTAB, mountinfo: Path = MOUNTINFO) -> str | None:
    """
    What is wrong where a path belongs on a disk that is not there; None where nothing is, or nobody can tell.

    Args:
        path: A file or directory, which need not exist.
        fstab: What should be mounted.
        mountinfo: What is.
    """
    real = Path(os.path.realpath(path))
    points = [point for point in _points(fstab, column=1) if point != Path("/") and real.is_relative_to(point)]
    mounted = set(_points(mountinfo, column=4)) if points else set()
    missing = [point for point in points if point not in mounted]
    if not missing or not mounted:
        return None
    return f'"{missing[0]}" is not mounted, as {fstab} says it should be, and "{path}" is below it'


def _points(table: Path, *, column: int) -> list[Path]:
    """The mount points in a table of the system; none when it cannot be read."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    names = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), row[column]) for row in rows if len(row) > column)
    return [Path(name) for name in names if name.startswith("/")]
