"""The pictures of the documentation: each is shown, stands alone, and is what the code is."""

import contextlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from broker.conversation.state import TRANSITIONS, ConversationState, Happening
from broker.protocol.layout import HEADER_BYTES
from broker.routing.decide import RouteClass
from broker.routing.explain import TITLES
from broker.security.seal import KEY_ID_BYTES, NO_ECHO, SealRefusedError, clear_part, open_frame, read_box, seal
from tests.docs.page import DOCS

PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
DRAWN = sorted(DOCS.rglob("*.svg"))  # charts and the terminal too
PAGES = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
SVG = "{http://www.w3.org/2000/svg}"
WIDTH = 640
BYTES_MAX = 10_000  # they go with the source distribution
ELSEWHERE = re.compile(r"href|@import|@font-face|url\((?!#)|<script|<image|<foreignObject|<!DOCTYPE", re.IGNORECASE)


def drawn(name: str) -> ET.Element:
    return ET.parse(DOCS / "pictures" / f"{name}.svg").getroot()


def groups(name: str, attribute: str) -> Iterator[tuple[str, ET.Element]]:
    """The groups of a picture that say what they show, in the order of the picture."""
    return ((group.attrib[attribute], group) for group in drawn(name).iter(f"{SVG}g") if attribute in group.attrib)


def texts(element: ET.Element) -> list[str]:
    return ["".join(one.itertext()) for one in element.iter(f"{SVG}text")]


def contracts() -> dict[str, Any]:
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return {one["name"]: one for one in settings["tool"]["importlinter"]["contracts"]}


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture.stem)
def test_a_picture_is_whole_and_for_dark_pages_too_and_a_page_shows_it_with_words(picture: Path) -> None:
    text, root = picture.read_text(encoding="utf-8"), ET.parse(picture).getroot()
    named = {one.get("id"): one.text for one in root}
    link = rf"!\[.+?\]\((?:docs/|\.\./)?{picture.relative_to(DOCS)}\)"

    assert any(re.search(link, page.read_text("utf-8")) for page in PAGES)
    assert None is ELSEWHERE.search(text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert "@media (prefers-color-scheme: dark)" in text
    assert "img" == root.get("role")
    assert all(named[one] for one in str(root.get("aria-labelledby")).split())
    assert [f"{SVG}title", f"{SVG}desc"] == [one.tag for one in root][:2]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_small_and_all_of_it_is_inside(picture: Path) -> None:
    root = ET.parse(picture).getroot()
    height = float(str(root.get("height")))

    assert picture.stat().st_size <= BYTES_MAX
    assert f"0 0 {WIDTH} {height:.0f}" == root.get("viewBox")
    for box in root.iter(f"{SVG}rect"):
        x, y, width, tall = (float(str(box.get(name))) for name in ("x", "y", "width", "height"))
        assert 0 <= x < x + width <= WIDTH, ET.tostring(box)
        assert 0 <= y < y + tall <= height, ET.tostring(box)
    for one in root.iter(f"{SVG}text"):
        assert 0 < float(str(one.get("x"))) < WIDTH, ET.tostring(one)
        assert 0 < float(str(one.get("y"))) < height, ET.tostring(one)


def test_the_states_of_a_dialog_and_what_changes_them_are_those_of_the_code() -> None:
    shown = {
        (ConversationState[before], Happening[happening]): ConversationState[arrow.attrib["data-to"]]
        for befores, arrow in groups("states", "data-from")
        for before in befores.split()
        for happening in arrow.attrib["data-happening"].split()
    }

    assert TRANSITIONS == shown
    for _, arrow in groups("states", "data-from"):
        words = " ".join(texts(arrow))
        assert all(Happening[one] in words for one in arrow.attrib["data-happening"].split()), words
    for name, box in groups("states", "data-state"):
        assert [ConversationState[name], name.lower().replace("_", " ")] == texts(box)
    assert set(ConversationState) == {ConversationState[name] for name, _ in groups("states", "data-state")}


def test_the_layers_are_those_that_are_checked() -> None:
    layers = [" ".join(one.split(" : ")) for one in contracts()["Imports run one way"]["layers"]]
    pure = contracts()["The pure core does no input or output"]["source_modules"]
    rows = list(groups("layers", "data-layer"))

    assert layers == [row for row, _ in rows]
    assert layers == [" ".join(texts(group)[:-1]) for _, group in rows]
    assert set(pure) == {
        f"broker.{name}"
        for _, group in rows
        for name, box in zip(texts(group), group.iter(f"{SVG}rect"), strict=False)
        if box.get("class") == "good"
    }


def test_the_steps_of_matching_and_the_classes_are_those_of_the_answers() -> None:
    steps = [(number, *texts(step)[:2]) for number, step in groups("matching", "data-step")]
    classes = [one.split(". ")[1] for one in texts(drawn("matching")) if re.match(r"\d\. ", one)]

    assert [(str(number), str(number), title) for number, title in enumerate(TITLES)] == steps
    assert list(RouteClass) == classes


def test_what_may_change_in_a_sealed_frame_is_what_the_seal_leaves_out() -> None:
    key, (clear, nonce) = AESGCM(bytes(32)), clear_part(bytes(KEY_ID_BYTES), NO_ECHO, 1)
    frame = seal(key, nonce, bytes(HEADER_BYTES) + clear, b"body")
    box, free = read_box(frame[HEADER_BYTES:]), set()
    for at in range(HEADER_BYTES):
        with contextlib.suppress(SealRefusedError):
            open_frame(key, box, bytes((*frame[:at], 1, *frame[at + 1 :])), HEADER_BYTES)
            free.add(at)
    fields = {"hop_count": {6}, "time_consumed": {12, 13, 14, 15}}  # docs/protocol.md, sections 3 and 5

    (shown,) = (texts(group)[0] for name, group in groups("sealed", "data-part") if name == "changed")

    assert free == set().union(*(fields[name] for name in shown.split(", ")))


def test_the_way_of_a_message_has_the_steps_of_the_text_beside_it() -> None:
    page = (DOCS / "contributors" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("\n## The way of a message\n")[1].split("\n## ")[0]

    told = re.findall(r"^(\d)\. ", section, re.MULTILINE)
    shown = [text for text in texts(drawn("way")) if text.isdigit()]

    assert told == sorted(shown)
