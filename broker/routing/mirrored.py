"""
Mirrored routes: which of two addresses is the principal, which to probe, and how an instance acts on its own role.

No clock, no chance, no I/O: `now` is monotonic seconds and never falls, jitter is an argument.

*The prober's side.* A prober is a gateway or an endpoint that has frames for one (service, broker instance). A
`MirroredRoute` sends them to its `principal`, and nowhere while that is None. Its knowledge is one state of the table
`TRANSITIONS`: which address is the principal, which has declined since it was last accepted as the principal, and
whether both have to be asked. An address declines in one of three ways: by an answer (`mirror`, `unknown`), by a claim
with an epoch below one accepted before, or by being out of reach. "First" is the ADDRESS of the route, "second" its
MIRROR_ADDRESS. The table encodes these rules:

- Nothing is assumed about a route that is not used: the first use asks both (R6.1).
- The address that claims a higher epoch than any accepted before is the principal, whatever was accepted (R6.4).
- An address that claims the epoch accepted before is the principal if there is none. Next to another principal in use
  it changes nothing. Two that claim one epoch cannot be distinguished, so the one in use stays, or the one whose claim
  arrived first (R6.4).
- A claim with a lower epoch is from a stale copy. It counts as a refusal.
- When a principal declines, there is none. Only a claim makes the next one; till then both are asked (R6.3).
- An answer of the principal's partner, other than a claim, changes nothing (R6.2).

Every method returns the addresses that must be sent a PROBE now; when none is called, `due` says when to call
`on_time`. The caller reports everything of one link in order, and nothing of a link after `on_unreachable` for it. So
an answer that is older than the latest report can only have crossed with a role change. Accepting it costs frames that
are refused by their receiver, whose epoch fences it. A refused frame makes the route ask the principal again.

*Asking.* `ProbeSchedule`: 200 ms at first, doubling to 10 s, spread so that a fleet does not ask in step. One address
is never asked twice within 200 ms: a first use, a change and an instant that is due all share one next instant for
each address.

*The own role.* The source of roles reports now and then which role this instance should have; the database decides, by
its lock and its epoch, which one it can have. `OwnRole` combines both, by a clock that continues while the process or
the machine is suspended:

- Only a report of "principal" leads to a takeover, and only while this instance does not rest.
- An instance that stepped down, or was fenced off, rests: the partner has that long to take over, and once it has, the
  rest is over. A takeover that failed is tried again after a pause.
- A report of "mirror" makes a principal step down at once. No report, or one that is not understood, changes nothing.
- A report counts from the moment at which it was requested, for `hold` seconds: it is not known when it was true in
  between. A late one counts for nothing. A principal that is no longer confirmed has lapsed: it may not act from then
  on, and steps down, whatever the next report is. The partner may have been the principal in the interval.
- A report of "principal" with a higher epoch than ours means that the partner was it in between.

Source: Service Broker documentation, "Service Broker Routing", "Routing with Database Mirroring".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum
from typing import Generic, TypeVar

Address = TypeVar("Address", bound=Hashable)
NEVER = float("-inf")
FIRST_SECONDS = 0.2  # two gateways' round trip across an ocean fits in
LAST_SECONDS = 10.0  # a pair that has come back may stay unnoticed so long where nothing else reports it
SPREAD = 0.5  # of a wait, at most, is added by chance
LONGEST_STEP = LAST_SECONDS / (1.0 + SPREAD)
EPOCH_MAX = 2**63 - 1  # what a database can store
EPOCH_TOLD_MAX = EPOCH_MAX // 2  # the highest that is accepted from a role_command, and so from a peer
CATCH_UP_MAX = 100  # failovers that an alarm may advise: each raises the epoch by one


# --- the states of a mirrored route ---


class MirrorRole(StrEnum):
    """The role with which an instance answers a probe: the texts of PROBE_REPLY."""

    PRINCIPAL = "principal"
    MIRROR = "mirror"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, text: str) -> MirrorRole:
        """The role that a text names; any other text is `unknown`, so a later version may say more than this one."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNKNOWN


class MirrorState(Enum):
    """Knowledge about the two addresses of a route."""

    NEVER_USED = "never used"
    ASKING_BOTH = "asking both"
    FIRST_DECLINED = "first declined, second silent"
    SECOND_DECLINED = "second declined, first silent"
    BOTH_DECLINED = "both declined"
    FIRST_PRINCIPAL = "first is principal"
    SECOND_PRINCIPAL = "second is principal"


class MirrorEvent(Enum):
    """A report about one address. A claim is compared with the highest epoch accepted before."""

    CLAIMS_HIGHER = "claims a higher epoch"
    CLAIMS_EQUAL = "claims the epoch accepted before"
    CLAIMS_LOWER = "claims a lower epoch"
    DENIES = "is not the principal"
    LOST = "is out of reach"


class MirrorSide(Enum):
    """Of which address."""

    FIRST = 0
    SECOND = 1


NU, AB = MirrorState.NEVER_USED, MirrorState.ASKING_BOTH
FD, SD, BD = MirrorState.FIRST_DECLINED, MirrorState.SECOND_DECLINED, MirrorState.BOTH_DECLINED
FP, SP = MirrorState.FIRST_PRINCIPAL, MirrorState.SECOND_PRINCIPAL
# For each state: what it becomes when the first, and when the second address
#        claims          is          claims          is
#        higher      not it          higher      not it
#            equal       lost            equal       lost
#                lower                       lower
_HEARD: dict[MirrorState, tuple[MirrorState, ...]] = {
    NU: (NU, NU, NU, NU, NU, NU, NU, NU, NU, NU),
    AB: (FP, FP, FD, FD, FD, SP, SP, SD, SD, SD),
    FD: (FP, FP, FD, FD, FD, SP, SP, BD, BD, BD),
    SD: (FP, FP, BD, BD, BD, SP, SP, SD, SD, SD),
    BD: (FP, FP, BD, BD, BD, SP, SP, BD, BD, BD),
    FP: (FP, FP, FD, FD, FD, SP, FP, FP, FP, FP),
    SP: (FP, SP, SP, SP, SP, SP, SP, SD, SD, SD),
}
_INPUTS = [(side, word) for side in MirrorSide for word in MirrorEvent]
TRANSITIONS: dict[tuple[MirrorState, MirrorSide, MirrorEvent], MirrorState] = {
    (before, side, word): after
    for before, row in _HEARD.items()
    for (side, word), after in zip(_INPUTS, row, strict=True)
}
ON_USE = {standing: AB if standing is NU else standing for standing in MirrorState}
ASKING = frozenset({AB, FD, SD, BD})  # both addresses are asked, with back-off; when it is due again changes no state
PRINCIPAL = {FP: MirrorSide.FIRST, SP: MirrorSide.SECOND}
CLAIMS = frozenset({MirrorEvent.CLAIMS_HIGHER, MirrorEvent.CLAIMS_EQUAL})


# --- the prober's side ---


class MirroredRouteState(IntEnum):
    """
    The states of event 144, Broker:Mirrored Route State Changed, by its numbers, and one for a route not used so far.

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
    The last known state of one address.

    Attributes:
        asked_at, answered_at: Monotonic seconds, None when it never was.
        role, epoch: As last answered.
        problem: The reason why the answer no longer counts, empty when it does.
    """

    asked_at: float | None = None
    answered_at: float | None = None
    role: MirrorRole | None = None
    epoch: int | None = None
    problem: str = ""


class MirroredRoute(Generic[Address]):
    """
    One (service, broker instance) that is reached by two addresses. Only its methods change it.

    Args:
        address: ADDRESS of the route.
        mirror_address: The MIRROR_ADDRESS of the route; must differ from `address`.
        jitter: Returns a number in [0, 1), a new one each time.

    Attributes:
        epoch: The highest epoch that was ever accepted; it never falls.
        seen: The last known state of each address.
    """

    def __init__(self, address: Address, mirror_address: Address, jitter: Callable[[], float]) -> None:
        if address == mirror_address:
            raise ValueError(f"both addresses of a mirrored route are {address}")
        self.addresses: tuple[Address, Address] = (address, mirror_address)
        self.epoch = 0
        self.standing = MirrorState.NEVER_USED
        self.seen = dict.fromkeys(self.addresses, AddressState())
        self._heard: dict[Address, MirrorEvent] = {}
        self._claimants: set[Address] = set()  # the addresses that have claimed `epoch`
        self._stale: dict[Address, str] = {}
        self._met: dict[Address, str] = {}
        self._asking = ProbeSchedule(self.addresses, jitter)

    @property
    def principal(self) -> Address | None:
        """Address to which frames may be sent now; None while they must wait."""
        side = PRINCIPAL.get(self.standing)
        return None if side is None else self.addresses[side.value]

    @property
    def state(self) -> MirroredRouteState:
        """State as views show it."""
        if self.standing is MirrorState.NEVER_USED:
            return MirroredRouteState.NOT_USED
        side = PRINCIPAL.get(self.standing)
        if side is None:
            return MirroredRouteState.NOT_OPERATIONAL
        partner = self.seen[self.addresses[1 - side.value]]
        if partner.role is MirrorRole.MIRROR and not partner.problem and _is_answered(partner):
            return MirroredRouteState.OPERATIONAL
        return MirroredRouteState.PRINCIPAL_ONLY

    @property
    def due(self) -> float | None:
        """When `on_time` is to be called, monotonic seconds; None while no address has to be asked."""
        return self._asking.due

    @property
    def alarm(self) -> str:
        """
        Return the problem that an administrator has to correct, empty when there is none.

        Both have claimed one epoch: reported until a failover raises it. An address shows a stale copy: until another
        report about it arrives. Both lead to one instance: until one of them does not.
        """
        texts = list(self._stale.values())
        first, second = self.addresses
        if self._met.get(first, "") == self._met.get(second) != "":
            texts.insert(0, f"{first} and {second} both lead to {self._met[first]}: correct one of them")
        elif len(self._claimants) > 1:
            texts.insert(0, f"{first} and {second} have both claimed to be the principal with epoch {self.epoch}")
        return "; ".join(texts)

    def use(self, now: float) -> tuple[Address, ...]:
        """Note that there is a frame to send. To be called for the first frame; calling it again does no harm."""
        before = self.standing
        self.standing = ON_USE[before]
        return self._ask(before, now, has_changed=False)

    def meet(self, address: Address, instance: str) -> None:
        """The instance at an address, by a name that no other instance has; empty when it is not known."""
        self._met[address] = instance

    def on_reply(self, address: Address, role: str, epoch: int, now: float) -> tuple[Address, ...]:
        """
        Process a PROBE_REPLY, requested or not.

        An instance that takes over or steps down sends one to every prober that has asked it.

        A text that is not a role counts as `unknown`, and so does any role with an epoch above EPOCH_TOLD_MAX: no pair
        reaches it by failovers, and the right instance could never claim a higher one.
        """
        answer = AddressState(self.seen[address].asked_at, now, MirrorRole.of(role), epoch)
        if not 0 <= epoch <= EPOCH_TOLD_MAX:
            answer = replace(answer, role=MirrorRole.UNKNOWN, epoch=None, problem=f"answered with the epoch {epoch}")
        self.seen[address] = answer
        return self._hear(address, self._weigh(answer), now)

    def on_unreachable(self, address: Address, problem: str, now: float) -> tuple[Address, ...]:
        """A link to it was lost, or none could be made. A link closed for want of use is not lost."""
        self.seen[address] = replace(self.seen[address], problem=problem or "out of reach")
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
        epoch = self.seen[address].epoch
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
            self.seen[address] = replace(self.seen[address], asked_at=now)
        return asked


def _is_answered(seen: AddressState) -> bool:
    return seen.answered_at is not None and (seen.asked_at is None or seen.answered_at >= seen.asked_at)


class ProbeSchedule(Generic[Address]):
    """
    Which address to ask when.

    Attributes:
        jitter: Gives a number in [0, 1).
        due: The next instant at which an address is to be asked, None while none is.
    """

    def __init__(self, addresses: Sequence[Address], jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._asked_at: dict[Address, float] = dict.fromkeys(addresses, NEVER)
        self._step: dict[Address, float] = {}
        self._at: dict[Address, float] = {}

    @property
    def due(self) -> float | None:
        """Monotonic seconds."""
        return min(self._at.values(), default=None)

    def begin(self, now: float) -> None:
        """Ask all of them, 200 ms after they were last asked."""
        for address, asked_at in self._asked_at.items():
            self._at[address] = max(now, asked_at + FIRST_SECONDS)
            self._step[address] = FIRST_SECONDS

    def hasten(self, now: float) -> None:
        """Something has changed: start the back-off again from its first wait."""
        for address, at in self._at.items():
            self._at[address] = min(at, now + self._wait(FIRST_SECONDS))
            self._step[address] = 2.0 * FIRST_SECONDS

    def stop(self) -> None:
        """Stop asking all addresses."""
        self._at.clear()

    def take(self, now: float) -> tuple[Address, ...]:
        """The addresses to ask now; they count as asked."""
        taken = tuple(address for address, at in self._at.items() if at <= now)
        for address in taken:
            step = self._step[address]
            self._asked_at[address] = now
            self._at[address] = now + self._wait(step)
            self._step[address] = min(2.0 * step, LONGEST_STEP)
        return taken

    def _wait(self, step: float) -> float:
        return step * (1.0 + SPREAD * self._jitter())


# --- the own role ---


LATE = "the answer of role_command came later than role_timeout after it was asked for"


class Act(Enum):
    """Action that the owner of the role takes now."""

    STAY = "stay"
    TAKE = "take the database over"
    STEP_DOWN = "step down"


@dataclass(frozen=True, slots=True)
class RoleAnswer:
    """
    A report of the source of roles.

    Attributes:
        role: Principal, mirror, or unknown when there is no valid report, then `problem` says why.
        epoch: At least so high, 0 = not reported.
    """

    role: MirrorRole
    epoch: int = 0
    problem: str = ""


class OwnRole:
    """
    The role of this instance for one database. Changed by its keeper alone.

    Attributes:
        role: Principal or mirror.
        epoch: Of the last takeover known.
        problem: The reason why it is not what it should be, or the last error; empty when all is well.
        rests_until: An instant before which nothing is taken.
        hold: Seconds for which a word confirms a principal, from the moment at which it was asked for; may be changed.
    """

    def __init__(self, *, hold: float, now: float) -> None:
        self.role = MirrorRole.MIRROR
        self.epoch = 0
        self.problem = ""
        self.rests_until = now
        self.hold = hold
        self._confirmed_at = NEVER

    def is_confirmed(self, now: float) -> bool:
        """
        Whether a principal may act. Once it may not, it may not before it has taken the database over again.

        For any thread: writer threads ask as well.
        """
        if now - self._confirmed_at > self.hold:
            self._confirmed_at = NEVER
        return self.hold >= now - self._confirmed_at

    def is_late(self, asked_at: float, now: float) -> bool:
        """True if a report that was requested at `asked_at` is too old to count."""
        return now - asked_at > self.hold

    def on_word(self, word: RoleAnswer, asked_at: float, now: float) -> Act:
        """Return the act that a report of the source leads to."""
        if self.is_late(asked_at, now):
            word = RoleAnswer(MirrorRole.UNKNOWN, problem=word.problem or LATE)
        has_lapsed = self.role is MirrorRole.PRINCIPAL and not self.is_confirmed(now)
        if word.role is MirrorRole.UNKNOWN:
            self.problem = word.problem or self.problem
        is_ours = word.role is MirrorRole.PRINCIPAL
        if self.role is MirrorRole.PRINCIPAL:
            if is_ours and not has_lapsed:
                self._confirmed_at, self.problem = asked_at, ""
            is_over = has_lapsed or word.role is MirrorRole.MIRROR or (is_ours and word.epoch > self.epoch)
            return Act.STEP_DOWN if is_over else Act.STAY
        if word.role is MirrorRole.MIRROR:
            self.problem = ""
        return Act.TAKE if is_ours and now >= self.rests_until else Act.STAY

    def on_taking(self, asked_at: float) -> None:
        """The database is about to be taken over, because of a word that was asked for then."""
        self._confirmed_at = asked_at

    def on_taken(self, epoch: int, asked_at: float) -> None:
        """The database is ours, in this epoch; the last word about it was asked for then."""
        self.role, self.epoch, self.problem = MirrorRole.PRINCIPAL, epoch, ""
        self._confirmed_at = asked_at

    def on_kept_out(self, problem: str, now: float, *, pause: float = 0.0) -> None:
        """The takeover failed; `problem` is empty when the partner has the database, as it should."""
        self.problem = problem
        self.rests_until = now + pause

    def on_stepped_down(self, problem: str, now: float, *, rest: float) -> None:
        """Record that this instance is not the principal; the partner has `rest` seconds before we may try again."""
        self.role, self.problem = MirrorRole.MIRROR, problem
        self._confirmed_at = NEVER  # a partner that sees `mirror` may copy the file, which is open for a while still
        self.rests_until = now + rest

    def on_told(self, epoch: int) -> None:
        """The epoch of the current principal, as the role file says. A new one ends the rest."""
        if self.role is MirrorRole.MIRROR and epoch > self.epoch:
            self.epoch = epoch
            self.rests_until = NEVER


@dataclass(frozen=True, slots=True)
class OwnRoleStatus:
    """
    Role of this instance for one of its databases, as views and status show it.

    Attributes:
        broker_instance: 16 bytes, None while it is not known.
        since: UTC seconds since 1970.
        source: The value of `mirroring`.
        principal: The name of the instance that took it over last, empty when none has.
        is_resting: While it leaves the database to its partner.
    """

    broker_instance: bytes | None
    role: MirrorRole
    epoch: int
    since: float
    source: str
    problem: str = ""
    principal: str = ""
    is_resting: bool = False
