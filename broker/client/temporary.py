"""
A file without a name, for bodies that are too large for memory.

It is like `tempfile.TemporaryFile`, whose module takes longer to import than all of sending and receiving.
"""

from __future__ import annotations

import errno
import os
from typing import BinaryIO

_WITHOUT_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR}  # of a file system that makes no nameless files


def temporary_directory() -> str:
    """The directory of temporary files: the one that TMPDIR names, or /tmp."""
    return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - nothing in it is opened by a name that can be guessed


def temporary_file() -> BinaryIO:
    """
    A file without a name in that directory, for its owner alone, to write and to read.

    Raises:
        OSError: it cannot be made.
    """
    directory, flags = temporary_directory(), os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _WITHOUT_NAMELESS:
            raise
        name = f"{directory}/broker-{os.urandom(16).hex()}"
        descriptor = os.open(name, flags | os.O_CREAT, 0o600)
        os.unlink(name)  # noqa: PTH108 - pathlib takes longer to import than this module
    return os.fdopen(descriptor, "w+b")
