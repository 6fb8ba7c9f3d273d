"""The columns of the results of the pipeline in docs/pipeline-results.md."""

from __future__ import annotations

from broker.pipeline.results import MEANINGS, RESULTS
from tools.pages.markers import table


def results() -> str:
    """Return a heading and a table for each result, with a row for each column."""
    return "\n\n".join(
        f"### {name}\n\n"
        + table(
            ("Column", "Type", ""),
            ((one.name, one.dataType.simpleString(), MEANINGS[name][one.name]) for one in schema),
        )
        for name, schema in RESULTS.items()
    )
