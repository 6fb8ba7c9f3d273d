"""
Which dialogs are sampled: a hash of the conversation id against a fraction, the same on every instance.

The rule is part of the format of flow records, so that all instances keep or skip the same dialogs and paths stay
whole. Let `a` and `b` be the first and the last eight bytes of the conversation id as big-endian integers, and

    fin(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    mix   =  fin(fin(a + 0x9E3779B97F4A7C15) ^ b)

all modulo 2^64. A dialog is sampled when the upper 53 bits of `mix`, as a fraction of 2^53, are less than the sample.
So whoever samples less keeps a part of what others keep. Ids need not be random; `mix` is no secret, and whoever makes
ids can see to it that a dialog is sampled or not.

Source: fin is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014, with the constants of Stafford's variant 13).
"""

from __future__ import annotations

import math

SAMPLE_BITS = 53  # as many as a double has, so that the limit is exact
KNOWN_MAX = 16_384  # conversations whose verdict is remembered, 2 MB: a mix costs a microsecond in Python

EVERY_DIALOG = 2**SAMPLE_BITS  # the limit of a sample of 1.0

_ALL_OR_NONE = (0, EVERY_DIALOG)
_WORD = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(conversation_id: bytes) -> int:
    """64 bits that look random, of 16 bytes that need not."""
    first, last = int.from_bytes(conversation_id[:8], "big"), int.from_bytes(conversation_id[8:], "big")
    return _finish(_finish(first + _GAMMA & _WORD) ^ last)


class Sample:
    """
    A fraction of all dialogs.

    Shape: `limit` 0 .. 2^53: what the upper 53 bits of `mix` have to be less than.
    """

    __slots__ = ("_known", "limit")

    def __init__(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise AssertionError(f"a sample of {fraction}: it is 0 .. 1")
        self.limit = math.ceil(math.ldexp(fraction, SAMPLE_BITS))
        self._known: dict[bytes, bool] = {}

    def __contains__(self, conversation_id: bytes) -> bool:
        """Whether this dialog is sampled."""
        if self.limit in _ALL_OR_NONE:
            return self.limit > 0
        is_in = self._known.get(conversation_id)
        if is_in is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            is_in = self._known[conversation_id] = mix(conversation_id) >> (64 - SAMPLE_BITS) < self.limit
        return is_in


def _finish(word: int) -> int:
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31
