r"""
Which views there are, and which columns each has, as views themselves.

`sys.system_views` and `sys.system_columns` are the original's names for it. What a person finds with them is what the
`\d` of `broker sql` and the completion of names go by, so that they know a daemon's own views, of whatever release.

Source: Transact-SQL reference, "sys.system_views", "sys.system_columns".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

SYSTEM_VIEWS = "sys.system_views"
SYSTEM_COLUMNS = "sys.system_columns"
VIEW_COLUMNS = ("name", "object_id", "schema_id", "type", "type_desc", "is_ms_shipped", "schema_name", "is_instance")
COLUMN_COLUMNS = ("object_id", "name", "column_id", "schema_name", "view_name")

_SYS_SCHEMA = 4  # the number of the schema `sys` in the original


def view_rows(
    of_file: Mapping[str, Sequence[str]], of_instance: Mapping[str, Sequence[str]]
) -> Iterator[tuple[object, ...]]:
    """
    `sys.system_views`, by name.

    Shape: the columns of each view, by its name with the schema; negative numbers, as the original's own objects have.
    """
    for number, name in _numbered(of_file, of_instance):
        schema, _, view = name.partition(".")
        yield view, number, _SYS_SCHEMA, "V", "VIEW", True, schema, name in of_instance


def column_rows(
    of_file: Mapping[str, Sequence[str]], of_instance: Mapping[str, Sequence[str]]
) -> Iterator[tuple[object, ...]]:
    """`sys.system_columns`, by view and in the order in which `SELECT *` gives them."""
    known = {**of_file, **of_instance}
    for number, name in _numbered(of_file, of_instance):
        schema, _, view = name.partition(".")
        for place, column in enumerate(known[name], 1):
            yield number, column, place, schema, view


def _numbered(
    of_file: Mapping[str, Sequence[str]], of_instance: Mapping[str, Sequence[str]]
) -> Iterator[tuple[int, str]]:
    """Each view with its number."""
    for place, name in enumerate(sorted({*of_file, *of_instance}), 1):
        yield -place, name
