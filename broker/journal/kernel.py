"""
The functions of Arrow that journals are read with, asked for by name.

`pyarrow.compute` makes a function with a docstring and a signature of each of the three hundred there are, which takes
as long as reading a small journal. Methods of tables and arrays that need one of these import it too (`filter`, `take`,
`cast`, `sort_by`, `dictionary_encode`). Who reads journals asks here instead, where `pyarrow.compute` has it from. What
each does is on Arrow's page "Compute Functions", under its name.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow._compute import CastOptions, SetLookupOptions, call_function


def rows_where(table: pa.Table, chosen: Any) -> pa.Table:
    """The rows for which an array of booleans is true, in their order."""
    return call_function("filter", [table, chosen])


def rows_at(table: pa.Table, numbers: pa.Array) -> pa.Table:
    """The rows with these numbers, in the order of the numbers."""
    return call_function("take", [table, numbers])


def order_of(values: Any) -> pa.Array:
    """The numbers of the rows, the least value first; equal ones as they stand."""
    return call_function("sort_indices", [values])


def converted(values: Any, form: pa.DataType) -> Any:
    """
    The values as another type.

    Raises:
        pa.ArrowInvalid: a value that the type does not have.
    """
    return call_function("cast", [values], CastOptions.safe(form))


def table_as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the types of a schema that has its columns. Raises as `converted`."""
    columns = [converted(table.column(number), form) for number, form in enumerate(schema.types)]
    return pa.Table.from_arrays(columns, schema=schema)


def first_known(values: Any, others: Any) -> Any:
    """Each value, or what stands in the same row of the others where there is none."""
    return call_function("coalesce", [values, others])


def are_equal(values: Any, one: pa.Scalar) -> Any:
    """In which rows the value is this one."""
    return call_function("equal", [values, one])


def are_among(values: Any, wanted: pa.Array) -> Any:
    """In which rows the value is one of these."""
    return call_function("is_in", [values], SetLookupOptions(wanted))


def are_from(values: Any, least: pa.Scalar) -> Any:
    """In which rows the value is this one or greater."""
    return call_function("greater_equal", [values, least])
