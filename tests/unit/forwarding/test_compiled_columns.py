"""The compiled decoder is built with the numbers of the modules in Python; all else is in test_decoders.py."""

from __future__ import annotations

import pytest

from broker.forwarding import columns, kernels

compiled = pytest.importorskip("broker.forwarding.compiled_columns", reason="no compiler built it")


def test_it_is_the_first_choice() -> None:
    assert isinstance(kernels.make_decoder(), compiled.CompiledDecoder)


def test_memory_of_a_ring_is_read_where_it_is() -> None:
    """A view of a part of a bytearray does as well as bytes, and is let go of afterwards."""
    memory = bytearray(8)
    decoder = compiled.CompiledDecoder()

    assert (0, []) == decoder.scan(memoryview(memory)[:0])
    assert 0 == decoder.fill(memoryview(memory)[:0], 0, columns.Legend()).rows
    memory += b"x"  # a view that is still held would forbid it
