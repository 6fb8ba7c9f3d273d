"""
A small file of JSON, replaced as a whole: whoever reads it finds what was written before, or what is written now.

Beside databases there are two kinds: what an instance has seen of its files (`fence`), and who is the principal of a
file (`role_file`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.errors import StoreUnavailableError


def write_record(file: Path, values: Mapping[str, Any]) -> None:
    """
    Put these values in place of what the file says; it is on the disk before this returns.

    Raises:
        StoreUnavailableError: it cannot be written.
    """
    beside = file.with_name(f"{file.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as stream:
            json.dump(values, stream, indent=2, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreUnavailableError(str(file), error.strerror or str(error)) from error
