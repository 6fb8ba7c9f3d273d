"""
Health of an instance: whether all is well, the problems, and the remedies, in sentences for an operator in a hurry.

`judge` is a pure function of a status and of what an event adds to it. What is not in the status is not judged. Names
and texts of peers are in the sentences as they are, of bounded length: the program that shows them has to escape them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import structs

from broker.catalog.unscripted import IMPORT_AGAIN
from broker.config.units import counted
from broker.dialog.status import REFUSED
from broker.errors import MAY_NOT_CONNECT, NO_HELLO, NOTHING_STORED, UNTRUSTED
from broker.flow import Disposition
from broker.net.link import CURABLE
from broker.net.peer_table import BACKOFF_CAP
from broker.observe.drops import DEFINITIONS_CHANGED, DROPPED_SECONDS
from broker.observe.message_catalogue import queue_on, remedy_of_unreached, statement_of
from broker.observe.status import (
    HealthFinding,
    HealthReport,
    Level,
    Status,
    TransportWarning,
    WarningKind,
    WriteLockStatus,
)
from broker.routing.decide import UNKNOWN_HERE

FINDINGS_MAX = 20
KEYS_MAX = 10  # settings that wait for a restart, by name
NAME_MAX = 200  # characters of a name that are shown
FIRST_MAX = 300  # characters of the first finding in the sentence about the whole
TEXT_MAX = 800  # characters of one finding
POOL_FULL, POOL_FILLING = 0.9, 0.7  # parts of the pool that are taken
LATE_SECONDS = 0.25  # by which the event loop was late
_SENT_AGAIN = "; each is sent again until it arrives or its dialog ends: without another one for 90 s, this is over"
REFUSED_SECONDS = 120.0  # for which a queue that is off has dialogs waiting for it: they try again each minute
HELD_UP_SECONDS = 120.0  # after the last wait for a write transaction, for which a series of them is a finding
UNREAD_SECONDS = 300.0  # after which a message that no reader receives is a finding, as for the alert BrokerQueueOld
BLOCKED_SECONDS = 10.0  # after which a dialog whose messages do not get through is a finding
WAITING_SECONDS = 60.0  # after which a message that is not acknowledged is a finding
HARMLESS_DROPS = frozenset({"already held", "duplicate", "shut down", "asking for route", "conversation ended"})
KEPT_DROPS = frozenset(  # what is sent again, so that it arrives once the cause is over
    {Disposition.EXPIRED_HERE, Disposition.ASKING_FOR_ROUTE, Disposition.ALREADY_HELD, Disposition.POOL_LIMIT}
    | {Disposition.FRAME_TOO_LARGE, Disposition.QUEUE_DISABLED, Disposition.STORE_BUSY, Disposition.STORE_FAILED}
    | {Disposition.SECURITY_UNRESOLVED}
    | CURABLE - {Disposition.NOT_PERMITTED}  # which fails a dialog that begins, where the target's database says it
)
OF_IMPORTS = UNKNOWN_HERE | {Disposition.NOT_PERMITTED}  # what a database refuses that lacks partner files
_UNTRUSTED = re.compile(rf"{UNTRUSTED} \((.+?), \d{{4}}-.*: put that certificate into")  # as a label begins
_NO_PEER = re.compile(rf"above max_frame|malformed frame|looks like (?:HTTP|SSH|the answer)|{NO_HELLO}")
NO_PEER = (
    "nothing, unless something of yours is there: then correct the port that it calls, or a proxy between;"
    " this notice ends a minute after the last such connection, or when an instance connects from there"
)
RENEW = "put renewed files in the place of the old ones where it is used: within seconds they are, without a restart"
SHORT_TRANSACTIONS = "keep transactions short, and wait for nothing inside them"
_MAY_NOT_ARRIVE = frozenset({"next hop", "connection", "drops", "dialog", "database"})
_OPERATIONAL, _PRINCIPAL_ONLY = "OPERATIONAL", "PRINCIPAL_ONLY"
_WEIGHT = {level: weight for weight, level in enumerate(Level)}
_AILING = {"stalled": Level.BAD, "down": Level.BAD, "blocked": Level.NOTICE}  # by what a connection really does
_TRIED_AGAIN = "remove that cause: the store is tried again by itself"
_FILES = "correct the files: they are read again by themselves; the previous ones are in use until a restart"
_TRANSPORT: Mapping[str, tuple[Level, str]] = {
    WarningKind.FILES_NOT_IN_USE: (Level.BAD, _FILES),
    WarningKind.PERMISSIONS: (Level.BAD, ""),
    WarningKind.CLOCK: (Level.BAD, "set the clock of this machine"),
    WarningKind.EXPIRED: (Level.BAD, RENEW),
    WarningKind.EXPIRES: (Level.NOTICE, RENEW),
}
DropKey = tuple[str, str | None]
"""A reason and a database."""


def judge(
    status: Status, *, loop_lag_s: float | None = None, drop_rates: Mapping[DropKey, float | None] | None = None
) -> HealthReport:
    """
    Judge whether all is well.

    Args:
        status: Of an instance.
        loop_lag_s: By how much its event loop was late at worst lately.
        drop_rates: Frames a second that are dropped.
    """
    every, told = list(_findings(status, loop_lag_s or 0.0, drop_rates or {})), set[str]()
    for one in every:  # peers that were refused are last: what mends several of them is said once
        if one.about == "connection" and one.do and one.do in told:
            every = [other for other in every if other is not one]
        told.add(one.do)
    found = sorted(every, key=lambda one: -_WEIGHT[one.level])
    return HealthReport(
        found[0].level if found else Level.GOOD,
        _sentence(found, status),
        [
            structs.replace(one, what=shorten(one.what, TEXT_MAX), do=shorten(one.do, TEXT_MAX))
            for one in found[:FINDINGS_MAX]
        ],
        max(0, len(found) - FINDINGS_MAX),
    )


def shorten(text: str, most: int = NAME_MAX) -> str:
    """Cut a text to at most so many characters; a text that was longer ends with its full length."""
    if len(text) <= most:
        return text
    end = f"… ({len(text):,} characters)"
    return text[: most - len(end)] + end


def failure_of_store(problem: str) -> tuple[str, str]:
    """Split what a failed store says into the problem and the remedy."""
    what, is_lost, remedy = problem.partition(f"{NOTHING_STORED}: ")
    return (what + NOTHING_STORED, remedy) if is_lost else (what, _TRIED_AGAIN)


def _findings(status: Status, loop_lag_s: float, drop_rates: Mapping[DropKey, float | None]) -> Iterator[HealthFinding]:
    """Yield all problems, in the order in which an operator would check them."""
    transport = list(_transport(status))
    yield from _instance(status, loop_lag_s)
    yield from (one for one in transport if one.level is Level.BAD)  # no peer can connect, so all else may follow
    yield from _ledgers(status)
    yield from _stores(status)
    yield from _next_hops(status)
    yield from _connections(status)
    yield from _mirrors(status)
    yield from _pool(status)
    yield from _drops(status, drop_rates)
    yield from _queues(status)
    yield from (one for one in transport if one.level is not Level.BAD)


def _sentence(found: list[HealthFinding], status: Status) -> str:
    bad = [one for one in found if one.level is Level.BAD]
    if bad:
        others = f", and {counted(len(bad) - 1, 'more problem')}" if len(bad) > 1 else ""
        return f"Something is wrong: {shorten(bad[0].what, FIRST_MAX)}{others}"
    held = status.forwarding.held
    dialogs = sum(count for where, (count, _) in _blocked(status, 0.0).items() if where in status.addresses)
    waits = f"{_waiting(held, 'frame')} for a next hop" if held else "nothing waits for a next hop"
    waits = f"{_waiting(dialogs, 'dialog')} for a next hop" if dialogs and not held else waits
    untried = sum(one.health == "untried" and not one.problem and not one.held for one in status.addresses.values())
    unknown = f", {counted(untried, 'next hop')} not dialled yet" if untried else ""
    facts = f"{counted(len(status.connections), 'connection')}, {waits}{unknown}"
    if not found:
        return f"All is well: {facts}"
    if stopped := [one for one in found if one.about in _MAY_NOT_ARRIVE and not one.do.startswith("nothing")]:
        others = f", and {counted(len(stopped) - 1, 'more problem')}" if len(stopped) > 1 else ""
        return f"Something may not arrive ({facts}): {shorten(stopped[0].what, FIRST_MAX)}{others}"
    things = "one thing is" if len(found) == 1 else f"{len(found)} things are"
    return f"It works ({facts}), and {things} worth knowing: {shorten(found[0].what, FIRST_MAX)}"


def _waiting(number: int, noun: str) -> str:
    return f"{counted(number, noun)} wait{'s' if number == 1 else ''}"


def _ago(seconds: float | None) -> str:
    """When something of the past happened last, as the end of a sentence."""
    return "" if seconds is None else f", {seconds:,.0f} s ago"


def _instance(status: Status, loop_lag_s: float) -> Iterator[HealthFinding]:
    if status.draining is not None:
        yield HealthFinding(Level.NOTICE, "instance", f"the instance leaves: {status.draining.sentence}")
    elif not status.ready and not _has_cause(status):
        yield HealthFinding(Level.BAD, "instance", "the instance is not ready: it starts or stops", "see its log")
    if loop_lag_s > LATE_SECONDS:
        what = f"the event loop was {loop_lag_s * 1000:,.0f} ms late within the last 15 s"
        yield HealthFinding(Level.NOTICE, "loop", what, "see whether the machine is short of processor time")
    for task in status.tasks:
        if task.problem:
            what = f"a part of the program, {task.name}, {task.problem}"
            yield HealthFinding(Level.BAD, "task", what, "see the log of the instance; please report it")
    if status.reload.problem:
        first = status.reload.problem.splitlines()[0]  # an excerpt follows where the file has a mistake
        what = f"the last reload of the configuration has failed, and the one before is in force: {first}"
        do = "correct it, and run broker reload; with --dry-run it shows everything that is wrong, and where"
        yield HealthFinding(Level.BAD, "configuration", what, do)
    waiting = status.reload.waiting
    if waiting:
        more = f" and {len(waiting) - KEYS_MAX} more" if len(waiting) > KEYS_MAX else ""
        count = "a setting waits" if len(waiting) == 1 else f"{len(waiting)} settings wait"
        what = f"{count} for a restart to hold: {', '.join(waiting[:KEYS_MAX])}{more}"
        yield HealthFinding(Level.NOTICE, "configuration", what, "restart the instance when it suits")


def _has_cause(status: Status) -> bool:
    """Whether another finding may say why the instance is not ready."""
    causes = [status.room_problem, *(one.problem for one in status.databases.values())]
    return any(causes) or any(one.kind == WarningKind.EXPIRED for one in status.transport.notices)


def _ledgers(status: Status) -> Iterator[HealthFinding]:
    do = "this is a fault of the program: please report it, with the log"
    if status.forwarding.unaccounted:
        what = f"{status.forwarding.unaccounted:,} frames are unaccounted for"
        yield HealthFinding(Level.BAD, "ledger", what, do)
    for name, database in status.databases.items():
        if database.ledger is not None and database.ledger.unaccounted:
            what = f"{counted(database.ledger.unaccounted, 'message')} of the database {name} unaccounted for"
            yield HealthFinding(Level.BAD, "ledger", what, do)


def _stores(status: Status) -> Iterator[HealthFinding]:
    if status.room_problem:
        do = "free space: until then changes are refused, and databases on that disk store nothing"
        yield HealthFinding(Level.BAD, "disk", status.room_problem, do)
    if status.audit_problem:
        do = "put the file right; this goes with the next change that can be written, such as broker reload"
        yield HealthFinding(Level.BAD, "audit", status.audit_problem, do)
    for name, database in status.databases.items():
        if database.problem:
            problem, do = failure_of_store(database.problem)
            what = f"the store of {name} has failed: {problem}"
            yield HealthFinding(Level.BAD, "database", what, "" if status.room_problem else do)
        elif database.waiting_messages is None:
            what = f"the file of {name} is not read yet: its messages are not known"
            yield HealthFinding(Level.NOTICE, "file", what)  # of which nothing says that it does not arrive
        if database.replaced:
            what = f"the database {name} is a new, empty one: {database.replaced}"
            do = f"put the file or a backup back; to accept the new one: broker database keep {name}"
            yield HealthFinding(Level.BAD, "database", what, do)
        yield from _write_lock(name, database.write_lock)
        if database.quarantined:
            what = f"{counted(database.quarantined, 'dialog')} of {name} in quarantine: a reader fails there"
            yield HealthFinding(Level.BAD, "database", what, f"broker quarantine list -d {name}")
    for notice in status.transport.notices:
        if notice.kind == WarningKind.IMPORTS_LOST:
            yield HealthFinding(Level.NOTICE, "database", notice.text, IMPORT_AGAIN)
    for name, role in status.mirroring.items():
        if role.source != "off" and role.problem:
            what = f"the mirrored database {name}: {role.problem}"
            yield HealthFinding(Level.BAD, "mirror", what, "see the role at the other partner, and the log here")
    if status.journal is not None and status.journal.problem:
        what = f"the journal is not written: {status.journal.problem}"
        yield HealthFinding(Level.BAD, "journal", what, "see the disk")


def _write_lock(name: str, lock: WriteLockStatus) -> Iterator[HealthFinding]:
    who = f"process {lock.pid} ({lock.process})" if lock.pid else "another process"
    if lock.waiting_s is not None:
        often = f", one of {lock.recent} such within ten minutes" if lock.recent > 1 else ""
        what = (
            f"{who} has kept a write transaction of {name} open for {lock.waiting_s:,.0f} s{often}: until it ends"
            " nothing is stored or acknowledged"
        )
        yield HealthFinding(Level.BAD, "database", what, f"end that transaction; {SHORT_TRANSACTIONS}")
    elif lock.recent > 1 and (lock.last_s or 0.0) < HELD_UP_SECONDS:
        what = (
            f"write transactions of others have held up {name} {lock.recent} times within ten minutes, for"
            f" {lock.recent_s:,.0f} s in all, last {who}{_ago(lock.last_s)}"
        )
        last = f" (the last was {who})" if lock.pid else ""
        do = f"correct the program that kept them open{last}: {SHORT_TRANSACTIONS}"
        yield HealthFinding(Level.NOTICE, "file", what, do)  # nothing waits for it now


def _next_hops(status: Status) -> Iterator[HealthFinding]:
    waiting = {one.next_hop: one.held for one in status.waiting}
    blocked, at_all = _blocked(status), _blocked(status, 0.0)
    for address, known in status.addresses.items():
        if not known.problem:
            continue
        held = waiting.get(address, known.held)
        dialogs, oldest_s = at_all.get(address, (0, 0.0))
        if held and not dialogs and not known.is_named:
            what = f"{_waiting(held, 'frame')} for {address}, to which no route leads now"
            do = "nothing: they end when their time is over, and what was not acknowledged is sent again another way"
            yield HealthFinding(Level.NOTICE, "next hop", what, do)
            continue
        wait = f", and {_waiting(held, 'frame')} for it" if held else ""
        wait += f", and {_waiting(dialogs, 'dialog')} for it, the first for {oldest_s:,.0f} s" if dialogs else ""
        do = remedy_of_unreached(address, known.problem)
        what = f"{address} is not reached: {known.problem.removesuffix(f': {do}')}{wait}"
        if MAY_NOT_CONNECT in known.problem:
            do = f"if that is not done yet (it is dialled again within {BACKOFF_CAP:g} s), {do}"
        do = f"{do.rstrip('.;')}; broker why lists the dialogs, each with what to do" if dialogs else do
        yield HealthFinding(Level.BAD if held or dialogs else Level.NOTICE, "next hop", what, do)
    for where, (dialogs, oldest_s) in blocked.items():
        if where in status.addresses:
            continue
        what = f"{_waiting(dialogs, 'dialog')}, the first for {oldest_s:,.0f} s: {where}"
        do = "broker why lists them, each with what to do"
        if REFUSED in where:
            do += "; broker why ID says whether that is over; broker dialogs retry sends it again at once"
        yield HealthFinding(Level.BAD, "dialog", what, do)


def _blocked(status: Status, longer_than: float = BLOCKED_SECONDS) -> dict[str, tuple[int, float]]:
    """The dialogs that wait for longer than so many seconds, by what for; how many, and how long the first does."""
    found: dict[str, tuple[int, float]] = {}
    for database in status.databases.values():
        for one in database.blocked:
            if one.oldest_s >= longer_than:
                dialogs, oldest_s = found.get(one.next_hop, (0, 0.0))
                found[one.next_hop] = dialogs + one.dialogs, max(oldest_s, one.oldest_s)
    return found


def _connections(status: Status) -> Iterator[HealthFinding]:
    known = (one for one in status.connections if one.name or one.direction != "in")  # not before its HELLO
    for one in islice((one for one in known if one.flow in _AILING), FINDINGS_MAX):
        why = f": {one.flow_reason}" if one.flow_reason else ""
        what = f"the connection to {one.name or one.address} is {one.flow}{why}"
        do = "see whether that instance works and takes messages"
        yield HealthFinding(_AILING[one.flow], "connection", what, do)


def _mirrors(status: Status) -> Iterator[HealthFinding]:
    for one in status.mirrored_routes:
        if one.state == _OPERATIONAL and not one.alarm:
            continue
        level = Level.NOTICE if one.state == _PRINCIPAL_ONLY and not one.alarm else Level.BAD
        alarm = f": {one.alarm}" if one.alarm else ""
        what = f"the mirrored route {one.route} is {one.state.lower().replace('_', ' ')}{alarm}"
        do = "start the partner that is gone; sys.dm_broker_mirrors shows what both say"
        yield HealthFinding(level, "mirror", what, do)


def _pool(status: Status) -> Iterator[HealthFinding]:
    forwarding = status.forwarding
    part = forwarding.pool_bytes / forwarding.pool_limit_bytes if forwarding.pool_limit_bytes else 0.0
    if part >= POOL_FILLING:
        what = f"the memory for frames on their way is {part:.0%} full"
        do = (
            "check which next hop is slow or gone in the list of waiting frames, or raise endpoint.message_forward_size"
        )
        yield HealthFinding(Level.BAD if part >= POOL_FULL else Level.NOTICE, "pool", what, do)


def _drops(status: Status, rates: Mapping[DropKey, float | None]) -> Iterator[HealthFinding]:
    off = {
        name
        for name, database in status.databases.items()
        if not all(queue.is_receive_enabled for queue in database.queues or ())
    }
    lacks_imports = any(one.kind == WarningKind.IMPORTS_LOST for one in status.transport.notices)
    for drop in status.drops or ():
        rate = rates.get((drop.reason, drop.database))
        is_recent = bool(rate) or (drop.last_s is not None and drop.last_s < DROPPED_SECONDS)
        is_told = drop.reason == Disposition.QUEUE_DISABLED and drop.database in off  # with the statement, below
        is_told = is_told or (lacks_imports and drop.reason in OF_IMPORTS)
        if is_recent and not is_told and drop.reason not in HARMLESS_DROPS and drop.do != DEFINITIONS_CHANGED:
            how, ago = (f"{rate:,.1f} frames a second are", "") if rate else ("frames were", _ago(drop.last_s))
            passed_through = drop.reason == Disposition.NOT_PERMITTED and drop.database is None
            kept = _SENT_AGAIN if drop.reason in KEPT_DROPS or passed_through else ""
            do = drop.do or "sys.dm_broker_dispositions has the last such frame"
            yield HealthFinding(Level.NOTICE, "drops", f"{how} dropped: {drop.reason}{ago}{kept}", do)


def _queues(status: Status) -> Iterator[HealthFinding]:
    refusing = {
        drop.database
        for drop in status.drops or ()
        if drop.reason == Disposition.QUEUE_DISABLED and drop.last_s is not None and drop.last_s < REFUSED_SECONDS
    }
    for name, database in status.databases.items():
        oldest = database.oldest_waiting_s or 0.0
        if oldest > WAITING_SECONDS:
            messages = counted(database.waiting_messages or 0, "message")
            what = f"{messages} of {name} not acknowledged, the oldest for {oldest:,.0f} s"
            yield HealthFinding(Level.NOTICE, "database", what, "broker why shows for each conversation why it waits")
        if failed := database.failed:
            have = "has" if failed == 1 else "have"
            what = f"{counted(failed, 'dialog')} of {name} {have} failed, and no application has received the error"
            yield HealthFinding(Level.NOTICE, "dialog", what, "broker why lists them, each with what to do")
        for queue in database.queues or ():
            if not queue.is_receive_enabled:
                wait = f"its first message has waited for {queue.oldest_s:,.0f} s" if queue.oldest_s else ""
                wait = wait or (
                    "messages that arrive are refused, and their senders keep them" if name in refusing else ""
                )
                what = f"the queue {queue.name} of {name} is off: {wait or 'no application can receive from it'}"
                yield HealthFinding(
                    Level.BAD if wait else Level.NOTICE, "queue", what, queue_on(name, queue.name, instance=status.name)
                )
            elif queue.oldest_s > UNREAD_SECONDS:
                since = f"its first message has waited for {queue.oldest_s:,.0f} s"
                what = f"no application receives from the queue {queue.name} of {name}: {since}"
                do = "check that its application runs and reads it; broker why shows its readers and what they hold"
                yield HealthFinding(Level.NOTICE, "queue", what, do)


def _transport(status: Status) -> Iterator[HealthFinding]:
    transport = status.transport  # earlier releases have no notices
    for notice in transport.notices or [TransportWarning("", warning) for warning in transport.warnings]:
        if notice.kind == WarningKind.IMPORTS_LOST:
            continue  # with the databases
        level, do = _TRANSPORT.get(notice.kind, (Level.NOTICE, ""))
        about, what = "connection" if notice.kind == WarningKind.REFUSED else "transport", notice.text
        do = do or (NO_PEER if _NO_PEER.search(what) else statement_of(what, where="this instance"))
        if certificate := _UNTRUSTED.search(what):
            what, _, do = what.rpartition(": ")
            do = do.replace("that certificate", f"the certificate of {certificate[1]}")
        yield HealthFinding(level, about, what, do)
