"""What is asked of a synthetic history about a change of its routes, by every engine alike."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from broker.pipeline.plan.question import Question, read_question
from broker.pipeline.synthetic.history import TRUTH
from broker.pipeline.synthetic.scripts import CHANGE, ROUTES
from broker.pipeline.synthetic.world import address_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def question_of(journal: Path) -> Question:
    """The change that the generator proposes. Addresses are told, so that nobody has to learn them."""
    truth = journal / TRUTH
    names = json.loads((truth / "truth.json").read_text(encoding="utf-8"))["instances"]
    addresses = [f"{address_of(name)}={name}" for name in names]
    return read_question(before=truth / ROUTES, change=truth / CHANGE, addresses=addresses, now=NOW)
