"""
Exit codes, and how an error becomes one.

The table of all codes is in the help of the program; here are those that the commands give by name. 1 is any other
error, 2 is wrong usage, told by click.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import click

from broker.errors import BrokerError, DaemonUnreachableError

NOT_FOUND, UNREACHABLE, NOT_PERMITTED, HARMFUL, TIMED_OUT, EX_TEMPFAIL, EX_CONFIG = 3, 4, 5, 6, 7, 75, 78
_NOT_PERMITTED_STATUSES = frozenset({401, 403})
_NOT_FOUND_NUMBERS = frozenset({208, 911, 8426, 15151})


def with_exit_code(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what the package raises into one sentence on standard error and the documented exit code."""

    @wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BrokerError as error:
            fail(str(error), exit_code(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone; click ends quietly
            _give_up_output()
            fail(str(error), 1)
        except Exception as error:
            told = _of_file(error)
            if told is None:
                raise  # a bug
            fail(told, 1)

    return wrapper


def _give_up_output() -> None:
    """Drop what standard output did not take, else Python tries again at its end and exits with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: BrokerError) -> int:
    """The exit code of an error: by what it is, or by its number, also when a daemon told it."""
    # See the docstring of broker.cli.group.
    from broker.admin.client import ProblemError, SocketNotPermittedError  # noqa: PLC0415

    if isinstance(error, DaemonUnreachableError):
        return UNREACHABLE
    if isinstance(error, SocketNotPermittedError):
        return NOT_PERMITTED
    number = getattr(error, "number", 0)
    if isinstance(error, ProblemError):
        if error.status in _NOT_PERMITTED_STATUSES:
            return NOT_PERMITTED
        number = error.problem.get("number", 0)
    return NOT_FOUND if number in _NOT_FOUND_NUMBERS else 1


def _of_file(error: Exception) -> str | None:
    """What SQLite says of a database file that cannot be used, and what to do; None for any other error."""
    if "sqlite3" not in sys.modules:  # so none of its errors; importing it takes a while
        return None
    import sqlite3  # noqa: PLC0415

    from broker.store.fault import is_about_file, sentence  # noqa: PLC0415

    return sentence(error) if isinstance(error, sqlite3.DatabaseError) and is_about_file(error) else None


def fail(text: str, code: int) -> NoReturn:
    """End the program with a sentence on standard error."""
    click.echo(text, err=True)
    sys.exit(code)
