"""What every test may rely on: daemons start fast, and no logger remembers the configuration of another test."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from structlog.testing import capture_logs

from broker.observe import logs
from broker.observe.logs import LogWriter
from examples.demo.topology import Daemon
from tests.support.forked import FORK_SERVER
from tests.support.tiers import is_long

HERE = Path(__file__).parent

# No test asserts how long something takes: the machine may be doing something else.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests are marked."""
    for item in items:
        if is_long(str(item.path.relative_to(HERE)), item.name):
            item.add_marker("long")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers are given the tests of a file together, so that what they share is made once."""
    from tests.support.scheduling import Scheduling  # pytest-xdist may be left out of a run

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def _daemons_are_forked() -> Iterator[None]:
    """Hundreds of daemons are started, and each would import the same for more than a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Daemon, "starter", staticmethod(FORK_SERVER.start))
        yield


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
    root = logging.getLogger()
    level = root.level
    yield
    if isinstance(logs._State.output, LogWriter):
        logs.close_logging()
    logs._State.output.stream = sys.stderr
    logs._State.processors.clear()
    logs.set_log_level("info")
    root.setLevel(level)
    for handler in root.handlers[:]:
        if type(handler).__module__ == logs.__name__:
            root.removeHandler(handler)
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(name="logs")
def captured_logs() -> Iterator[list[Any]]:
    """What is logged during the test."""
    with capture_logs() as entries:
        yield entries
