"""
How often an address may fail to prove who it is: so many at once, then one now and then.

The table is bounded; when it is full, the address that failed the longest ago is forgotten. While an address has to
wait it is told so, and nothing is logged, so the log stays readable. A right token counts all the same: nobody guesses
256 bits, and somebody behind the same address, or on the same machine, must not be able to lock its owner out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

BURST = 10  # failures at once: a person who mistypes, or a script with an old token that tries again
REFILL_SECONDS = 6.0  # for one more
ADDRESSES_MAX = 1024
_IPV6_PREFIX = 64  # what one customer has


@dataclass(slots=True)
class _Record:
    """Shape: `left` failures that are free, as of `at`, monotonic seconds."""

    left: float
    at: float


class Attempts:
    """The failures of the last minute, by address."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def wait_s(self, address: str, *, now: float) -> float:
        """Seconds until one more failure from this address is free; 0 = it is."""
        record = self._records.get(_key(address))
        if record is None:
            return 0.0
        return max(0.0, (1.0 - self._left(record, now)) * REFILL_SECONDS)

    def fail(self, address: str, *, now: float) -> None:
        """What was shown from this address was wrong."""
        key = _key(address)
        record = self._records.pop(key, None) or _Record(BURST, now)
        self._records[key] = _Record(max(0.0, self._left(record, now) - 1.0), now)
        if len(self._records) > ADDRESSES_MAX:
            self._records.popitem(last=False)

    def _left(self, record: _Record, now: float) -> float:
        return min(float(BURST), record.left + (now - record.at) / REFILL_SECONDS)


def _key(address: str) -> str:
    """The address; of IPv6 the network, else one machine would be 2**64 of them."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network((parsed, _IPV6_PREFIX), strict=False))
    return str(parsed)
