"""How a story of dialogs ends: what has come, what is left, and how many frames it takes at least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker.client.dialog import Dialog
from tests.simulation.application import Application, Side
from tests.simulation.story import SIDES
from tests.support.dialog import rows

ENVELOPE_BYTES = 100  # of the first fragment, at most
LEFT_BEHIND = (
    "broker_conversation",
    "broker_transmission",
    "broker_transmission_part",
    "broker_fragment",
    "broker_received",
    "broker_message",
    "broker_failure",
)


def maybe_end(applications: Mapping[str, Application], dialog: Dialog) -> bool:
    """The shop ends what nobody has ended, when everything has come; True when there is nothing more to do."""
    ours, theirs = (applications[name].sides[dialog.conversation_id] for name in SIDES)
    if ours.has_ended or theirs.has_ended or ours.has_failed or theirs.has_failed:
        return True
    is_complete = theirs.got == ours.sent and ours.got == theirs.sent
    if is_complete and ours.timer is None and theirs.timer is None:
        applications["shop"].end(dialog)
        return True
    return False


def is_nothing_left(applications: Mapping[str, Application]) -> bool:
    """Whether no table has a row of a conversation any more."""
    return not any(
        rows(side.db, f"SELECT 1 FROM {table} LIMIT 1") for side in applications.values() for table in LEFT_BEHIND
    )


def rows_left(applications: Mapping[str, Application]) -> Iterator[str]:
    """Some of the rows that are left, in words."""
    for name, application in applications.items():
        for table in LEFT_BEHIND:
            for row in application.db.execute(f"SELECT * FROM {table} LIMIT 5"):
                short = [value[:8].hex() if isinstance(value, bytes) else value for value in row]
                yield f"left in {name}.{table}: {short}"


def fragments_needed(applications: Mapping[str, Application], fragment_size: int) -> int:
    """How many fragments there are in all that was sent, and in the ends of all dialogs."""
    needed = 0
    for application in applications.values():
        for side in application.sides.values():
            bodies = [*map(len, side.sent), 0]
            needed += sum(-(-(size + ENVELOPE_BYTES) // fragment_size) for size in bodies)
    return needed


def check_direction(what: str, sender: Side, receiver: Side, *, has_failed: bool) -> None:
    """What came is what was sent, in order; and all of it, where nothing cut the dialog short."""
    assert receiver.got == sender.sent[: len(receiver.got)], f"{what}: not what was sent, or not in order"
    if not has_failed and (receiver.is_told or not receiver.has_ended):
        assert len(receiver.got) == len(sender.sent), f"{what}: {len(receiver.got)} of {len(sender.sent)} came"
