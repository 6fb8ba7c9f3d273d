"""A batch without more is one in which nothing was shed."""

from __future__ import annotations

from broker.journal.rows import RingBatch
from tests.support.records import Tape


def test_batch_knows_of_no_principals_unless_told() -> None:
    batch = RingBatch(Tape().take(), 1.5)

    assert (1.5, 0, {}) == (batch.offset, batch.shed, dict(batch.principals))
