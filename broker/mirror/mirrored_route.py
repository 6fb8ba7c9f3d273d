"""
What one prober knows of a mirrored route: which of its two addresses is the principal, and whom to ask next.

A prober is a gateway or an endpoint that has frames for one (service, broker instance). It sends frames to
`principal`, and to nobody while that is None. The states and what changes them are the table in `standing`, the
back-off is in `asking`; here both are put together with the epoch, what is shown, and what is alarming.

Rules of the file: no clock, no chance, no I/O. `now` is monotonic seconds and never falls. Every method returns the
addresses that must be sent a PROBE now; when none happens, `due` says when to call `on_time`.

What the caller owes: everything that comes over one link in the order in which it came, and nothing of a link after
`on_unreachable` for it. More is not needed. An answer that is older than what was heard since can then only be one that
crossed with a role change; believing it costs frames that are refused by their receiver, whose epoch fences it, and
whoever carries frames has the principal asked when one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Generic, TypeVar

from broker.mirror.asking import ProbeSchedule
from broker.mirror.role import EPOCH_TOLD_MAX, MirrorRole
from broker.mirror.standing import ASKING, ON_USE, PRINCIPAL, TRANSITIONS, MirrorEvent, MirrorSide, MirrorState

Address = TypeVar("Address", bound=Hashable)
CATCH_UP_MAX = 100  # failovers that an alarm may advise: each raises the epoch by one
CLAIMS = frozenset({MirrorEvent.CLAIMS_HIGHER, MirrorEvent.CLAIMS_EQUAL})


class MirroredRouteState(IntEnum):
    """
    What event 144, Broker:Mirrored Route State Changed, tells; its numbers, and one for a route not used so far.

    OPERATIONAL: the principal is known, and the partner said `mirror` when it was last asked. PRINCIPAL_ONLY: the
    partner did not. NOT_OPERATIONAL: frames wait until one claims to be the principal.
    """

    NOT_USED = 0
    OPERATIONAL = 1
    PRINCIPAL_ONLY = 2
    NOT_OPERATIONAL = 3


@dataclass(frozen=True, slots=True)
class AddressState:
    """
    What is known of one address.

    Shape: `asked_at`, `answered_at` monotonic seconds, None when it never was; `role` and `epoch` as last answered;
    `problem` why that does not count any more, empty when it does.
    """

    asked_at: float | None = None
    answered_at: float | None = None
    role: MirrorRole | None = None
    epoch: int | None = None
    problem: str = ""


class MirroredRoute(Generic[Address]):
    """
    One (service, broker instance) behind two addresses. Changed by its methods only.

    Args:
        address: ADDRESS of the route.
        mirror_address: its MIRROR_ADDRESS; another one.
        jitter: a number in [0, 1), a new one each time.

    Shape: `epoch` the highest that was ever believed; it never falls.
    """

    def __init__(self, address: Address, mirror_address: Address, jitter: Callable[[], float]) -> None:
        if address == mirror_address:
            raise ValueError(f"both addresses of a mirrored route are {address}")
        self.addresses: tuple[Address, Address] = (address, mirror_address)
        self.epoch = 0
        self.standing = MirrorState.NEVER_USED
        self._seen: dict[Address, AddressState] = dict.fromkeys(self.addresses, AddressState())
        self._heard: dict[Address, MirrorEvent] = {}
        self._claimants: set[Address] = set()  # who has claimed `epoch`
        self._stale: dict[Address, str] = {}
        self._met: dict[Address, str] = {}
        self._asking = ProbeSchedule(self.addresses, jitter)

    @property
    def principal(self) -> Address | None:
        """Where frames may go now; None while they must wait."""
        side = PRINCIPAL.get(self.standing)
        return None if side is None else self.addresses[side.value]

    @property
    def state(self) -> MirroredRouteState:
        """What is shown of it."""
        if self.standing is MirrorState.NEVER_USED:
            return MirroredRouteState.NOT_USED
        side = PRINCIPAL.get(self.standing)
        if side is None:
            return MirroredRouteState.NOT_OPERATIONAL
        partner = self._seen[self.addresses[1 - side.value]]
        if partner.role is MirrorRole.MIRROR and not partner.problem and _is_answered(partner):
            return MirroredRouteState.OPERATIONAL
        return MirroredRouteState.PRINCIPAL_ONLY

    @property
    def due(self) -> float | None:
        """When `on_time` is to be called, monotonic seconds; None while nobody has to be asked."""
        return self._asking.due

    @property
    def seen(self) -> Mapping[Address, AddressState]:
        """What is known of each address."""
        return self._seen

    @property
    def alarm(self) -> str:
        """
        What an administrator has to look at, empty when nothing.

        That both have claimed one epoch is told until a failover raises it; that an address shows a stale copy, until
        something else is heard of it; that both lead to one instance, and are no pair, until one of them does not.
        """
        texts = list(self._stale.values())
        first, second = self.addresses
        if self._met.get(first, "") == self._met.get(second) != "":
            texts.insert(0, f"{first} and {second} both lead to {self._met[first]}: correct one of them")
        elif len(self._claimants) > 1:
            texts.insert(0, f"{first} and {second} have both claimed to be the principal with epoch {self.epoch}")
        return "; ".join(texts)

    def use(self, now: float) -> tuple[Address, ...]:
        """Somebody has a frame to send. To be called for the first one; calling it again does no harm."""
        before = self.standing
        self.standing = ON_USE[before]
        return self._ask(before, now, has_changed=False)

    def meet(self, address: Address, instance: str) -> None:
        """Which instance is there, in words that only one instance has; empty when it does not tell."""
        self._met[address] = instance

    def on_reply(self, address: Address, role: str, epoch: int, now: float) -> tuple[Address, ...]:
        """
        A PROBE_REPLY came, asked for or not: who takes over, or stands back, says so to everybody that has asked.

        A role that is none counts as `unknown`, and so does any role with an epoch above EPOCH_TOLD_MAX: no pair
        reaches it by failovers, and the right instance could never claim a higher one.
        """
        answer = AddressState(self._seen[address].asked_at, now, MirrorRole.of(role), epoch)
        if not 0 <= epoch <= EPOCH_TOLD_MAX:
            answer = replace(answer, role=MirrorRole.UNKNOWN, epoch=None, problem=f"answered with the epoch {epoch}")
        self._seen[address] = answer
        return self._hear(address, self._weigh(answer), now)

    def on_unreachable(self, address: Address, problem: str, now: float) -> tuple[Address, ...]:
        """A link to it was lost, or none could be made. A link closed for want of use is not lost."""
        self._seen[address] = replace(self._seen[address], problem=problem or "out of reach")
        self._met.pop(address, None)
        return self._hear(address, MirrorEvent.LOST, now)

    def on_time(self, now: float) -> tuple[Address, ...]:
        """It is `due`, or may be."""
        return self._ask(self.standing, now, has_changed=False)

    def _weigh(self, answer: AddressState) -> MirrorEvent:
        if answer.role is not MirrorRole.PRINCIPAL or answer.epoch is None:
            return MirrorEvent.DENIES
        if answer.epoch > self.epoch:
            return MirrorEvent.CLAIMS_HIGHER
        return MirrorEvent.CLAIMS_EQUAL if answer.epoch == self.epoch else MirrorEvent.CLAIMS_LOWER

    def _hear(self, address: Address, word: MirrorEvent, now: float) -> tuple[Address, ...]:
        before = self.standing
        has_changed = self._heard.get(address) is not word
        self._heard[address] = word
        self.standing = TRANSITIONS[before, MirrorSide(self.addresses.index(address)), word]
        self._stale.pop(address, None)
        epoch = self._seen[address].epoch
        if word is MirrorEvent.CLAIMS_LOWER:
            can_catch_up = epoch is not None and self.epoch - epoch <= CATCH_UP_MAX
            self._stale[address] = (
                f"{address} claims to be the principal with epoch {epoch} after epoch {self.epoch}: a stale copy, or"
                " one that was restored: if that was meant, ALTER this route with its two addresses exchanged, or"
                f" restart this instance{f', or fail over past {self.epoch}' if can_catch_up else ''}"
            )
        elif word in CLAIMS and before is not MirrorState.NEVER_USED and epoch is not None:
            if epoch > self.epoch:
                self.epoch = epoch
                self._claimants.clear()
            self._claimants.add(address)
        return self._ask(before, now, has_changed=has_changed)

    def _ask(self, before: MirrorState, now: float, *, has_changed: bool) -> tuple[Address, ...]:
        if self.standing not in ASKING:
            self._asking.stop()
            return ()
        if before not in ASKING:
            self._asking.begin(now)
        elif has_changed:
            self._asking.hasten(now)
        asked = self._asking.take(now)
        for address in asked:
            self._seen[address] = replace(self._seen[address], asked_at=now)
        return asked


def _is_answered(seen: AddressState) -> bool:
    return seen.answered_at is not None and (seen.asked_at is None or seen.answered_at >= seen.asked_at)
