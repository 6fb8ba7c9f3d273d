"""
When to ask each of two addresses again: 200 ms at first, doubling to 10 s, spread so that a fleet does not ask in step.

Time and chance are arguments. Whatever happens, one address is never asked twice within 200 ms: all the ways into
asking (a beginning, a change, an instant that is due) go through one instant for each address, which never lies nearer
than that to the last time it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum
from typing import Generic, TypeVar

Address = TypeVar("Address", bound=Hashable)
FIRST_SECONDS = 0.2  # two gateways' round trip across an ocean fits in
LAST_SECONDS = 10.0  # so long may a pair that has come back stay unnoticed where nothing else tells of it
SPREAD = 0.5  # of a wait, at most, is added by chance
LONGEST_STEP = LAST_SECONDS / (1.0 + SPREAD)
NEVER = float("-inf")


class ProbeSchedule(Generic[Address]):
    """
    The plan of whom to ask when. Changed by its methods only.

    Shape: `jitter` gives a number in [0, 1); `due` the next instant when somebody is to be asked, None while nobody is.
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
        """Ask all of them, as soon as it is not too soon."""
        for address, asked_at in self._asked_at.items():
            self._at[address] = max(now, asked_at + FIRST_SECONDS)
            self._step[address] = FIRST_SECONDS

    def hasten(self, now: float) -> None:
        """Something has changed: start the back-off again from its first wait."""
        for address, at in self._at.items():
            self._at[address] = min(at, now + self._wait(FIRST_SECONDS))
            self._step[address] = 2.0 * FIRST_SECONDS

    def stop(self) -> None:
        """Ask nobody any more."""
        self._at.clear()

    def take(self, now: float) -> tuple[Address, ...]:
        """Whom to ask now; they count as asked."""
        taken = tuple(address for address, at in self._at.items() if at <= now)
        for address in taken:
            step = self._step[address]
            self._asked_at[address] = now
            self._at[address] = now + self._wait(step)
            self._step[address] = min(2.0 * step, LONGEST_STEP)
        return taken

    def _wait(self, step: float) -> float:
        return step * (1.0 + SPREAD * self._jitter())


# --- role ---
# What an instance answers when it is asked whether it is the principal, and how high an epoch can be.


EPOCH_MAX = 2**63 - 1  # what a database can store
EPOCH_TOLD_MAX = EPOCH_MAX // 2  # the highest that is believed of a role_command, and so of a peer


class MirrorRole(StrEnum):
    """Shape: the texts of PROBE_REPLY."""

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


# --- standing ---
# The states of a mirrored route as one prober sees it, and the table of what changes them.
#
# No state needs to be guessed from fields: who is principal, who has declined since it was last believed, and whether
# somebody has to be asked, is all in the name. "Declined" is said by an answer (`mirror`, `unknown`), by
# a claim with an epoch below one believed before, or by being out of reach. "First" is the ADDRESS of the route,
# "second"
# its MIRROR_ADDRESS.
#
# The rules that the table spells out:
#
# - Nothing is believed of a route that nobody uses: the first use asks both (R6.1).
# - Who claims a higher epoch than any believed before is the principal, whatever was believed (R6.4).
# - Who claims the epoch believed before is the principal where nobody is. Beside another in use it changes nothing:
# two
#   that claim one epoch cannot be told apart, so the one in use stays, or the first one heard (R6.4).
# - A claim with a lower epoch comes from a stale copy. It counts as a refusal.
# - A principal that declines is none from then on. Only a claim makes the next one; till then both are asked (R6.3).
# - What the partner of a principal says, other than a claim, changes nothing (R6.2).
#
# Source: Service Broker documentation, "Service Broker Routing", "Routing with Database Mirroring".


class MirrorState(Enum):
    """What is known of the two addresses of a route."""

    NEVER_USED = "never used"
    ASKING_BOTH = "asking both"
    FIRST_DECLINED = "first declined, second silent"
    SECOND_DECLINED = "second declined, first silent"
    BOTH_DECLINED = "both declined"
    FIRST_PRINCIPAL = "first is principal"
    SECOND_PRINCIPAL = "second is principal"


class MirrorEvent(Enum):
    """What is heard of one address. A claim is compared with the highest epoch believed before."""

    CLAIMS_HIGHER = "claims a higher epoch"
    CLAIMS_EQUAL = "claims the epoch believed before"
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


# --- mirrored_route ---
# What one prober knows of a mirrored route: which of its two addresses is the principal, and whom to ask next.
#
# A prober is a gateway or an endpoint that has frames for one (service, broker instance). It sends frames to
# `principal`, and to nobody while that is None. The states and what changes them are the table in `standing`, the
# back-off is in `asking`; here both are put together with the epoch, what is shown, and what is alarming.
#
# Rules of the file: no clock, no chance, no I/O. `now` is monotonic seconds and never falls. Every method returns the
# addresses that must be sent a PROBE now; when none happens, `due` says when to call `on_time`.
#
# What the caller owes: everything that comes over one link in the order in which it came, and nothing of a link after
# `on_unreachable` for it. More is not needed. An answer that is older than what was heard since can then only be one
# that
# crossed with a role change; believing it costs frames that are refused by their receiver, whose epoch fences it, and
# whoever carries frames has the principal asked when one is refused.


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


# --- own_role ---
# What one instance does about its own role for a database: take it over, step down, or leave things as they are.
#
# The source of roles says now and then which role this instance should have; the database says, by its lock and its
# epoch, which one it can have. Here is only what follows from both. `ON_WORD` is the rule; time is an argument, of a
# clock that goes on while the process or the machine stands still.
#
# - Only a word of "principal" leads to a takeover, and only while this instance does not rest.
# - Whoever stepped down, or was fenced off, rests: the partner has that long to take over, and once it has, the rest
# is
#   over. What failed to be taken is tried again after a pause.
# - A word of "mirror" makes a principal step down at once. No word, or one that nobody understands, changes nothing.
# - A word counts from the moment at which it was asked for, for `hold` seconds: nobody knows when it was true in
# between.
#   One that comes later says nothing. A principal that no word confirms any more has lapsed: it may not act from then
# on,
#   and steps down, whatever the next word is, for somebody else may have been the principal meanwhile.
# - A word of "principal" with a higher epoch than the one we have means that somebody else was it in between.


LATE = "the answer of role_command came later than role_timeout after it was asked for"
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class RoleAnswer:
    """
    What the source of roles says.

    Shape: `role` principal, mirror, or unknown when it says nothing that counts, then `problem` tells why; `epoch` at
    least, 0 = none told.
    """

    role: MirrorRole
    epoch: int = 0
    problem: str = ""


class Act(Enum):
    """What to do now."""

    STAY = "stay"
    TAKE = "take the database over"
    STEP_DOWN = "step down"


# By what this instance is, and what the source says it should be.
ON_WORD = {
    (MirrorRole.PRINCIPAL, MirrorRole.PRINCIPAL): Act.STAY,
    (MirrorRole.PRINCIPAL, MirrorRole.MIRROR): Act.STEP_DOWN,
    (MirrorRole.PRINCIPAL, MirrorRole.UNKNOWN): Act.STAY,
    (MirrorRole.MIRROR, MirrorRole.PRINCIPAL): Act.TAKE,
    (MirrorRole.MIRROR, MirrorRole.MIRROR): Act.STAY,
    (MirrorRole.MIRROR, MirrorRole.UNKNOWN): Act.STAY,
}


class OwnRole:
    """
    The role of this instance for one database. Changed by its keeper alone.

    Shape: `role` principal or mirror; `epoch` of the last takeover known; `problem` why it is not what it should be, or
    what was wrong last, empty when all is well; `rests_until` an instant before which nothing is taken;
    `hold` seconds for which a word confirms a principal, from the moment at which it was asked for; may be changed.
    """

    def __init__(self, *, hold: float, now: float) -> None:
        self.role = MirrorRole.MIRROR
        self.epoch = 0
        self.problem = ""
        self.rests_until = now
        self.hold = hold
        self._confirmed_at = _NEVER

    def is_confirmed(self, now: float) -> bool:
        """
        Whether a principal may act. Once it may not, it may not before it has taken the database over anew.

        For any thread: writer threads ask as well.
        """
        if now - self._confirmed_at > self.hold:
            self._confirmed_at = _NEVER
        return self.hold >= now - self._confirmed_at

    def is_late(self, asked_at: float, now: float) -> bool:
        """Whether a word that was asked for then says nothing any more."""
        return now - asked_at > self.hold

    def on_word(self, word: RoleAnswer, asked_at: float, now: float) -> Act:
        """What the source says leads to."""
        if self.is_late(asked_at, now):
            word = RoleAnswer(MirrorRole.UNKNOWN, problem=word.problem or LATE)
        has_lapsed = self.role is MirrorRole.PRINCIPAL and not self.is_confirmed(now)
        if word.role is MirrorRole.UNKNOWN:
            self.problem = word.problem or self.problem
        act = ON_WORD[self.role, word.role]
        if self.role is MirrorRole.PRINCIPAL:
            was_another = word.role is MirrorRole.PRINCIPAL and word.epoch > self.epoch
            if word.role is MirrorRole.PRINCIPAL and not has_lapsed:
                self._confirmed_at, self.problem = asked_at, ""
            return Act.STEP_DOWN if has_lapsed or was_another else act
        if word.role is MirrorRole.MIRROR:
            self.problem = ""
        return act if now >= self.rests_until else Act.STAY

    def on_taking(self, asked_at: float) -> None:
        """The database is about to be taken over, because of a word that was asked for then."""
        self._confirmed_at = asked_at

    def on_taken(self, epoch: int, asked_at: float) -> None:
        """The database is ours, in this epoch; the last word about it was asked for then."""
        self.role, self.epoch, self.problem = MirrorRole.PRINCIPAL, epoch, ""
        self._confirmed_at = asked_at

    def on_kept_out(self, problem: str, now: float, *, pause: float = 0.0) -> None:
        """It could not be taken; `problem` is empty when somebody else has it, which is how it should be."""
        self.problem = problem
        self.rests_until = now + pause

    def on_stepped_down(self, problem: str, now: float, *, rest: float) -> None:
        """It is not ours any more, and the partner may have it for so long before we try again."""
        self.role, self.problem = MirrorRole.MIRROR, problem
        self._confirmed_at = _NEVER  # whoever is told `mirror` may copy the file, which is open for a while still
        self.rests_until = now + rest

    def on_told(self, epoch: int) -> None:
        """What is told beside the file: the epoch of whoever is the principal. A new one ends the rest."""
        if self.role is MirrorRole.MIRROR and epoch > self.epoch:
            self.epoch = epoch
            self.rests_until = float("-inf")


# --- own_standing ---
# Part of `broker.daemon.roles`.


@dataclass(frozen=True, slots=True)
class OwnRoleStatus:
    """
    What this instance is for one of its databases, for whoever looks.

    Shape: `broker_instance` 16 bytes, None while it is not known; `since` UTC seconds since 1970; `source` the value of
    `mirroring`; `principal` the name of the instance that took it over last, empty when none has; `is_resting` while it
    leaves the database to its partner.
    """

    broker_instance: bytes | None
    role: MirrorRole
    epoch: int
    since: float
    source: str
    problem: str = ""
    principal: str = ""
    is_resting: bool = False
