"""Names and GUIDs of applications: which are taken, and with which number the others are refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.client.arguments import check_name, check_text, guid_of
from broker.errors import ConversationError

GUID = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


@pytest.mark.parametrize("text", [GUID, str(GUID), str(GUID).upper(), f"{{{GUID}}}", GUID.hex])
def test_guid_is_read_however_it_is_written(text: uuid.UUID | str) -> None:
    assert GUID == guid_of(text)


@pytest.mark.parametrize("text", ["", "x", "5b0f3c1e", None, 5, b"5b0f3c1e"])
def test_what_is_no_guid_is_refused(text: Any) -> None:
    with pytest.raises(ConversationError, match="is no GUID") as caught:
        guid_of(text)

    assert 8413 == caught.value.number


@pytest.mark.parametrize("name", ["s", "s" * 512, "é" * 256])
def test_name_that_fits_is_taken(name: str) -> None:
    check_name(name, "target")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", r"the target's name '' does not have 1 \.\. 512 bytes"),
        ("s" * 513, r"does not have 1 \.\. 512 bytes"),
        ("é" * 257, r"does not have 1 \.\. 512 bytes"),
        ("\ud800", "cannot be written as UTF-8"),
    ],
)
def test_name_that_does_not_fit_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(ConversationError, match=sentence) as caught:
        check_name(name, "target")

    assert 8412 == caught.value.number


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["s"]])
def test_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(ConversationError, match="the target's name has to be text") as caught:
        check_name(name, "target")

    assert 8412 == caught.value.number


def test_text_has_the_length_of_its_utf_8() -> None:
    assert (0, 2) == (check_text("", "it"), check_text("é", "it"))


def test_text_that_is_no_utf_8_is_refused_under_the_number_that_is_asked_for() -> None:
    with pytest.raises(ConversationError, match=r"the description '\\udcff' cannot be written as UTF-8") as caught:
        check_text("\udcff", "the description", 8424)

    assert 8424 == caught.value.number
