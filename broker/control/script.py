"""
Which script files a list of paths and patterns means, in the order in which they are read.

Patterns in the order given, the files of one pattern in the order of their names, each file once. A plain path counts
as a pattern that only it matches.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path


def script_files(patterns: Iterable[str]) -> list[Path]:
    """The files that exist; patterns are absolute, as `load_settings` makes them."""
    return list(dict.fromkeys(path for pattern in patterns for path in _matches(pattern)))


def _matches(pattern: str) -> list[Path]:
    found = (Path(name) for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207  # absolute patterns
    return [path for path in found if os.path.isfile(path)]  # noqa: PTH113 - the other raises what the system refuses
