"""No text, variable or flag makes loading raise anything but its report; every key of a good text has a place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config.consistency import setting_warnings
from broker.config.load import load_settings
from broker.config.schema import settings_of
from broker.config.settings import Settings
from broker.config.toml import KeyPath, index_places
from broker.errors import SettingError, SettingsError
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


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "broker.toml"


VARIABLES = st.dictionaries(
    st.lists(st.sampled_from(NAMES).map(str.upper), min_size=1, max_size=4).map("__".join).map("BROKER_{}".format),
    st.one_of(SCALARS, VALUES, st.text(max_size=20), st.just("[" * 9999)),
    max_size=4,
)
FLAGS = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=4).map(".".join),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.lists(st.text(max_size=3))),
    max_size=4,
)


@settings(max_examples=examples(500))
@given(
    st.one_of(
        TEXTS.map(str.encode), st.text(max_size=200).map(lambda text: text.encode(errors="replace")), st.binary()
    ),
    VARIABLES,
    FLAGS,
)
def test_loading_gives_settings_or_its_report_of_which_each_note_takes_one_line(
    path: Path, data: bytes, environ: dict[str, str], flags: dict[str, object]
) -> None:
    path.write_bytes(data)
    try:
        notes: list[SettingError] = setting_warnings(load_settings(path, environ=environ, overrides=flags))
    except SettingsError as error:
        notes = error.errors
        assert notes  # most texts are refused, so this is no place for pytest.raises

    assert len(notes) == len("\n".join(map(str, notes)).splitlines())


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
