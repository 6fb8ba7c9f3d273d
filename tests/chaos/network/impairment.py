"""
What can be wrong on the way from one host to another, and what of it a network can do; values only.

A way is one direction: from one host to another one. What it is like is one `Impairment`, replaced as a whole.
"""

from dataclasses import dataclass
from enum import Enum


class NetworkError(Exception):
    """A network, a host or a limit could not be made; the sentence names the command, and what it answered."""


class ImpossibleError(NetworkError):
    """This network cannot do that; `Network.can` tells beforehand."""


class Fault(Enum):
    """What a fault run may ask of its hosts; the values are words for its report."""

    CUT = "cut"
    DELAY = "delay"
    LOSS = "loss"
    DUPLICATION = "duplication"
    REORDERING = "reordering"
    RATE = "slow link"
    MTU = "small MTU"
    RESET = "reset"
    DISK = "full disk"
    MEMORY = "memory limit"
    DESCRIPTORS = "descriptor exhaustion"
    CLOCK = "clock step"


@dataclass(frozen=True, slots=True)
class Impairment:
    """
    What one way is like.

    Shape: `is_cut` nothing passes, and nobody is told. `delay` seconds; `jitter` up to so many seconds more, by dice,
    without a change of order. `loss`, `duplication`, `reordering` chances of each packet, 0 .. 1; a reordered one is
    held back until later ones have passed. `rate` bytes a second, None = no limit; a queue of a second stands before
    it, and what does not fit is dropped. `mtu` bytes of the largest IP packet, None = as the interfaces have it; larger
    ones are dropped: silently, or with `is_mtu_told` telling the sender by ICMP.
    """

    is_cut: bool = False
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    rate: float | None = None
    mtu: int | None = None
    is_mtu_told: bool = False

    @property
    def faults(self) -> frozenset[Fault]:
        """What a network must be able to do for it; empty = nothing is wrong."""
        found = {
            Fault.CUT: self.is_cut,
            Fault.DELAY: self.delay > 0 or self.jitter > 0,
            Fault.LOSS: self.loss > 0,
            Fault.DUPLICATION: self.duplication > 0,
            Fault.REORDERING: self.reordering > 0,
            Fault.RATE: self.rate is not None,
            Fault.MTU: self.mtu is not None,
        }
        return frozenset(fault for fault, is_asked in found.items() if is_asked)


WHOLE = Impairment()
CUT = Impairment(is_cut=True)


@dataclass(slots=True)
class Counts:
    """
    What became of the packets of one way while it was impaired; those of the fast path are not counted.

    Shape: `carried` passed on, copies included.
    """

    carried: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    cut: int = 0
    too_large: int = 0
