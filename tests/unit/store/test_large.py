"""The limits of large bodies, which files that exist already are cut by."""

from __future__ import annotations

from broker.store.sqlite.schema import LARGE_BYTES, PART_BYTES


def test_files_are_cut_by_these_lengths() -> None:
    """What waits in a file was cut by them: another value would read it wrongly."""
    assert (LARGE_BYTES, PART_BYTES) == (1_048_576, 262_144)


def test_every_large_body_has_several_parts() -> None:
    assert LARGE_BYTES % PART_BYTES == 0
    assert LARGE_BYTES > PART_BYTES
