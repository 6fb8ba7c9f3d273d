from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import pytest

from broker.config import values as value
from broker.config.toml import KeyPath
from broker.config.values import Reload, Section, Setting, kind_at, names_at, section, sections, setting, settings_of

HOPS = value.integer(1, 9, unit="hops")
FLAG = value.flag()
WORDS = value.list_of(value.text("word", longest=5))


class _Leaf(Section):
    hops: Annotated[int, HOPS] = setting(3, "How far.", reason="Far enough.", reload=Reload.LIVE)
    names: Annotated[tuple[str, ...], WORDS] = setting(
        None, "Who.", reason="People.", reload=Reload.RESTART, said="the host", factory=lambda: ["me"]
    )


class _Entry(Section):
    on: Annotated[bool, FLAG] = setting(default=False, description="Whether.", reason="No.", reload=Reload.RECONNECT)
    words: Annotated[tuple[str, ...], WORDS] = setting(..., "Which.", reason="None.", reload=Reload.LIVE)


class _Root(Section):
    leaf: _Leaf = section(_Leaf)
    entries: Mapping[str, _Entry] = sections()


def test_every_setting_is_listed_in_order_with_all_it_carries() -> None:
    expected = [
        (("leaf", "hops"), HOPS, "3", False, "How far.", "Far enough.", Reload.LIVE),
        (("leaf", "names"), WORDS, "the host", True, "Who.", "People.", Reload.RESTART),
        (("entries", "NAME", "on"), FLAG, "false", False, "Whether.", "No.", Reload.RECONNECT),
        (("entries", "NAME", "words"), WORDS, "", False, "Which.", "None.", Reload.LIVE),
    ]

    assert [Setting(*one) for one in expected] == list(settings_of(_Root))


@pytest.mark.parametrize(
    ("default", "text"), [("1s", '"1s"'), (["a", "b"], '["a", "b"]'), ([], "[]"), (True, "true"), (7, "7")]
)
def test_default_is_shown_as_the_file_would_hold_it(default: object, text: str) -> None:
    class Sample(Section):
        one: Annotated[object, FLAG] = setting(default, "", reason="", reload=Reload.LIVE)

    assert [text] == [one.default for one in settings_of(Sample)]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ((), ["leaf", "entries"]),
        (("leaf",), ["hops", "names"]),
        (("entries",), []),
        (("entries", "any"), ["on", "words"]),
        (("entries", "any", "on"), []),
        (("nothing",), []),
        (("nothing", "below"), []),
        (("leaf", "hops", "below"), []),
    ],
)
def test_names_at_a_path(path: KeyPath, names: list[str]) -> None:
    assert names == names_at(_Root, path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (("leaf", "hops"), HOPS),
        (("entries", "any", "on"), FLAG),
        (("leaf",), None),
        (("entries",), None),
        (("entries", "any"), None),
        (("leaf", "hops", "below"), None),
        ((), None),
    ],
)
def test_kind_at_a_path(path: KeyPath, kind: value.ValueKind | None) -> None:
    assert kind == kind_at(_Root, path)
