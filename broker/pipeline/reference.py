"""
The tables of the results' columns, made from the schemas and the meanings beside them: page and program cannot differ.

`docs/pipeline.md` is written by hand around two markers; what stands between them is made here:

    python -m broker.pipeline.reference docs/pipeline.md

rewrites that part. A test fails when the page differs from what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker.pipeline.schema import MEANINGS, RESULTS

BEGIN = "<!-- results: begin, made by python -m broker.pipeline.reference -->"
END = "<!-- results: end -->"


def render_reference() -> str:
    """Markdown: a heading and a table for each result, a row for each column."""
    parts = []
    for name, schema in RESULTS.items():
        says = MEANINGS[name]
        rows = [f"| {field.name} | {field.dataType.simpleString()} | {says[field.name]} |" for field in schema]
        parts.append("\n".join([f"### {name}", "", "| Column | Type | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def renew_page(page: str) -> str:
    """
    The page with the part between the markers made anew.

    Raises:
        ValueError: the page lacks a marker.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {END if begin else BEGIN}")
    return f"{before}{BEGIN}\n\n{render_reference()}\n{END}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(renew_page(target.read_text(encoding="utf-8")), encoding="utf-8")
