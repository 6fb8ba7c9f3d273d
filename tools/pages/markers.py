"""The generated parts of a page: each is between two lines, of which the first names the tool."""

from collections.abc import Iterable, Mapping


def markers(word: str) -> tuple[str, str]:
    """Return the two lines around a part."""
    return f"<!-- {word}: begin, made by python -m tools.pages -->", f"<!-- {word}: end -->"


def renew(page: str, parts: Mapping[str, str]) -> str:
    """
    Return a page with the parts renewed that its markers name.

    Raises:
        ValueError: The page lacks a marker.
    """
    for word, text in parts.items():
        begin, end = markers(word)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page lacks a marker of {word}")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = [*columns]
    return "\n".join([_row(titles), "|---" * len(titles) + "|", *map(_row, rows)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
