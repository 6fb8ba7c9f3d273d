"""The schema that editors are given, and that it agrees with what the program takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from broker.config.settings import Settings, json_schema, main, render_schema
from broker.config.values import SectionError, settings_of

CONFIG = Path(__file__).parents[3] / "config"
SCHEMA = Draft202012Validator(json_schema())
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def is_valid(data: dict[str, Any]) -> bool:
    """What an editor says."""
    return bool(SCHEMA.is_valid(data))


def test_the_schema_is_one_of_its_dialect() -> None:
    Draft202012Validator.check_schema(json_schema())


def test_committed_file_is_what_the_models_say() -> None:
    assert render_schema() == (CONFIG / "broker.schema.json").read_text(encoding="utf-8")


def test_command_writes_the_file(tmp_path: Path) -> None:
    main([str(tmp_path / "a.json")])

    assert render_schema() == (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["gateway.toml", "endpoint.toml"])
def test_samples_name_the_schema_and_keep_to_it(name: str) -> None:
    text = (CONFIG / name).read_text(encoding="utf-8")

    assert "#:schema ./broker.schema.json" == text.splitlines()[0]
    assert [] == list(SCHEMA.iter_errors(tomllib.loads(text)))


def test_every_key_has_its_description_and_says_when_a_change_counts() -> None:
    endpoint = json_schema()["properties"]["endpoint"]["properties"]

    assert endpoint["max_hops"]["description"].startswith("Hops after which this instance drops a message")
    assert {1, 255, 16} == {endpoint["max_hops"][key] for key in ("minimum", "maximum", "default")}
    assert endpoint["max_hops"]["description"].endswith("A reload applies it at once.")


def test_every_setting_is_in_the_schema() -> None:
    schema = json_schema()["properties"]
    below = {name: one.get("properties") or one["additionalProperties"]["properties"] for name, one in schema.items()}

    found = {(name, key) for name, keys in below.items() for key in keys}

    assert {(one.path[0], one.path[-1]) for one in settings_of(Settings)} == found


# --- the schema and the loader agree ---

# A value, and whether program and editor take it. Where they differ the program says more than a schema can.
VALUES: list[tuple[str, str, bool, bool]] = [
    ("endpoint.max_hops", "16", True, True),
    ("endpoint.max_hops", "0", False, False),
    ("endpoint.max_hops", "256", False, False),
    ("endpoint.max_hops", '"16"', False, False),
    ("endpoint.max_hops", "true", False, False),
    ("endpoint.max_hop", "16", False, False),
    ("endpoint.message_forwarding", "true", True, True),
    ("endpoint.message_forwarding", "1", False, False),
    ("endpoint.encryption", '"required"', True, True),
    ("endpoint.encryption", '"Required"', False, False),
    ("endpoint.heartbeat", '"1.5s"', True, True),
    ("endpoint.heartbeat", '"15 s"', False, False),
    ("endpoint.heartbeat", "15", False, False),
    ("endpoint.heartbeat", '"99ms"', False, True),
    ("endpoint.max_frame", '"64KiB"', True, True),
    ("endpoint.max_frame", "65536", True, True),
    ("endpoint.max_frame", "1", False, False),
    ("endpoint.max_frame", '"64kb"', False, False),
    ("endpoint.max_frame", '"1KiB"', False, True),
    ("endpoint.listen", '["127.0.0.1:0"]', True, True),
    ("endpoint.listen", '"127.0.0.1:0"', False, False),
    ("endpoint.listen", '["127.0.0.1"]', False, False),
    ("endpoint.listen", '["127.0.0.1:65536"]', False, True),
    ("endpoint.listen", '[""]', False, False),
    ("endpoint.advertise", '["tcp://a:1"]', True, True),
    ("endpoint.advertise", '["TCP://a"]', True, True),
    ("endpoint.advertise", '["a:1"]', False, False),
    ("endpoint.certificate", '""', True, True),
    ("instance.state_dir", '""', False, False),
    ("instance.name", f'"{"x" * 128}"', True, True),
    ("instance.name", f'"{"x" * 129}"', False, False),
    ("instance.name", '"a\\tb"', False, True),
    ("observe.listen", '""', True, True),
    ("observe.listen", "false", False, False),
    ("journal.sample", "0.5", True, True),
    ("journal.sample", "1", True, True),
    ("journal.sample", "1.5", False, False),
    ("admin.roles", '{"user:0" = "viewer"}', True, True),
    ("admin.roles", '{"user:0" = "root"}', False, False),
    ("admin.roles", "[]", False, False),
    ("databases.a", "{}", False, False),
    ("databases.a", '{path = "a.db"}', True, True),
    ("databases.a", f'{{path = "a.db", broker_instance = "{GUID}"}}', True, True),
    ("databases.a", f'{{path = "a.db", broker_instance = "{{{GUID.upper()}}}"}}', True, True),
    ("databases.a", '{path = "a.db", broker_instance = "5b0f"}', False, False),
    ("databases.a", '{path = "a.db", peer = []}', False, False),
    ("databases", "[]", False, False),
    ("endpoints", "{}", False, False),
]


def takes(data: dict[str, Any]) -> bool:
    """Whether the program takes every value of it; what only several together say is not asked."""
    try:
        Settings.read(data)
    except SectionError:
        return False
    return True


@pytest.mark.parametrize(("key", "value", "is_taken", "is_marked_good"), VALUES)
def test_program_and_editor_judge_a_value(key: str, value: str, *, is_taken: bool, is_marked_good: bool) -> None:
    data = tomllib.loads(f"{key} = {value}\n")

    assert (is_taken, is_marked_good) == (takes(data), is_valid(data))


def test_editor_never_marks_what_the_program_takes() -> None:
    assert [] == [case for case in VALUES if case[2] and not case[3]]


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
def test_whatever_the_program_takes_the_editor_does(key: str, value: str) -> None:
    text = f"{key} = {value}\n" + ("" if key == "databases.a.path" else 'databases.a.path = "a"\n')
    data = tomllib.loads(text)

    assert is_valid(data) or not takes(data)
