"""The functions of Arrow do what those of `pyarrow.compute` do, and cost less to come by."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from broker.journal import reader as kernel

NUMBERS = pa.chunked_array([[3, 1, None], [2, 1]])
OTHERS = pa.chunked_array([[9, 9, 9], [9, 9]])
TABLE = pa.table({"number": NUMBERS, "word": ["a", "b", None, "d", "e"]})
FLAGS = pa.array([True, False, None, True, False])
ORDER = pa.array([4, 0])
ONE = pa.scalar(2, pa.int64())
AS_TEXT = pa.schema([("number", pa.string()), ("word", pa.large_string())])


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (kernel.rows_where(TABLE, FLAGS), TABLE.filter(FLAGS)),
        (kernel.rows_at(TABLE, ORDER), TABLE.take(ORDER)),
        (kernel.order_of(NUMBERS), pc.sort_indices(NUMBERS)),
        (kernel.converted(NUMBERS, pa.string()), NUMBERS.cast(pa.string())),
        (kernel.table_as(TABLE, AS_TEXT), TABLE.cast(AS_TEXT)),
        (kernel.first_known(NUMBERS, OTHERS), pc.coalesce(NUMBERS, OTHERS)),
        (kernel.are_equal(NUMBERS, ONE), pc.equal(NUMBERS, ONE)),
        (kernel.are_among(NUMBERS, ORDER), pc.is_in(NUMBERS, value_set=ORDER)),
        (kernel.are_from(NUMBERS, ONE), pc.greater_equal(NUMBERS, ONE)),
    ],
)
def test_a_function_by_name_does_what_the_one_of_the_library_does(done: Any, expected: Any) -> None:
    assert expected == done


def test_a_value_that_the_other_type_does_not_have_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        kernel.converted(pa.array([300]), pa.int8())


def test_the_functions_that_are_not_needed_are_not_made() -> None:
    program = "import sys, broker.journal.reader; print('pyarrow.compute' in sys.modules)"

    assert (
        "False\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    )
