"""What instances tell of their frames is what the network and the applications of a story know, frame by frame."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from broker.flow import Disposition
from broker.forwarding.ring import VisitRecord
from broker.protocol.layout import CONVERSATION_AT, MESSAGE_ID_AT, Flag, FrameKind
from tests.simulation.performance import Outcome, Side
from tests.simulation.play import play
from tests.simulation.story import DAY, SIDES, Story, draw
from tests.support.network import Node
from tests.support.virtual_time import WALL_CLOCK

SHORT = 40
CALM = 1e-6  # seconds: instants that are the same, told by two clocks

Place = tuple[bytes, bool, tuple[int, int]]


def ids(frames: list[bytes]) -> Counter[bytes]:
    return Counter(frame[MESSAGE_ID_AT:CONVERSATION_AT] for frame in frames)


def told(records: list[VisitRecord]) -> Counter[bytes]:
    return ids([record.raw_header for record in records])


def place(record: VisitRecord) -> Place:
    header = record.header
    return header.conversation_id, header.is_from_target, header.place


def messages(records: list[VisitRecord]) -> list[VisitRecord]:
    return [record for record in records if record.header.kind == FrameKind.MESSAGE]


def left(life: list[VisitRecord]) -> list[VisitRecord]:
    return [record for record in life if record.entry is not None and record.disposition is Disposition.FORWARDED]


def verdicts(life: list[VisitRecord]) -> list[VisitRecord]:
    """What became of frames that ended here; that the pass handed them over is none."""
    return [
        record
        for record in life
        if record.disposition is not None and (record.entry is None or _is_dropped_on_its_way(record))
    ]


def _is_dropped_on_its_way(record: VisitRecord) -> bool:
    goes_on = (Disposition.FORWARDED, Disposition.DELIVERED)
    return not record.arrival.is_from_here and record.disposition not in goes_on


def acknowledged(life: list[VisitRecord]) -> list[VisitRecord]:
    return [record for record in life if record.disposition is None]


def has_crash(story: Story) -> bool:
    return any(blow.what == "crash" for blow in story.blows)


def check_sender(node: Node) -> None:
    """Each transmission once, each resend as such, each acknowledged place once in a life and of its newest copy."""
    for life in node.records:
        newest: dict[Place, VisitRecord] = {}
        for record in messages(left(life)):
            queued = record.arrival.queued[record.header.message_id]
            assert queued.is_resend == (place(record) in newest)
            assert WALL_CLOCK <= queued.enqueued_at <= WALL_CLOCK + record.left + CALM
            newest[place(record)] = record
        seen = acknowledged(life)
        assert len(seen) == len(set(map(place, seen)))
        for record in seen:
            sent = newest[place(record)]
            assert sent.header.message_id == record.header.message_id
            enqueued_at = sent.arrival.queued[sent.header.message_id].enqueued_at
            assert WALL_CLOCK + record.arrival.entered <= enqueued_at + CALM
            assert record.arrival.queued[sent.header.message_id].enqueued_at == enqueued_at
            assert record.arrival.entered <= sent.left <= record.left + CALM


def check_direction(story: Story, outcome: Outcome, near: str, far: str) -> int:
    """What was sent was delivered once and acknowledged, and is what the applications know; of how many dialogs."""
    nodes, cut_short = outcome.members, set()
    sent = {place(record) for life in nodes[near].records for record in messages(left(life))}
    delivered = [
        record
        for life in nodes[far].records
        for record in messages(verdicts(life))
        if record.disposition is Disposition.DELIVERED
    ]
    assert len(delivered) == len(set(map(place, delivered)))
    assert {place(record) for record in delivered} <= sent
    for conversation, side in outcome.sides[far].items():
        if _is_cut_short(outcome.sides[near][conversation], side):
            cut_short.add(conversation.bytes)
    if has_crash(story) or story.store_failure or min(story.lifetimes) < DAY:
        return 0
    covered = {place(record) for life in nodes[near].records for record in acknowledged(life)}
    whole = Counter(
        record.header.conversation_id
        for record in delivered
        if record.header.flags & Flag.LAST_FRAGMENT and not record.header.flags & (Flag.END_DIALOG | Flag.ERROR)
    )
    for conversation, side in outcome.sides[far].items():
        if conversation.bytes not in cut_short:
            ours = {one for one in sent if one[0] == conversation.bytes}
            assert ours == {place(record) for record in delivered if place(record)[0] == conversation.bytes}
            assert whole[conversation.bytes] == len(side.got)
    endless = {one for one in sent if one[0] not in cut_short}
    assert {one for one in covered if one[0] not in cut_short} == endless
    return len(outcome.sides[far]) - len(cut_short)


def _is_cut_short(ours: Side, theirs: Side) -> bool:
    """It failed, or was ended before everything had come: then the rest was thrown away."""
    is_complete = (ours.sent, theirs.sent) == (theirs.got, ours.got)
    return not is_complete or ours.has_failed or theirs.has_failed


@pytest.mark.parametrize("seed", range(1, SHORT + 1))
def test_every_visit_is_told_once(seed: int) -> None:
    story = draw(seed)

    outcome = play(story, is_followed=True)

    for name, node in outcome.members.items():
        records = list(chain(*node.records))
        assert ids(node.carried) == told(left(records)), name
        arrived = [*left(records), *verdicts(records)] if node.path is None else verdicts(records)
        lost = ids(node.arrived) - told(arrived)
        assert told(arrived) <= ids(node.arrived), name
        assert has_crash(story) or not lost, name
        if node.path is not None:
            check_sender(node)
    for near, far in (SIDES, SIDES[::-1]):
        check_direction(story, outcome, near, far)


def test_stories_are_followed_to_their_end_in_bad_weather() -> None:
    stories = filter(is_quiet, map(draw, range(1, 999)))
    story = next(story for story in stories if story.weather.loss == 0.2 and story.weather.repeat)

    outcome = play(story, is_followed=True)

    assert check_direction(story, outcome, *SIDES) == len(story.lifetimes)
    records = list(chain(*outcome.members["bank"].records))
    assert Disposition.DUPLICATE in {record.disposition for record in verdicts(records)}


def is_quiet(story: Story) -> bool:
    """Nothing but the weather is bad, and nobody ends anything before its time."""
    is_even = not (story.blows or story.store_failure or min(story.lifetimes) < DAY)
    return is_even and len(story.deeds) >= 10 and not {"end", "error"} & {deed.what for deed in story.deeds}
