"""The configuration file as bytes, text and TOML; the places in it; and values as TOML."""

import codecs
import os
from pathlib import Path

import pytest

from broker.config.load import load_settings
from broker.config.toml import FILE_MAX_BYTES, KeyPath, SettingsSource, dotted, index_places, read_config, render_value
from broker.errors import SettingsError, Span

HINT = "correct the syntax, then check again"
UNCLOSED = "a string is not closed; end it with the quote with which it begins"


def problems(path: Path) -> list[str]:
    """What is wrong, without the directory."""
    try:
        read_config(path)
    except SettingsError as error:
        errors = error.errors
    else:
        return []
    return [error.shown.replace(f"{path.parent}/", "") for error in errors]


def written(tmp_path: Path, data: str | bytes) -> Path:
    path = tmp_path / "a.toml"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_good_file_is_read_with_its_places(tmp_path: Path) -> None:
    data, places = read_config(written(tmp_path, codecs.BOM_UTF8 + b"[a]\nb = 1\n"))

    assert {"a": {"b": 1}} == data
    assert "b = 1\n    ^" == places.excerpt(places.span(("a", "b")))


def test_only_a_plain_file_of_a_sane_size_is_read(tmp_path: Path) -> None:
    pipe, huge = tmp_path / "pipe", tmp_path / "huge.toml"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    key = written(tmp_path, "Bag Attributes\n-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----\n")

    assert [
        f"{tmp_path.name}: is a directory; name the TOML file in it",
        "pipe: is not a plain file; write the configuration to a file: it is read again later",
        "zero: is not a plain file; write the configuration to a file: it is read again later",
        "huge.toml: is larger than 4 MiB; name a configuration file; is this a log or a database?",
        "a.toml: is a key or a certificate in PEM form; name the TOML file that names it",
    ] == [line for path in (tmp_path, pipe, Path("/dev/zero"), huge, key) for line in problems(path)]
    assert [] == problems(written(tmp_path, "a = 1\n".ljust(FILE_MAX_BYTES, "#")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.chmod(0)

    assert ["a.toml: cannot be read: Permission denied; name a TOML file that exists and may be read"] == problems(path)


def test_other_encoding_is_refused_at_its_place(tmp_path: Path) -> None:
    lines = {
        codecs.BOM_UTF16_LE + "a = 1".encode("utf-16-le"): "1:1: TOML: the file is UTF-16; save it as UTF-8",
        "a = 1".encode("utf-16-be"): "1:1: TOML: the file is UTF-16; save it as UTF-8",
        "b = 'ä'".encode("latin-1"): "1:6: TOML: byte 0xe4 is not UTF-8; save it as UTF-8",
        b'a = 1\nb = "\xc3\xa4\xff"\n': "2:7: TOML: byte 0xff is not UTF-8; save it as UTF-8",
    }

    assert [[f"a.toml:{line}"] for line in lines.values()] == [problems(written(tmp_path, data)) for data in lines]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "[endpoint",
            f"a.toml:1:10: TOML: Expected ']' at the end of a table declaration; {HINT}\n[endpoint\n         ^",
        ),
        ('a = 1\r\nb = "x', f'a.toml:2:5: TOML: {UNCLOSED}\nb = "x\n    ^'),
        ('a = "b\nc = 1\n', f'a.toml:1:7: TOML: {UNCLOSED}\na = "b\n      ^'),
        ("a = 'b\nc = 'd'\n", f"a.toml:1:7: TOML: {UNCLOSED}\na = 'b\n      ^"),
        ("a = 'b'\nc = 'd\ne = \"f\"\n", f"a.toml:2:5: TOML: {UNCLOSED}\nc = 'd\n    ^"),
        ('a = """b\nc = "d"\n', f'a.toml:1:5: TOML: {UNCLOSED}\na = """b\n    ^'),
        ("a = 1\na = 2\n", "a.toml:2:1: TOML: a is here a second time; keep one of them\na = 2\n^"),
        ("a = \0\n", f"a.toml:1:5: TOML: Invalid value; {HINT}\na = \ufffd\n    ^"),
    ],
)  # fmt: skip
def test_mistake_is_shown_at_its_place(tmp_path: Path, text: str, shown: str) -> None:
    assert [shown] == problems(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "problem"), [("a = " + "[" * 5000, "nested too deeply"), ("a = " + "1" * 5000, "Exceeds the limit")]
)
def test_limits_of_the_parser_are_reported(tmp_path: Path, text: str, problem: str) -> None:
    (line,) = problems(written(tmp_path, text))

    assert line.startswith(f"a.toml:1:1: TOML: {problem}")


TEXT = '''# a comment
title = "x"

[a."b.c"]   # a table with a quoted name
one = [1, # first
  "two",
  [3, 4],
]
two.deep = { x = 1, 'y z' = "]" }
long = """
no = [key]
""""
time = 1979-05-27 07:32:00  # blanks inside
raw = \'\'\'it's\'\'\'

[[list]]
n = 1
[list.sub]
k = true
[[list]]
n = 'a#b'
'''


def _at(line: int, column: int, length: int) -> Span:
    return Span("f", line, column, length)


def test_key_and_value_are_found() -> None:
    expected: dict[KeyPath, tuple[Span | None, Span | None]] = {
        ("title",): (_at(2, 1, 5), _at(2, 9, 3)),
        ("a", "b.c"): (_at(4, 1, 9), None),
        ("a", "b.c", "one"): (_at(5, 1, 3), _at(5, 7, 11)),
        ("a", "b.c", "one", 1): (None, _at(6, 3, 5)),
        ("a", "b.c", "one", 2, 1): (None, _at(7, 7, 1)),
        ("a", "b.c", "two", "deep"): (_at(9, 1, 8), _at(9, 12, 22)),
        ("a", "b.c", "two", "deep", "y z"): (_at(9, 21, 5), _at(9, 29, 3)),
        ("a", "b.c", "long"): (_at(10, 1, 4), _at(10, 8, 3)),
        ("a", "b.c", "time"): (_at(13, 1, 4), _at(13, 8, 19)),
        ("a", "b.c", "raw"): (_at(14, 1, 3), _at(14, 7, 10)),
        ("list", 0): (_at(16, 1, 8), None),
        ("list", 0, "sub", "k"): (_at(19, 1, 1), _at(19, 5, 4)),
    }

    places = index_places(TEXT, source="f")

    assert expected == {path: (places.keys.get(path), places.values.get(path)) for path in expected}


def test_what_has_no_place_has_the_place_of_what_is_around_it() -> None:
    places = index_places("[a]\r\nb = [1]\r\n", source="f")

    found = [places.span(path) for path in (("a", "c"), ("a", "b", 7), ("z",))]

    assert [_at(1, 1, 3), _at(2, 5, 3), None] == found
    assert [_at(2, 5, 3), _at(2, 1, 1)] == [places.span(("a", "b")), places.span(("a", "b"), of_key=True)]


def test_origin_of_what_did_not_come_from_the_file() -> None:
    origins: dict[KeyPath, str | None] = {
        ("a", "b"): "VARIABLE",
        ("a", "b", 0): "VARIABLE",  # part of what the variable set
        ("made",): "flag",  # there only because a key below was set
        ("a",): None,  # stands in the file
        ("other",): None,
    }
    places = index_places("[a]\nb = [1]\n", source="f")
    places.elsewhere.update({("a", "b"): "VARIABLE", ("made", "by"): "flag"})

    assert origins == {path: places.origin(path) for path in origins}
    assert {None} == {places.span(path) for path, origin in origins.items() if origin}


def test_keys_and_values_are_written_as_toml_has_them() -> None:
    keys: dict[KeyPath, str] = {
        ("a", 0, "b"): "a[0].b",
        ("a", "b.c"): 'a."b.c"',
        ("",): '""',
        ("é",): '"é"',
        ("a\n",): r'"a\n"',
    }
    values = (
        ("a\tb", '"a\\tb"'),
        ("\u202e", '"\\u202e"'),
        (["a", 1, True], '["a", 1, true]'),
        ({"a b": 0.5}, '{"a b" = 0.5}'),
    )

    assert list(keys.values()) == [dotted(path) for path in keys]
    assert [text for _, text in values] == [render_value(value) for value, _ in values]


def test_settings_remember_file_variables_and_flags_and_no_other_variables(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("# a secret")
    environ = {"BROKER_LOG_LEVEL": "debug", "PASSWORD": "secret"}

    settings = load_settings(path, environ=environ, overrides={"endpoint.max_hops": "3"})

    source = settings.places.source
    assert SettingsSource(path, {"BROKER_LOG_LEVEL": "debug"}, {"endpoint.max_hops": "3"}) == source
    assert (str(path), "the environment") == (source.name, SettingsSource(None).name)
    assert "secret" not in repr(settings.places)
