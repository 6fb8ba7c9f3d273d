"""A section by itself: what it reads, every mistake in one run, a value that stays as it is, and its JSON Schema."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta, field

from broker.config.consistency import setting_warnings
from broker.config.load import load_settings
from broker.config.schema import Reload, Section, SectionError, about, json_schema, settings_of
from broker.config.settings import Settings, render_schema
from broker.config.values import Duration

HOPS = Annotated[int, Meta(ge=1, le=9)]


class Leaf(Section, frozen=True):
    hops: Annotated[HOPS, about("How far.", why="Far enough.", reload=Reload.RESTART)] = 3
    pause: Annotated[Duration, Meta(ge=1, le=3600), about("How long.", why="")] = 2.0
    names: Annotated[tuple[HOPS, ...], about("Which.", why="", default="one")] = (1,)


class Entry(Section, frozen=True):
    hops: Annotated[HOPS, about("How far.", why="")]


class Root(Section, frozen=True):
    leaf: Leaf = field(default_factory=Leaf)
    entries: Mapping[str, Entry] = field(default_factory=dict)


def test_a_table_is_read_with_its_defaults() -> None:
    root = Root.read({"leaf": {"hops": 5}, "entries": {"one": {"hops": 7}}})

    assert (5, 2.0, (1,), 7) == (root.leaf.hops, root.leaf.pause, root.leaf.names, root.entries["one"].hops)
    assert root == Root(leaf=Leaf(hops=5), entries={"one": Entry(hops=7)})
    assert [{"leaf", "entries"}, {"hops"}, frozenset()] == [root.given, root.leaf.given, Root().leaf.given]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (
            {"leaf": {"hops": 0, "hop": 1, "names": [1, "x", 2, 77]}, "entries": {"a": {}, "b": 2}, "self": 1},
            [
                "leaf.hops: 0 is out of range; allowed is 1 to 9",
                'leaf.names[1]: "x" is not a whole number from 1 to 9; write it without quotes',
                "leaf.names[3]: 77 is out of range; allowed is 1 to 9",
                "leaf.hop: unknown key; ",
                "entries.a: lacks hops, which is required; add it to [entries.a]",
                "entries.b: 2 is not a section; write [entries.b] and its keys below",
                "self: unknown key; ",
            ],
        ),
        (
            {"leaf": [1], "entries": 5},
            [
                "leaf: a list is not a section; write [leaf] and its keys below",
                "entries: 5 is not a section; write [entries] and its keys below",
            ],
        ),
    ],
)
def test_every_mistake_is_found_in_one_run(table: dict[str, Any], found: list[str]) -> None:
    with pytest.raises(SectionError) as caught:
        Root.read(table)

    assert found == str(caught.value).split("\n")


CONFIG = Path(__file__).parents[3] / "config"
SCHEMA = Draft202012Validator(json_schema(Settings))
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def is_valid(data: dict[str, Any]) -> bool:
    """What an editor says."""
    return bool(SCHEMA.is_valid(data))


def takes(data: dict[str, Any]) -> bool:
    """Whether the program accepts every value by itself."""
    try:
        Settings.read(data)
    except SectionError:
        return False
    return True


def test_committed_file_is_what_the_settings_say() -> None:
    Draft202012Validator.check_schema(json_schema(Settings))
    committed = (CONFIG / "broker.schema.json").read_text(encoding="utf-8")
    assert render_schema() == committed, "make docs, and commit it"


@pytest.mark.parametrize("name", ["gateway.toml", "endpoint.toml"])
def test_samples_name_the_schema_and_keep_to_it(name: str) -> None:
    text = (CONFIG / name).read_text(encoding="utf-8")

    assert "#:schema ./broker.schema.json" == text.splitlines()[0]
    assert [] == list(SCHEMA.iter_errors(tomllib.loads(text)))
    warnings = setting_warnings(load_settings(CONFIG / name, environ={}))
    assert ["endpoint.listen[0]"] == [warning.key for warning in warnings], "the open port"


# A value, and whether program and editor accept it. Where they differ the program says more than a schema can.
VALUES: list[tuple[str, str, bool, bool]] = [
    ("endpoint.max_hops", "16", True, True),
    ("endpoint.max_hop", "16", False, False),
    ("endpoint.heartbeat", '"1.5s"', True, True),
    ("endpoint.heartbeat", '"15 s"', False, False),
    ("endpoint.heartbeat", '"99ms"', False, True),
    ("endpoint.max_frame", '"1KiB"', False, True),
    ("endpoint.listen", '["127.0.0.1:65536"]', False, True),
    ("endpoint.advertise", '["TCP://a"]', True, True),
    ("instance.name", f'"{"x" * 129}"', False, False),
    ("instance.name", '"a\\tb"', False, True),
    ("admin.roles", '{"user:0" = "root"}', False, False),
    ("databases.a", f'{{path = "a.db", broker_instance = "{{{GUID.upper()}}}"}}', True, True),
    ("databases.a", '{path = "a.db", broker_instance = "5b0f"}', False, False),
]


@pytest.mark.parametrize(("key", "value", "is_taken", "is_marked_good"), VALUES)
def test_program_and_editor_judge_a_value(key: str, value: str, *, is_taken: bool, is_marked_good: bool) -> None:
    data = tomllib.loads(f"{key} = {value}\n")

    assert (is_taken, is_marked_good) == (takes(data), is_valid(data))


KEYS = [".".join("a" if step == "NAME" else str(step) for step in one.path) for one in settings_of(Settings)]
SCALARS = st.one_of(
    st.integers(-2, 70_000).map(str),
    st.floats(0, 2).map(lambda number: f"{number:f}"),
    st.sampled_from(["true", "false"]),
    st.from_regex(r'"[0-9]{1,3}(\.[0-9])?(ms|s|m|h|d|KiB|MiB|GiB|KB|)"', fullmatch=True),
    st.from_regex(r'"(127\.0\.0\.1|\[::1\]|a|tcp://a)(:[0-9]{1,5})?"', fullmatch=True),
    st.from_regex(r'"\{?[0-9a-fA-F]{8}(-?[0-9a-f]{4}){3}-?[0-9a-fA-F]{12}\}?"', fullmatch=True),
    st.sampled_from(['""', '"a"', '"none"', '"viewer"', '"lock"', '"json"', '"é"', '"a/*.pem"', '"supported"']),
)
ANY = st.one_of(SCALARS, st.lists(SCALARS, max_size=2).map(lambda inner: f"[{', '.join(inner)}]"))


@given(st.sampled_from(KEYS), ANY)
@example("databases.a.broker_instance", '"{5b0f3c1e5d5e-4f0b-8a550e9b0b9c2f11"')
def test_editor_accepts_all_that_the_program_accepts(key: str, value: str) -> None:
    text = f"{key} = {value}\n" + ("" if key == "databases.a.path" else 'databases.a.path = "a"\n')
    data = tomllib.loads(text)

    assert is_valid(data) or not takes(data)
