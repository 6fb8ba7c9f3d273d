"""
Whether the names of next hops resolve on this machine.

One that does not today may do tomorrow, and an instance asks again at every attempt to connect: so it is a concern and
no error. The resolver may take its time over each name; together they have some seconds, and what is not answered by
then is not told of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from broker.control.concern import Diagnostic, of_route
from broker.control.rehearsal import Rehearsal
from broker.routing.address import NetworkAddress
from broker.routing.lint import Lint

if TYPE_CHECKING:
    from queue import SimpleQueue

SECONDS = 5.0  # for all names: one try of the usual resolver
NAMES_MAX = 200  # that are asked for
_THREADS = 16

Resolve = Callable[[str], object]


def _resolve(host: str) -> object:
    import socket  # noqa: PLC0415 - slow to import: see broker.cli.group

    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)


def unresolved(rehearsal: Rehearsal, *, resolve: Resolve = _resolve, seconds: float = SECONDS) -> list[Diagnostic]:
    """
    One concern for each name that does not resolve, at the first route that has it.

    Args:
        rehearsal: What the scripts of a configuration come to.
        resolve: Raises OSError for a name that does not; blocking.
        seconds: How long all of it may take.
    """
    first = named_hosts(rehearsal)
    problems = _ask(sorted(first)[:NAMES_MAX], resolve, seconds)
    found = []
    for host, problem in sorted(problems.items()):
        database, route = first[host]
        text = f"the name {host!r} of its address does not resolve here: {problem}"
        hint = "correct the name, or see to the resolver; until then what takes this route waits"
        at = (rehearsal, rehearsal.databases[database])
        found.append(of_route(Lint.NAME_UNRESOLVED, text, hint, at=at, route=route))
    return found


def named_hosts(rehearsal: Rehearsal) -> dict[str, tuple[str, str]]:
    """Each name that stands for a host in a live route, with the first database and route that has it."""
    found: dict[str, tuple[str, str]] = {}
    for database, played in rehearsal.databases.items():
        for route in played.routes.values():
            if route.is_live(rehearsal.now):
                for address in (route.address, route.mirror_address):
                    if isinstance(address, NetworkAddress) and not _is_number(address.host):
                        found.setdefault(address.host, (database, route.name))
    return found


def _ask(hosts: Iterable[str], resolve: Resolve, seconds: float) -> dict[str, str]:
    """What is wrong with each of them; threads that are still waiting end with the process."""
    import threading  # noqa: PLC0415 - as in `_resolve`
    from queue import Empty, SimpleQueue  # noqa: PLC0415

    asked: SimpleQueue[str] = SimpleQueue()
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()
    missing = 0
    for host in hosts:
        asked.put(host)
        missing += 1
    for _ in range(min(_THREADS, missing)):
        threading.Thread(target=_answer, args=(asked, answers, resolve), name="resolve", daemon=True).start()
    deadline, problems = time.monotonic() + seconds, {}
    for _ in range(missing):
        try:
            host, problem = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        if problem:
            problems[host] = problem
    return problems


def _answer(asked: SimpleQueue[str], answers: SimpleQueue[tuple[str, str]], resolve: Resolve) -> None:
    from queue import Empty  # noqa: PLC0415

    while True:
        try:
            host = asked.get_nowait()
        except Empty:
            return
        try:
            resolve(host)
        except (OSError, UnicodeError) as error:
            answers.put((host, getattr(error, "strerror", None) or str(error)))
        else:
            answers.put((host, ""))


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
