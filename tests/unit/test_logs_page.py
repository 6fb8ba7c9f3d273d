"""docs/logs.md has every line that the program may write, with its level and its fields, and no other."""

import ast
import re

from tools.pages.observe import SOURCE, events, log_calls, log_events, parse, texts_of

# Calls with an event from elsewhere: it is a parameter, and the callers of that have the text.
PASSED_ON = {("reader_worker.py", "event"), ("ratelimit.py", "event")}
ROW = re.compile(r"^\| `([^`]+)` \| ([a-z, ]+) \| ((?:`\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)*) \| (.+) \|$", re.MULTILINE)


def test_the_table_has_every_event_with_its_fields() -> None:
    rows = {event: _names(fields) for event, _, _, fields, _ in ROW.findall(log_events())}

    assert rows.keys() == events().keys()
    assert all(one.fields - {"**"} <= rows[event] for event, one in events().items())


def test_every_event_has_a_name_that_stays() -> None:
    """A fixed phrase: values are in fields, so that one can filter and count."""
    found = [
        f"{module.relative_to(SOURCE)}:{call.lineno}: {text}"
        for module in sorted(SOURCE.rglob("*.py"))
        for call, _ in log_calls(parse(module))
        if not texts_of(call) and (module.name, text := ast.unparse(call.args[0])) not in PASSED_ON
    ]

    assert found == []
    assert [event for event in events() if not re.fullmatch(r"[a-zA-Z][a-zA-Z ,]+", event)] == []


def test_every_event_has_one_meaning() -> None:
    meanings = [meaning for *_, meaning in ROW.findall(log_events())]

    assert all(len(meaning) > 8 for meaning in meanings)
    assert len(meanings) == len(events())


def _names(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"`(\w+)`", cell))
