"""How the pages read: plain words, short sentences, "you" in every guide, no names of tests, and not too much of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import DOCS
from tests.docs.test_words import found_in

WORDS_MAX = 58_000  # of all pages for users; those of the wire protocol and generated parts apart
SENTENCE_MAX = 40
PARAGRAPH_MAX = 90
OF_CONTRIBUTORS = "contributors/"
IN_FULL = "protocol.md"  # for those who write another implementation
PAGES = sorted(page for page in DOCS.rglob("*.md") if "contributors/decisions" not in page.as_posix())
GENERATED = re.compile(r"<!-- [\w-]+: begin, made by .*?-->.*?<!-- [\w-]+: end -->", re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)|\n(?=#)")
SENTENCE = re.compile(r"(?<=[.!?])[)\"'*_]*\s+|(?<=[.!?:])\n")


def is_for_users(page: Path) -> bool:
    return not page.relative_to(DOCS).as_posix().startswith(OF_CONTRIBUTORS)


def prose(text: str) -> Iterator[str]:
    """The paragraphs, list items and cells of a page, without code blocks and the targets of links."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("\n\n", text), flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in BLOCK.split(text):
        if block.strip().startswith("|"):
            yield from (cell.strip() for cell in block.strip().strip("|").split(" | "))
        else:
            yield block.strip().lstrip("#-* ")


def faults(text: str) -> Iterator[str]:
    """The sentences and paragraphs of a page that are hard to read."""
    for block in prose(text):
        words = len(block.split())
        if words > PARAGRAPH_MAX:
            yield f"a paragraph of {words} words: {block[:80]}"
        for sentence in SENTENCE.split(block):
            if len(sentence.split()) > SENTENCE_MAX:
                yield f"a sentence of {len(sentence.split())} words: {sentence[:80]}"
        for found in found_in(re.sub(r"`[^`]*`", "", block)):
            yield f"{found}: {block[:80]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_reads_well(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert [] == list(faults(text))
    assert not is_for_users(page) or not re.search(r"\btests/[a-z]+/", text)
    assert page.parent.name != "how-to" or re.search(r"\b[Yy]ou\b", text)


def test_the_pages_for_users_can_be_read() -> None:
    pages = [page for page in PAGES if is_for_users(page) and page.name != IN_FULL and page.parent.name != "errors"]
    texts = [GENERATED.sub("", page.read_text(encoding="utf-8")) for page in pages]

    # The bars of tables are no words.
    assert WORDS_MAX >= sum(re.search(r"\w", word) is not None for text in texts for word in text.split())
