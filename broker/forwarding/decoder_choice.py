"""
Which decoder makes columns of records: the compiled one where it was built, else its twin in plain Python.

Both do the same (tests/property/test_decoders.py). Whoever forces the kernel in plain Python forces this one as well.
"""

from __future__ import annotations

from broker.forwarding.columns import ColumnDecoder, PlainDecoder

try:
    from broker.forwarding.compiled_columns import CompiledDecoder
except ImportError:
    DECODERS: dict[str, type[ColumnDecoder]] = {PlainDecoder.name: PlainDecoder}
else:
    DECODERS = {CompiledDecoder.name: CompiledDecoder, PlainDecoder.name: PlainDecoder}


def make_decoder(forced: str = "") -> ColumnDecoder:
    """The decoder of this name; when it is empty or there is none of it, the fastest there is."""
    return DECODERS.get(forced, next(iter(DECODERS.values())))()
