"""Every key of a good text has a place inside it."""

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config.schema import settings_of
from broker.config.settings import Settings
from broker.config.toml import KeyPath, index_places
from tests.support.tiers import examples

NAMES = [*sorted({str(step) for one in settings_of(Settings) for step in one.path}), "x", "", "a.b", "é", "__", "0"]

SCALARS = st.sampled_from(
    [
        '""', '"x"', "'a]b'", '"""\na"""""', "'''\nb'''''", '"\\""', '"a#b"', "0", "-1", "0xff", "1_0", "1.5", "nan",
        "true", "1979-05-27 07:32:00Z", "07:32:00",
        '"10s"', '"64MiB"', '"127.0.0.1:0"', '"tcp://h"', '"none"', '"\\u00e9"',
    ]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[ # c]\n{' ,'.join(items)}\n]"),
        st.lists(inner, max_size=2).map(
            lambda items: "{" + ", ".join(f"k{n} . 'l m' = {item}" for n, item in enumerate(items)) + "}"
        ),
    ),
    max_leaves=5,
)
KEYS = st.lists(
    st.sampled_from(NAMES).map(lambda name: name if name.isascii() and name.isidentifier() else f'"{name}"'),
    min_size=1,
    max_size=3,
).map(" . ".join)
LINES = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]} # comment"),
    KEYS.map(lambda key: f"[{key}]"),
    KEYS.map(lambda key: f"[[ {key} ]]"),
    st.sampled_from(["", "# comment", "  "]),
)
TEXTS = st.tuples(st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n"])).map(lambda made: made[1].join(made[0]))


def _paths(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, below in items for found in ((*path, key), *_paths(below, (*path, key)))]


@settings(max_examples=examples(300))
@given(TEXTS)
def test_every_key_of_a_good_text_has_a_place_inside_it(text: str) -> None:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    places = index_places(text, source="f")
    lines = text.replace("\r\n", "\n").split("\n")

    spans = [places.keys.get(path) or places.values[path] for path in _paths(parsed)]

    assert all(span.length >= 1 and span.column - 1 + span.length <= len(lines[span.line - 1]) for span in spans)
