"""The exit codes of all commands but `health`, and the mapping from errors to them."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import click

from broker.admin.client import ProblemError, SocketNotPermittedError
from broker.errors import BrokerError, DaemonUnreachableError
from broker.store.sqlite.transaction import is_about_file, sentence


class ExitCode(IntEnum):
    """Exit codes of commands other than 0, which is success."""

    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4  # no daemon answers
    NOT_PERMITTED = 5
    HARMFUL = 6  # refused, because it would do harm
    TIMED_OUT = 7
    TEMPORARY = 75  # of `serve` and `run`: port taken, store locked; EX_TEMPFAIL of sysexits.h
    CONFIGURATION = 78  # of `serve`: bad configuration; EX_CONFIG


_NOT_FOUND_NUMBERS = frozenset({208, 911, 8426, 15151})


@contextmanager
def exit_codes() -> Iterator[None]:
    """End the program with one sentence on standard error and the documented exit code when the package raises."""
    try:
        yield
    except BrokerError as error:
        fail(str(error), exit_code(error))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader has gone; click ends quietly
        _drop_output()
        fail(str(error), ExitCode.ERROR)
    except sqlite3.DatabaseError as error:
        if not is_about_file(error):
            raise  # a bug
        fail(sentence(error), ExitCode.ERROR)


def exit_code(error: BrokerError) -> ExitCode:
    """The exit code of an error: by what it is, or by its number, also when a daemon reported it."""
    if isinstance(error, DaemonUnreachableError):
        return ExitCode.UNREACHABLE
    status, answer = (error.status, error.problem) if isinstance(error, ProblemError) else (0, {})
    if isinstance(error, SocketNotPermittedError) or status in {401, 403}:
        return ExitCode.NOT_PERMITTED
    number = answer.get("number", 0) or getattr(error, "number", 0)
    return ExitCode.NOT_FOUND if number in _NOT_FOUND_NUMBERS else ExitCode.ERROR


def fail(text: str, code: int) -> NoReturn:
    """End the program with a sentence on standard error."""
    click.echo(text, err=True)
    sys.exit(code)


def _drop_output() -> None:
    """Drop unwritten standard output: Python would try to write it at exit, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
