"""
Which script files a list of paths and patterns means, in the order in which they are read.

Patterns in the order given, the files of one pattern in the order of their names, each file once. A plain path counts
as a pattern that only it matches.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def script_files(patterns: Iterable[str]) -> list[Path]:
    """The files that exist; patterns are absolute, as `load_settings` makes them."""
    return list(dict.fromkeys(path for pattern in patterns for path in _matches(pattern)))


def closed_directory(pattern: str) -> str | None:
    """
    A directory that a pattern leads into and that this user may not look into, so that nobody knows what it matches.

    Cost: one look at each directory that the pattern leads through.
    """
    parts = Path(pattern).parts
    for end in range(1, len(parts)):
        if glob.has_magic(parts[end]):
            above = os.path.join(*parts[:end])  # noqa: PTH118 - a pattern, no path
            found = [*glob.glob(above, recursive=True), *_beneath(above, parts[end])] or [_plain(above)]  # noqa: PTH207
            closed = next((one for one in found if _is_closed(one)), None)
            if closed is not None:
                return closed
    return None


def _beneath(above: str, part: str) -> list[str]:
    """What `**` goes into."""
    return glob.glob(os.path.join(above, part, ""), recursive=True) if part == "**" else []  # noqa: PTH118, PTH207


def _plain(pattern: str) -> str:
    """The path that a pattern without any magic is, as glob.escape has written it."""
    return pattern.replace("[*]", "*").replace("[?]", "?").replace("[[]", "[")


def _is_closed(directory: str) -> bool:
    try:
        mode = os.stat(directory).st_mode  # noqa: PTH116 - as above
    except PermissionError:
        return True
    except OSError:
        return False
    return stat.S_ISDIR(mode) and not os.access(directory, os.R_OK | os.X_OK, effective_ids=True)


def _matches(pattern: str) -> list[Path]:
    found = (Path(name) for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207  # absolute patterns
    return [path for path in found if os.path.isfile(path)]  # noqa: PTH113 - the other raises what the system refuses
