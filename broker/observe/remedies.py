"""
Remedies by cause: one sentence for each disposition of a frame and each number of an Error message.

For status, events, `broker why` and the pages of errors. The texts are in the catalogue of numbers, as `advice`; the
names of the case are filled in here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from broker.errors import MAY_NOT_CONNECT, NOT_TRUSTED
from broker.observe.message_catalogue import catalogue
from broker.observe.snapshot import DropSnapshot


@cache
def _advice() -> Mapping[str, str]:
    """By reason, and by number."""
    entries = [(key, entry) for key, entry in catalogue().items() if entry.advice]
    return {entry.reason or key: entry.advice for key, entry in entries}


# As `broker.security.grants` words them in reasons; a ] in a name is doubled.
_NAME = r"\[(?:[^\]]|\]\])*\]"
_MISSING = re.compile(rf"no (GRANT (?:SEND|CONNECT) ON \w+::{_NAME} TO {_NAME})")
_DENIED = re.compile(rf"DENY ((?:SEND|CONNECT) ON \w+::{_NAME}) TO ({_NAME})")


def statement_of(reason: str, where: str) -> str:
    """
    The statement to run, made of the permission that a reason names; empty when it names none.

    Args:
        reason: Of a refusal, as the instance that refused words it.
        where: The instance, as a sentence names it.
    """
    if missing := _MISSING.search(reason):
        return f"at {where}: USE [msdb]; {missing[1]};"
    if denied := _DENIED.search(reason):
        return f"at {where}: USE [msdb]; REVOKE {denied[1]} FROM {denied[2]};"
    return ""


def remedy_of(disposition: str, *, instance: str, service: str, table: str = "msdb", reason: str = "") -> str:
    """Return the remedy for frames that end by this disposition at this instance, for the `reason` that it words."""
    if statement := statement_of(reason, instance):
        return statement
    text = _advice().get(disposition, "see the page on dispositions: {instance} shows the reason in broker status")
    return _filled(text, instance=instance, service=service, table=table)


def remedy_of_drop(drop: DropSnapshot, instance: str) -> str:
    """Return the remedy for the last frame that was dropped for a reason."""
    return remedy_of(drop.disposition, instance=instance, service=drop.fields.to_service_name or "SERVICE")


def remedy_of_unreached(address: str, problem: str) -> str:
    """Return the remedy for a next hop that is not reached, for a reason that the instance here or there reports."""
    if MAY_NOT_CONNECT in problem:
        where = f"the instance at {address}" if problem.startswith("FATAL") else "this instance"
        general = f"in msdb of {where}: run the GRANT CONNECT that the reason names, or REVOKE the DENY"
        return statement_of(problem, where) or general
    if NOT_TRUSTED in problem:
        return (
            f"at the instance of {address}: add this instance's certificate to endpoint.peers, as partner import does"
        )
    return f"start the instance at {address}, open the way to it, or correct the route to it"


def remedy_of_error(code: int | None, *, service: str) -> str:
    """Return the remedy for a dialog that failed with this number; a positive one is an application's own."""
    end = "RECEIVE the Error message and END CONVERSATION here"
    if code is None:
        return end
    if code > 0:
        return f"the far application ended the dialog with its own error {code}: ask there; {end}"
    text = _advice().get(str(-code))
    return end if text is None else f"{_filled(text, service=service)}; {end}"


def _filled(text: str, **values: str) -> str:
    """Fill in a text. Names of peers and applications may have braces, so they are never used as a format."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
