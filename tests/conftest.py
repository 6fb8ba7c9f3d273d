"""What every test may rely on: no logger remembers the configuration of another test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="session")
def _loggers_are_not_kept() -> Iterator[None]:
    """
    The daemon lets structlog keep the logger a module made first, which is fast; a test must not inherit it.

    A logger kept under one configuration would write past `capture_logs` once another configuration stands.
    """
    with pytest.MonkeyPatch.context() as patch:
        configure = structlog.configure

        def without_keeping(**options: object) -> None:
            configure(**{**options, "cache_logger_on_first_use": False})  # type: ignore[arg-type]

        patch.setattr(structlog, "configure", without_keeping)
        yield


@pytest.fixture(autouse=True)
def _logging_is_as_before() -> Iterator[None]:
    """A command that ran inside of a test configured logging for its process; the next test starts without."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
