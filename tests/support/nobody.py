"""The user who may nothing: for tests of rights, which count for nothing where root runs them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import broker.catalog.check
import broker.cli.serve
import broker.daemon.instance  # noqa: F401 - nobody may not even import, where Python is root's own

NOBODY = 65534


@contextmanager
def as_nobody(reach: Path) -> Iterator[None]:
    """Who is root is nobody for a while, who may pass down to `reach`; anybody else is refused enough as it is."""
    if os.geteuid():
        yield
        return
    for directory in (reach, *reach.parents):
        if directory.stat().st_mode & 0o005 != 0o005:
            directory.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
