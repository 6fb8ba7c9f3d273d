"""An explanation as it is read in a terminal: the question, the steps below each other, the answer in the last line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.observe.line import TextLine, print_lines
from broker.observe.terminal import Terminal
from broker.routing.explain import ClassTried, Explanation, PassShown, Progress, RouteFate, Step

_ITEM, _DETAIL = 2, 6  # columns before a step, and before what belongs to it

_NOTHING_STEP = 7  # the end of the list, which is no success

_MARKS = {Progress.SKIPPED: "-", Progress.NOTHING: "·", Progress.MATCHED: "✓", Progress.NOT_REACHED: "-"}


def render_explanation(
    explanation: Explanation,
    *,
    place: str,
    is_conversation_drawn: bool,
    note: str = "",
    terminal: Terminal | None = None,
) -> None:
    """
    Print an explanation.

    Args:
        explanation: What one instance decides.
        place: The instance, as people call it.
        is_conversation_drawn: Whether the question named no conversation.
        note: What else to know of the instance; nothing when it is empty.
        terminal: Standard output when it is left out.
    """
    print_lines(_lines(explanation, place, note, is_drawn=is_conversation_drawn), terminal)


def _lines(explanation: Explanation, place: str, note: str, *, is_drawn: bool) -> Iterator[TextLine]:
    yield from _question(explanation, place, note, is_drawn=is_drawn)
    yield from _permissions(explanation)
    for number, one in enumerate(explanation.passes):
        yield TextLine("")
        yield TextLine(_heading(one, is_first=number == 0), style="bold")
        yield from _matching(one)
        yield from _choosing(one)
    yield TextLine("")
    for hint in explanation.hints:
        yield TextLine(f"hint: {hint}", style="yellow")
    yield TextLine(explanation.sentence, style="bold")


def _question(explanation: Explanation, place: str, note: str, *, is_drawn: bool) -> Iterator[TextLine]:
    first = explanation.passes[0]
    begins = "from outside" if first.is_incoming else f"from the database {first.table}"
    answer = ", an answer of the target" if explanation.is_from_target else ""
    yield TextLine(f"{place}: to {explanation.to_service}, {begins}{answer}", style="bold")
    if note:
        yield TextLine(note, _ITEM)
    instance = explanation.to_broker_instance
    yield TextLine("any broker instance" if instance is None else f"broker instance {instance}", _ITEM)
    remarks = ["drawn"] if is_drawn else []
    if is_drawn or explanation.is_by_conversation:
        remarks.append("others may differ" if explanation.is_by_conversation else "others go alike")
    remark = f" ({'; '.join(remarks)})" if remarks else ""
    yield TextLine(f"conversation {explanation.conversation_id}{remark}", _ITEM)


def _permissions(explanation: Explanation) -> Iterator[TextLine]:
    """What the peer may, before any route is looked at."""
    if not explanation.permissions:
        return
    yield TextLine("")
    yield TextLine(f"Permissions of {explanation.peer}", style="bold")
    for one in explanation.permissions:
        progress = Progress.MATCHED if one.is_permitted else Progress.NOTHING
        yield TextLine(f"{one.permission}: {one.why}", _ITEM, _MARKS[progress], "green" if one.is_permitted else "red")
    if not all(one.is_permitted for one in explanation.permissions):
        yield TextLine("What follows would be, if it were permitted.", _ITEM)


def _heading(one: PassShown, *, is_first: bool) -> str:
    if is_first:
        return f"Matching, by the routes of {one.table}"
    return f"Matching again, as if it had come from outside: {one.table}"


# --- matching -----------------------------------------------------------------------------------------------


def _matching(one: PassShown) -> Iterator[TextLine]:
    for step in one.steps:
        if step.progress is not Progress.NOT_REACHED:
            text = f"{step.step} {step.title}: {step.why}"
            yield TextLine(text, _ITEM, "!", "red") if step.step == _NOTHING_STEP else _marked(step.progress, text)
            yield from _scores(step)
            yield from _routes(step, _described)
    yield from _not_reached([step for step in one.steps if step.progress is Progress.NOT_REACHED])


def _scores(step: Step) -> Iterator[TextLine]:
    """Who won the draw; nothing when there was none."""
    if len(step.scores) < 2:
        return
    yield TextLine("       score  weight  broker instance", _DETAIL, style="dim", is_table=True)
    for one in step.scores:
        mark = _MARKS[Progress.MATCHED if one.is_picked else Progress.NOTHING]
        row = f"{one.score:>10.4g}  {one.weight:>6}  {one.broker_instance}"
        yield TextLine(row, _DETAIL, mark, "green" if one.is_picked else "", is_table=True)


def _routes(part: Step | ClassTried, called: Callable[[RouteFate], str]) -> Iterator[TextLine]:
    for route in part.routes:
        progress = Progress.MATCHED if route.is_taken else Progress.NOTHING
        style = "green" if route.is_taken else ""
        yield TextLine(f"{called(route)}: {route.why}", _DETAIL, _MARKS[progress], style)
    if part.more_routes:
        yield TextLine(f"and {part.more_routes:,} more", _DETAIL)


def _described(route: RouteFate) -> str:
    """A route with what it says."""
    parts = [route.address]
    if route.mirror_address is not None:
        parts.append(f"mirror {route.mirror_address}")
    if route.broker_instance is not None:
        parts.append(f"broker instance {route.broker_instance}")
    if route.weight != 1:
        parts.append(f"weight {route.weight}")
    return f"{_named(route)} ({', '.join(parts)})"


def _named(route: RouteFate) -> str:
    """A route by its name; the one that no table holds has none."""
    return route.name or "the implied route"


def _not_reached(steps: list[Step]) -> Iterator[TextLine]:
    """The steps behind the one that ended the search, in one line; of their routes only the number."""
    if not steps:
        return
    numbers = str(steps[0].step) + (f" to {steps[-1].step}" if len(steps) > 1 else "")
    passed = [(step.step, len(step.routes) + step.more_routes) for step in steps if step.routes]
    over = ", ".join(f"{count:,} {'route' if count == 1 else 'routes'} of step {number}" for number, count in passed)
    before = f", before {over}" if over else ""
    yield _marked(Progress.NOT_REACHED, f"{numbers} not reached: {steps[0].why}{before}")


# --- choosing -----------------------------------------------------------------------------------------------


def _choosing(one: PassShown) -> Iterator[TextLine]:
    if one.classes:
        yield TextLine("Choosing", style="bold")
    for tried in one.classes:
        if tried.progress is not Progress.NOT_REACHED:
            yield _marked(tried.progress, f"{tried.route_class}: {tried.why}")
            yield from _routes(tried, _named)
        elif tried.routes:
            count = len(tried.routes) + tried.more_routes
            routes = f"{count:,} {'route' if count == 1 else 'routes'}"
            yield _marked(tried.progress, f"{tried.route_class}: {tried.why} ({routes})")
    if one.candidates:
        yield TextLine("Candidates, best first", style="bold")
    for number, candidate in enumerate(one.candidates, 1):
        problem = f": {candidate.problem}" if candidate.problem else ""
        score = f", score {candidate.score:.4g}" if len(one.candidates) > 1 else ""
        text = f"{number}. {candidate.address}, by route {candidate.route}{score}, {candidate.health}{problem}"
        yield TextLine(text, _ITEM, style="green" if number == 1 else "")
    if one.more_candidates:
        yield TextLine(f"and {one.more_candidates:,} more", _ITEM)


# --- lines --------------------------------------------------------------------------------------------------


def _marked(progress: Progress, text: str) -> TextLine:
    style = {Progress.MATCHED: "green", Progress.NOTHING: ""}.get(progress, "dim")
    return TextLine(text, _ITEM, _MARKS[progress], style)
