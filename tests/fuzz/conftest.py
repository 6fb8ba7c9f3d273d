"""What the targets have started ends with the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz import door


@pytest.fixture(scope="package", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    door.close()
