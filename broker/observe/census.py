"""
What a census means, in words: what grows, why, and what to do. Pure: a census in, sentences out.

A conversation that nobody ends is the classic leak of the original. Here every one has a lifetime, behind which it goes
unless messages of it are unread: those are never thrown away, an Error message that nobody has read is one of them. So
what is told is what waits for its lifetime to be over because an application forgot something, and what stays for ever
because nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from broker.store.census import AGES, DAY, HOUR, OLDEST_AGE, Census, Group, QueueDepth

FEW = 10  # conversations that are no leak yet
FREE_PART = 0.5  # of a file from which on it is worth telling that nothing uses it
FREE_MIN_BYTES = 64 * 1024 * 1024
_MANY_UNREAD = 1000
_OPEN, _LINGERS = frozenset({"SO", "SI", "CO"}), frozenset({"DI", "ER"})
_OLD_AGES = frozenset({AGES[-1][1], OLDEST_AGE})  # a day and more
_LATE_SECONDS = 5 * 60.0  # an unacknowledged or unread message that is older makes one ask

# By state, what a crowd of old sides means and who has to do what.
_MEANING = {
    "SO": (
        "begun here and nothing was ever sent",
        "the application of {service} should begin a dialog only when it sends, and END CONVERSATION what it drops",
    ),
    "SI": (
        "the first message has not come whole yet",
        "the far side still sends it: ask broker why with one of them",
    ),
    "CO": (
        "both sides may send and neither has ended",
        "one of the two applications should END CONVERSATION when the work is done, or begin with a shorter lifetime",
    ),
    "DI": (
        "the far side has ended and nobody here does",
        "the application of {service} should RECEIVE the EndDialog message and END CONVERSATION (dialog.end())",
    ),
    "DO": (
        "ended here, and the far side has not confirmed it",
        "the far side cannot be reached or does not store: ask broker why with one of them",
    ),
    "ER": (
        "the dialog has failed and nobody here has ended it",
        "the application of {service} should RECEIVE the Error message, look at its code, and END CONVERSATION",
    ),
}


def meaning(census: Census) -> list[str]:
    """One sentence for each thing that should be looked at; never empty."""
    sentences = [*_crowds(census), *_quarantine(census), *_queues(census), *_waiting(census), *_room(census)]
    return sentences or ["nothing grows: no old half-closed conversations, nothing in quarantine, nothing waits long"]


def _crowds(census: Census) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Group]] = {}
    for group in census.groups:
        if group.age in _OLD_AGES and group.state in _MEANING:
            groups.setdefault((group.service_name, group.state), []).append(group)
    for (service, state), some in sorted(groups.items(), key=lambda item: -_count(item[1])):
        count = _count(some)
        if count >= FEW:
            why, remedy = _MEANING[state]
            unread = sum(group.unread for group in some)
            unsent = sum(group.unsent for group in some)
            details = [f"{unread:,} of them have unread messages"] if unread else []
            details += [f"{unsent:,} have messages that are not acknowledged"] if unsent else []
            facts = f" ({', '.join(details)})" if details else ""
            first = min(group.first_lifetime for group in some)
            yield (
                f"{count:,} conversations of {service} that began more than a day ago are {state}: {why}{facts};"
                f" {remedy.format(service=service)}; {_else(state, count, unread, first)}"
            )
            if unread and state in _LINGERS:
                yield (
                    f"{unread:,} conversations of {service} that are {state} stay whatever their lifetime until"
                    " somebody receives their messages, for nothing unread is thrown away: when nobody will, broker"
                    f" dialogs end --state {state} --service {service} --older-than 30d --dry-run tells what ending"
                    " them loses"
                )


def _else(state: str, count: int, unread: int, first: float) -> str:
    """What becomes of them when nobody does anything; see `broker.store.expiry`."""
    if state in _OPEN:
        return f"else the first fails after its lifetime, {_instant(first)}, and stays until its Error message is read"
    if state in _LINGERS and unread == count:
        return "else none of them goes"
    rest = " of those that have read everything" if state in _LINGERS and unread else ""
    return f"else the first{rest} goes after its lifetime, {_instant(first)}"


def _quarantine(census: Census) -> Iterator[str]:
    if census.quarantined_dialogs:
        yield (
            f"{_dialogs(census.quarantined_dialogs)} in quarantine until somebody settles it: broker quarantine list"
            " tells why, then broker quarantine resume, skip, discard or answer"
        )
    if census.failing_dialogs:
        yield f"{_dialogs(census.failing_dialogs)} tried again after a failure of the reader: broker quarantine list"


def _queues(census: Census) -> Iterator[str]:
    for queue in census.queues:
        if not queue.ready:
            continue
        since = f"{_messages(queue.ready)} in the queue {queue.queue_name}, the oldest for {_age(census, queue)}"
        if not queue.is_receive_enabled:
            yield f"{since}: the queue is OFF, nobody can receive: ALTER QUEUE [{queue.queue_name}] WITH STATUS = ON"
        elif queue.ready > _MANY_UNREAD or (queue.oldest_time is not None and census.now - queue.oldest_time > HOUR):
            yield f"{since}: its readers do not run, or are too slow: start some, or raise their concurrency"


def _waiting(census: Census) -> Iterator[str]:
    since = census.sending_since
    if since is not None and census.now - since > _LATE_SECONDS:
        yield (
            f"{_messages(census.sending)} for the far side, the oldest for {_span(census.now - since)}: "
            "transmission_status of sys.transmission_queue says why, broker why with one of its conversations says more"
        )


def _room(census: Census) -> Iterator[str]:
    if census.tombstones_due > FEW:
        yield (
            f"{census.tombstones_due:,} tombstones have served and are still there: no daemon has this database open,"
            " or it is behind; they go by themselves"
        )
    if census.free_bytes >= max(FREE_MIN_BYTES, FREE_PART * census.file_bytes):
        yield (
            f"{census.free_bytes:,} of the {census.file_bytes:,} bytes of the file are used by nothing: they are used"
            " again before it grows, or VACUUM with everything stopped gives them back"
        )


def _count(groups: Iterable[Group]) -> int:
    return sum(group.conversations for group in groups)


def _dialogs(count: int) -> str:
    return "1 dialog is" if count == 1 else f"{count:,} dialogs are"


def _messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count:,} messages wait"


def _age(census: Census, queue: QueueDepth) -> str:
    return "an unknown time" if queue.oldest_time is None else _span(census.now - queue.oldest_time)


def _span(seconds: float) -> str:
    """A time in one unit."""
    for unit, word in ((DAY, "day"), (HOUR, "hour"), (60.0, "minute")):
        if seconds >= unit:
            count = int(seconds // unit)
            return f"{count} {word}{'s' if count > 1 else ''}"
    return "less than a minute"


def _instant(at: float) -> str:
    try:
        return f"at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "in a far future"
