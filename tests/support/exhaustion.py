"""A process that has run out of what it needs."""

import errno
import os
from typing import NoReturn


def no_descriptors(*_: object) -> NoReturn:
    """In place of a call that opens something."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
