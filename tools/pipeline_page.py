"""
The columns of the results of the pipeline, as tables in a page.

    python -m tools.pipeline_page docs/pipeline-results.md

rewrites the part between two markers. A test fails when the committed page differs from what this would write.
"""

from __future__ import annotations

import sys

from broker.pipeline.results import MEANINGS, RESULTS
from tools.marked import renew, rewrite


def render() -> str:
    """Return a heading and a table for each result, with a row for each column."""
    parts = []
    for name, schema in RESULTS.items():
        rows = [f"| {one.name} | {one.dataType.simpleString()} | {MEANINGS[name][one.name]} |" for one in schema]
        parts.append("\n".join([f"### {name}", "", "| Column | Type | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def renew_page(page: str) -> str:
    """Return the page with the tables made again. Raises ValueError: it lacks a marker."""
    return renew(page, {"results": render()}, "tools.pipeline_page")


if __name__ == "__main__":
    rewrite(sys.argv[1:], renew_page)
