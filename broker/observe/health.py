"""
What to do, by cause: one sentence for each disposition of a frame and each number of an Error message.

Pure texts; where they name a place they are filled in by the caller.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from broker.errors import MAY_NOT_CONNECT
from broker.flow import Disposition

D = Disposition
_BY_DISPOSITION: Mapping[str, str] = {
    D.HOPS_EXHAUSTED: (
        "broker explain --through shows whether routes lead in a circle; raise endpoint.max_hops of {instance}, and"
        " dialog.hop_limit of the sender, only when the way is that long"
    ),
    D.LIFETIME_EXCEEDED: "find the gateway on the way that holds frames; begin dialogs with a longer lifetime",
    D.EXPIRED_HERE: "make the next hop of {instance} take messages: broker status there tells what is wrong with it",
    D.NOT_PERMITTED: (
        "in msdb of {instance}: run the GRANT SEND that the reason names, if messages for [{service}] shall come that"
        " way; broker explain --to [{service}] --peer PRINCIPAL there tells what holds"
    ),
    D.ASKING_FOR_ROUTE: "see whether the service that is asked for routes runs, and CREATE ROUTE for [{service}] else",
    D.NO_ROUTE: (
        "in {table} of {instance}: CREATE ROUTE [{service}] WITH SERVICE_NAME = '{service}', ADDRESS ="
        " 'tcp://HOST:PORT'; names are compared byte for byte"
    ),
    D.FORWARDING_DISABLED: (
        "set endpoint.message_forwarding = true at {instance}, or correct the route that led there"
    ),
    D.ROUTE_INVALID: "in {table} of {instance}: give [{service}] a route whose address leads to where it is",
    D.SERVICE_NOT_HERE: (
        "in {table} of {instance}, when the service is elsewhere: CREATE ROUTE [{service}] WITH SERVICE_NAME ="
        " '{service}', ADDRESS = 'tcp://HOST:PORT'; names are compared byte for byte; else CREATE SERVICE [{service}]"
        " in a database of {instance}"
    ),
    D.INSTANCE_NOT_HERE: (
        "compare the broker instance with sys.databases of {instance}: the route leads to the wrong instance, or the"
        " database was made anew"
    ),
    D.PRINCIPAL_UNKNOWN: (
        "sys.dm_broker_mirrors at {instance} shows what both partners say: start one of them, or fail over to the one"
        " that is there"
    ),
    D.DATABASE_IS_MIRROR: (
        "the route led to the mirror: give it both addresses (ADDRESS and MIRROR_ADDRESS); broker status of {instance}"
        " names the principal"
    ),
    D.ALREADY_HELD: (
        "broker why at {instance} tells what the copies wait for: a next hop that does not take them, or the principal"
        " of a mirrored pair (sys.dm_broker_mirrors there) while both partners deny or are gone"
    ),
    D.POOL_LIMIT: (
        "at {instance}: broker status shows which next hop is slow or gone; raise endpoint.message_forward_size when"
        " all are well"
    ),
    D.FRAME_TOO_LARGE: "raise endpoint.max_frame at the next hop of {instance} to that of {instance}",
    D.SERVICE_NOT_FOUND: "CREATE SERVICE [{service}] in that database of {instance}, or correct the route",
    D.CONTRACT_REFUSED: "ALTER SERVICE [{service}] (ADD CONTRACT ...) there, or begin the dialog under another one",
    D.NOT_OF_THIS_DIALOG: "a peer uses the conversation id of a dialog that is not its own: see the log of {instance}",
    D.OTHER_INSTANCE: "see whether two databases have the same broker instance (a copied file): broker database",
    D.SECURITY_UNRESOLVED: (
        "the log of {instance} says which certificate (frame refused): name it in databases.NAME.peers there, renew it,"
        " or compare the clocks of both sides"
    ),
    D.SEAL_BROKEN: "a machine on the way damages frames, or somebody tries to: look at those before {instance}",
    D.NOT_SECURED: "end the dialog and begin it again: it is sealed at one side and in clear at {instance}",
    D.SESSION_KEY_UNKNOWN: "nothing: {instance} has started anew, and the next resend brings it the key",
    D.NOT_SEALED: "somebody sends in clear to a sealed dialog: look at the machines before {instance}",
    D.STORE_BUSY: "keep the transactions of applications on that database short, and see how fast its disk is",
    D.STORE_FAILED: "broker status and the log of {instance} say what is wrong: disk full, file locked or damaged",
}
_BY_ERROR: Mapping[int, str] = {
    -8408: "ALTER SERVICE at the target (ADD CONTRACT ...), or begin the dialog under a contract that it takes",
    -8428: "CREATE MESSAGE TYPE of the same name at both sides",
    -8430: "correct the body, or the VALIDATION of the message type",
    -8437: "correct who may send the message type: SENT BY in the contract",
    -8457: "correct who may send the message type: SENT BY in the contract",
    -8462: "the far database has forgotten the dialog (cleaned up, or restored): begin a new one and send again",
    -8489: "begin a new dialog and send again; make its lifetime longer when the far side is often away that long",
    -8490: (
        "CREATE SERVICE [{service}] in the database that the dialog or its route names, or correct BROKER_INSTANCE;"
        " then begin a new dialog"
    ),
    -8494: "GRANT SEND ON SERVICE::[{service}] in the far database to the principal that the error names",
    -8495: "two databases answer for one dialog: give each its own broker instance, and begin a new dialog",
    -8498: "add the message type to the contract at both sides",
    -9727: "CREATE REMOTE SERVICE BINDING for [{service}], or begin the dialog with encryption off",
    -9731: "give the database a certificate and private_key, or make the remote service binding ANONYMOUS = ON",
    -9616: "send well-formed XML, or correct the VALIDATION of the message type",
}


def remedy_of(disposition: str, *, instance: str, service: str, table: str = "msdb") -> str:
    """What to do about frames that end by this disposition at this instance."""
    text = _BY_DISPOSITION.get(
        disposition, "see the page on dispositions: {instance} tells the reason in broker status"
    )
    return _filled(text, instance=instance, service=service, table=table)


def remedy_of_unreached(address: str, problem: str) -> str:
    """What to do about a next hop that is not reached, for a reason that the instance here or there tells."""
    if MAY_NOT_CONNECT in problem:
        where = f"the instance at {address}" if problem.startswith("FATAL") else "this instance"
        return f"in msdb of {where}: run the GRANT CONNECT that the reason names, or REVOKE the DENY"
    return f"start the instance at {address}, open the way to it, or correct the route to it"


def remedy_of_error(code: int | None, *, service: str) -> str:
    """What to do about a dialog that failed with this number; a positive one is an application's own."""
    end = "RECEIVE the Error message and END CONVERSATION here"
    if code is None:
        return end
    if code > 0:
        return f"the far application ended the dialog with its own error {code}: ask there; {end}"
    told = _BY_ERROR.get(code)
    return end if told is None else f"{_filled(told, service=service)}; {end}"


def _filled(text: str, **values: str) -> str:
    """Names of peers and applications may hold braces, so nothing of theirs is ever a format."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def ledger_sentence(ledger: Mapping[str, Any]) -> str:
    """One line: that it adds up, or by how much it does not."""
    failed = ledger["failed"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(failed.items()))
    sentence = (
        f"{ledger['sent']:,} sent = {ledger['acknowledged']:,} acknowledged + {ledger['held']:,} held"
        f" + {sum(failed.values()):,} failed" + (f" ({reasons})" if reasons else "")
    )
    return f"{sentence} + {ledger['unaccounted']:,} UNACCOUNTED" if ledger["unaccounted"] else sentence


# --- fold ---
# Lists of unknown length, cut to what a person can look at: the biggest rows, and the sums of the rest.
#
# What is told comes from peers and applications, so names have a bound as well.


NAME_MAX = 200  # characters of a name that are shown

Row = Mapping[str, Any]


def shorten(text: str, most: int = NAME_MAX) -> str:
    """A text of at most so many characters; one that was longer says by how much."""
    if len(text) <= most:
        return text
    end = f"… ({len(text):,} characters)"
    return text[: most - len(end)] + end


def fold(rows: Sequence[Row], most: int, *, weight: Callable[[Row], Any], sums: Sequence[str] = ()) -> dict[str, Any]:
    """
    The heaviest rows, and what the rest comes to.

    Args:
        rows: All of them.
        most: Rows that are told.
        weight: What a row counts; of equals the first are told.
        sums: Columns that are added up over the rows that are not told; what is not known counts as 0.

    Returns:
        `count` of all rows, `rows` the heaviest first, `folded` the `count` and the sums of the others.

    Cost: O(rows * log most).
    """
    kept = heapq.nlargest(most, rows, key=weight)
    left = len(rows) - len(kept)
    folded: dict[str, Any] = {"count": left}
    for column in sums:
        whole = sum(row[column] or 0 for row in rows) if left else 0
        folded[column] = round(whole - sum(row[column] or 0 for row in kept), 3) if left else 0
    return {"count": len(rows), "rows": [cut(row) for row in kept], "folded": folded}


def cut(row: Row) -> dict[str, Any]:
    """A row whose texts have a bound."""
    return {name: shorten(value) if isinstance(value, str) else value for name, value in row.items()}


# --- verdict ---
# Whether all is well with an instance, what is not, and what to do about it: sentences for a person who has a minute.
#
# A pure function of a status, as the JSON of `/v1/status` and what a pulse adds to it. What is not told there is not
# judged. Texts of peers stand in the sentences as they are: whoever shows them escapes them.


FINDINGS_MAX = 20
KEYS_TOLD = 10  # settings that wait for a restart, by name
TEXT_MAX = 600  # characters of what is told of one
POOL_FULL, POOL_FILLING = 0.9, 0.7  # parts of the pool that are taken
LATE_SECONDS = 0.25  # of the loop: what is due comes so late
DROPPED_SECONDS = 60.0  # for which a drop is told, so that one that comes again and again does not come and go
UNREAD_SECONDS = 300.0  # after which a message that nobody receives is worth a word, as for the alert BrokerQueueOld
WAITING_SECONDS = 60.0  # after which a message that nobody acknowledges is worth a word
_HARMLESS = frozenset({"already held", "duplicate", "shut down", "asking for route", "conversation ended"})
RENEW = "put renewed files in the place of the old ones where it is used: within seconds they are, without a restart"
_OPERATIONAL, _PRINCIPAL_ONLY = "OPERATIONAL", "PRINCIPAL_ONLY"

Status = Mapping[str, Any]


class Level(StrEnum):
    """How much a finding, or the whole, matters. The worst comes last."""

    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


_AILING = {"stalled": Level.BAD, "down": Level.BAD, "blocked": Level.NOTICE}  # by what a connection really does
_WEIGHT = {level: weight for weight, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing that is not as it should be. Shape: `do` is empty when nothing has to be done."""

    level: Level
    about: str
    what: str
    do: str = ""


def verdict(status: Status) -> dict[str, Any]:
    """
    The whole in one sentence, and what it is made of.

    Returns:
        `level`; `sentence`; `findings`, the worst first, `FINDINGS_MAX` at most; `more` that are not told.
    """
    found = sorted(findings(status), key=lambda one: -_WEIGHT[one.level])
    level = found[0].level if found else Level.GOOD
    return {
        "level": level.value,
        "sentence": _sentence(found, status),
        "findings": [
            asdict(one) | {"what": shorten(one.what, TEXT_MAX), "do": shorten(one.do, TEXT_MAX)}
            for one in found[:FINDINGS_MAX]
        ],
        "more": max(0, len(found) - FINDINGS_MAX),
    }


def findings(status: Status) -> Iterator[HealthFinding]:
    """Everything that is not as it should be, in the order in which a person would look."""
    transport = list(_transport(status))
    yield from _itself(status)
    yield from (one for one in transport if one.level is Level.BAD)  # nobody connects any more, so all else may follow
    yield from _ledgers(status)
    yield from _stores(status)
    yield from _next_hops(status)
    yield from _connections(status)
    yield from _mirrors(status)
    yield from _pool(status)
    yield from _drops(status)
    yield from _queues(status)
    yield from (one for one in transport if one.level is not Level.BAD)


def _sentence(found: list[HealthFinding], status: Status) -> str:
    bad = [one for one in found if one.level is Level.BAD]
    if bad:
        others = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        return f"Something is wrong: {shorten(bad[0].what, 300)}{others}"
    links = len(status.get("connections", ()))
    held = status.get("forwarding", {}).get("held", 0)
    waits = f"{held:,} frames wait for their next hop" if held else "nothing waits for a next hop"
    told = f"{links:,} {'connection' if links == 1 else 'connections'}, {waits}{_untried(status)}"
    if not found:
        return f"All is well: {told}"
    return f"It works ({told}), and {_things(len(found))} worth knowing: {shorten(found[0].what, 300)}"


def _untried(status: Status) -> str:
    """Next hops of which nobody knows whether they can be reached."""
    known = status.get("addresses", {}).values()
    count = sum(one["health"] == "untried" and not one["problem"] and not one["held"] for one in known)
    return f", {count:,} {'next hop' if count == 1 else 'next hops'} not dialled yet" if count else ""


def _things(count: int) -> str:
    return "one thing is" if count == 1 else f"{count} things are"


def _itself(status: Status) -> Iterator[HealthFinding]:
    draining = status.get("draining")
    if draining:
        yield HealthFinding(Level.NOTICE, "instance", f"the instance leaves: {draining['sentence']}")
    elif not status.get("ready", True):
        yield HealthFinding(Level.BAD, "instance", "the instance is not ready: it starts or stops", "see its log")
    lag = status.get("loop_lag_s") or 0.0
    if lag > LATE_SECONDS:
        what = f"the event loop was {lag * 1000:,.0f} ms late within the last 15 s"
        yield HealthFinding(Level.NOTICE, "loop", what, "see whether the machine is short of processor time")
    for task in status.get("tasks") or ():
        if task["problem"]:
            what = f"a part of the program, {task['name']}, {task['problem']}"
            yield HealthFinding(Level.BAD, "task", what, "see the log of the instance; please report it")
    reload = status.get("reload") or {}
    if reload.get("problem"):
        first = reload["problem"].splitlines()[0]  # of a mistake in the file an excerpt follows
        what = f"the last reload of the configuration has failed, and the one before is in force: {first}"
        do = "correct it, and run broker reload; with --dry-run it shows everything that is wrong, and where"
        yield HealthFinding(Level.BAD, "configuration", what, do)
    waiting = reload.get("waiting") or ()
    if waiting:
        more = f" and {len(waiting) - KEYS_TOLD} more" if len(waiting) > KEYS_TOLD else ""
        count = "a setting waits" if len(waiting) == 1 else f"{len(waiting)} settings wait"
        what = f"{count} for a restart to hold: {', '.join(waiting[:KEYS_TOLD])}{more}"
        yield HealthFinding(Level.NOTICE, "configuration", what, "restart the instance when it suits")


def _ledgers(status: Status) -> Iterator[HealthFinding]:
    frames = status.get("forwarding", {}).get("unaccounted", 0)
    do = "this is a fault of the program: please report it, with the log"
    if frames:
        yield HealthFinding(Level.BAD, "ledger", f"{frames:,} frames are unaccounted for", do)
    for name, database in status.get("databases", {}).items():
        ledger = database.get("ledger")
        if ledger and ledger["unaccounted"]:
            what = f"{ledger['unaccounted']:,} messages of the database {name} are unaccounted for"
            yield HealthFinding(Level.BAD, "ledger", what, do)


def _stores(status: Status) -> Iterator[HealthFinding]:
    if status.get("room_problem"):
        do = "make room: until then changes are refused, and what lies on that disk stores nothing"
        yield HealthFinding(Level.BAD, "disk", status["room_problem"], do)
    if status.get("audit_problem"):
        do = "put the file right; this goes with the next change that can be written, such as broker reload"
        yield HealthFinding(Level.BAD, "audit", status["audit_problem"], do)
    for name, database in status.get("databases", {}).items():
        if database.get("problem"):
            what = f"the store of {name} has failed: {database['problem']}"
            yield HealthFinding(Level.BAD, "database", what, "do what it says: the store is tried again by itself")
        if database.get("quarantined"):
            count = database["quarantined"]
            what = f"{count:,} {'dialog' if count == 1 else 'dialogs'} of {name} in quarantine: a reader fails on them"
            yield HealthFinding(Level.BAD, "database", what, f"broker quarantine list -d {name}")
    for name, standing in status.get("mirroring", {}).items():
        if standing.get("source") != "off" and standing.get("problem"):
            what = f"the mirrored database {name}: {standing['problem']}"
            yield HealthFinding(Level.BAD, "mirror", what, "broker status shows what both partners say")
    journal = status.get("journal") or {}
    if journal.get("problem"):
        yield HealthFinding(Level.BAD, "journal", f"the journal is not written: {journal['problem']}", "see the disk")


def _next_hops(status: Status) -> Iterator[HealthFinding]:
    waiting = {one["next_hop"]: one for one in status.get("waiting", ())}
    for address, facts in status.get("addresses", {}).items():
        if not facts["problem"]:
            continue
        held = waiting.get(address, facts).get("held", 0)
        wait = f", and {held:,} frames wait for it" if held else ""
        what = f"{address} is not reached: {facts['problem']}{wait}"
        do = "see that it runs and can be reached; broker explain tells which routes lead there"
        yield HealthFinding(Level.BAD if held else Level.NOTICE, "next hop", what, do)


def _connections(status: Status) -> Iterator[HealthFinding]:
    ailing = [one for one in status.get("connections", ()) if one.get("flow") in _AILING]
    for one in ailing[:FINDINGS_MAX]:
        why = f": {one['flow_reason']}" if one.get("flow_reason") else ""
        what = f"the connection to {one['name'] or one['address']} is {one['flow']}{why}"
        yield HealthFinding(
            _AILING[one["flow"]], "connection", what, "see whether that instance works and takes messages"
        )


def _mirrors(status: Status) -> Iterator[HealthFinding]:
    for one in status.get("mirrored_routes", ()):
        if one["state"] == _OPERATIONAL and not one["alarm"]:
            continue
        level = Level.NOTICE if one["state"] == _PRINCIPAL_ONLY and not one["alarm"] else Level.BAD
        state = one["state"].lower().replace("_", " ")
        alarm = f": {one['alarm']}" if one["alarm"] else ""
        do = "start the partner that is gone; sys.dm_broker_mirrors shows what both say"
        yield HealthFinding(level, "mirror", f"the mirrored route {one['route']} is {state}{alarm}", do)


def _pool(status: Status) -> Iterator[HealthFinding]:
    forwarding = status.get("forwarding", {})
    limit = forwarding.get("pool_limit_bytes", 0)
    part = forwarding.get("pool_bytes", 0) / limit if limit else 0.0
    if part >= POOL_FILLING:
        what = f"the memory for frames on their way is {part:.0%} full"
        do = "see which next hop is slow or gone under what waits, or raise endpoint.message_forward_size"
        yield HealthFinding(Level.BAD if part >= POOL_FULL else Level.NOTICE, "pool", what, do)


def _drops(status: Status) -> Iterator[HealthFinding]:
    for drop in status.get("drops") or ():
        rate, last_s = drop.get("frames_s"), drop.get("last_s")
        is_recent = bool(rate) or (last_s is not None and last_s < DROPPED_SECONDS)
        if is_recent and drop["reason"] not in _HARMLESS:
            how = f"{rate:,.1f} frames a second are" if rate else "within the last minute frames were"
            do = drop.get("do") or "sys.dm_broker_dispositions has the last such frame"
            yield HealthFinding(Level.NOTICE, "drops", f"{how} dropped: {drop['reason']}", do)


def _queues(status: Status) -> Iterator[HealthFinding]:
    for name, database in status.get("databases", {}).items():
        oldest = database.get("oldest_waiting_s") or 0.0
        if oldest > WAITING_SECONDS:
            count = database["waiting_messages"]
            what = f"{count:,} messages of {name} are not acknowledged, the oldest for {oldest:,.0f} s"
            yield HealthFinding(Level.NOTICE, "database", what, "broker why tells of each conversation why it waits")
        for queue in database.get("queues") or ():
            oldest = queue.get("oldest_s") or 0.0
            if queue["is_receive_enabled"] and oldest > UNREAD_SECONDS:
                since = f"its first message waits for {oldest:,.0f} s"
                what = f"nobody receives from the queue {queue['name']} of {name}: {since}"
                do = "see that its application runs and reads it; broker why tells who holds a conversation"
                yield HealthFinding(Level.NOTICE, "queue", what, do)
            if not queue["is_receive_enabled"]:
                what = f"the queue {queue['name']} of {name} is off: nobody can receive from it"
                yield HealthFinding(Level.NOTICE, "queue", what, f"ALTER QUEUE [{queue['name']}] WITH STATUS = ON")


def _transport(status: Status) -> Iterator[HealthFinding]:
    transport = status.get("transport") or {}
    names = {one["name"] for one in transport.get("certificates", ())}
    expired = {one["name"] for one in transport.get("certificates", ()) if one["days_left"] < 0}
    problem = transport.get("problem")
    for warning in transport.get("warnings", ()):
        if problem and problem in warning:
            do = "put the files right, they are looked at again by themselves; those before are in use until a restart"
            yield HealthFinding(Level.BAD, "transport", warning, do)
            continue
        if "is not valid before" in warning:
            yield HealthFinding(Level.BAD, "transport", warning, "set the clock of this machine")
            continue
        is_over = any(name in warning and "has expired" in warning for name in expired)
        do = RENEW if is_over or any(name in warning and " ends in " in warning for name in names) else ""
        yield HealthFinding(Level.BAD if is_over else Level.NOTICE, "transport", warning, do)
