"""The measurement of a permission on the pass: both passes carry the same frames, and the permission is asked."""

from __future__ import annotations

import pytest

from broker.bench import permissions
from broker.bench.permissions import YARDSTICK, measure
from broker.bench.traffic import service_names
from tests.support.kernel import EVERY_KERNEL


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
def test_both_passes_are_measured_for_one_service_and_for_many(kernel: str) -> None:
    rows = measure(kernel=kernel, rounds=1, repeats=2)

    assert [(YARDSTICK, True), ("1,001 grants", False)] * 2 == [(row.subject, row.is_yardstick) for row in rows]
    assert all(row.figure > 0 for row in rows)
    assert 2 == len({row.case for row in rows})


def test_grants_permit_what_is_sent_and_nothing_else() -> None:
    names = service_names(3)

    profile = permissions._granted(names)

    assert [True, True, True, False] == [profile.permits(name) for name in (*names, "//bench/Other")]
