"""The part of a page that is made of the code: between two markers, of which the first says who makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def markers(word: str, tool: str) -> tuple[str, str]:
    """The two lines around a part. Shape: `tool` as `python -m` has it."""
    return f"<!-- {word}: begin, made by python -m {tool} -->", f"<!-- {word}: end -->"


def renew(page: str, parts: Mapping[str, str], tool: str) -> str:
    """
    A page with its parts made anew, by the words of their markers.

    Raises:
        ValueError: the page lacks a marker.
    """
    for word, text in parts.items():
        begin, end = markers(word, tool)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page lacks a marker of {word}")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def rewrite(paths: Iterable[str], renew_page: Callable[[str], str]) -> None:
    """Renew the pages named."""
    for path in map(Path, paths):
        path.write_text(renew_page(path.read_text(encoding="utf-8")), encoding="utf-8")
