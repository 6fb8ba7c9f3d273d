"""Whatever two addresses say and whenever they are lost: frames go only to one that claims, and questions stay few."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.routing.mirrored import EPOCH_TOLD_MAX, MirroredRoute, MirroredRouteState, MirrorRole, MirrorState

ADDRESSES = ("a:4022", "b:4022")
PACE = 0.2
LONGEST_WAIT = 10.0
addresses = st.sampled_from(ADDRESSES)
roles = st.sampled_from(["principal", "principal", "mirror", "unknown", "boss", ""])
epochs = st.one_of(st.integers(0, 6), st.sampled_from([-1, EPOCH_TOLD_MAX, EPOCH_TOLD_MAX + 1, 2**64]))
waits = st.one_of(st.just(0.0), st.floats(0.0, 0.5), st.floats(0.0, 60.0))
chances = st.floats(0.0, 1.0, exclude_max=True)


class Prober(RuleBasedStateMachine):
    """A prober beside an oracle that only remembers who has claimed, and counts questions."""

    @initialize(chance=chances)
    def begin(self, chance: float) -> None:
        self.route = MirroredRoute(*ADDRESSES, lambda: chance)
        self.now = 1000.0
        self.claims: dict[str, int] = {}  # since it was last lost, or said anything else
        self.asked: dict[str, list[float]] = {address: [] for address in ADDRESSES}
        self.epoch = 0

    def hear(self, asked: tuple[str, ...]) -> None:
        assert len(set(asked)) == len(asked)
        for address in asked:
            self.asked[address].append(self.now)
        assert not asked or self.route.principal is None

    @rule(seconds=waits)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    @precondition(lambda self: self.route.due is not None)
    def wait_until_due(self) -> None:
        self.now = max(self.now, self.route.due or 0.0)
        asked = self.route.on_time(self.now)
        assert asked
        self.hear(asked)

    @rule()
    def look(self) -> None:
        self.hear(self.route.on_time(self.now))

    @rule()
    def use(self) -> None:
        self.hear(self.route.use(self.now))

    @rule(address=addresses, role=roles, epoch=epochs)
    def reply(self, address: str, role: str, epoch: int) -> None:
        self.claims.pop(address, None)
        if role == "principal" and 0 <= epoch <= EPOCH_TOLD_MAX:
            self.claims[address] = epoch
        self.hear(self.route.on_reply(address, role, epoch, self.now))

    @rule(address=addresses)
    def lose(self, address: str) -> None:
        self.claims.pop(address, None)
        self.hear(self.route.on_unreachable(address, "lost", self.now))

    @invariant()
    def only_who_claims_is_principal(self) -> None:
        principal = self.route.principal
        if principal is not None:
            assert self.route.epoch == self.claims[principal]
            assert MirrorRole.PRINCIPAL is self.route.seen[principal].role
            assert not self.route.seen[principal].problem

    @invariant()
    def epoch_never_falls(self) -> None:
        assert self.epoch <= self.route.epoch <= EPOCH_TOLD_MAX
        self.epoch = self.route.epoch

    @invariant()
    def somebody_is_asked_on_exactly_while_nobody_is_principal(self) -> None:
        is_used = self.route.standing is not MirrorState.NEVER_USED
        assert (is_used and self.route.principal is None) == (self.route.due is not None)
        assert self.route.due is None or self.route.due <= self.now + LONGEST_WAIT

    @invariant()
    def no_address_is_asked_twice_within_its_pace(self) -> None:
        for instants in self.asked.values():
            for before, after in itertools.pairwise(instants):
                assert after - before > PACE - 1e-9
            if instants:
                assert len(instants) <= 1 + (self.now - instants[0] + 1e-9) / PACE

    @invariant()
    def state_says_what_is_known(self) -> None:
        state, partner = self.route.state, [one for one in ADDRESSES if one != self.route.principal]
        assert (state is MirroredRouteState.NOT_USED) == (self.route.standing is MirrorState.NEVER_USED)
        assert (self.route.principal is not None) == (
            state in {MirroredRouteState.OPERATIONAL, MirroredRouteState.PRINCIPAL_ONLY}
        )
        if state is MirroredRouteState.OPERATIONAL:
            assert (MirrorRole.MIRROR, "") == (self.route.seen[partner[0]].role, self.route.seen[partner[0]].problem)


TestProber = Prober.TestCase


@given(st.lists(st.tuples(addresses, roles, epochs)), st.integers(0, 6))
def test_claim_above_all_before_it_is_always_believed(heard: list[tuple[str, str, int]], more: int) -> None:
    """Whatever was said before, one failover that raises the epoch puts it right."""
    route = MirroredRoute(*ADDRESSES, lambda: 0.5)
    route.use(0.0)
    for address, role, epoch in heard:
        route.on_reply(address, role, epoch, 1.0)
    if route.epoch + 1 + more > EPOCH_TOLD_MAX:
        return

    route.on_reply(ADDRESSES[1], "principal", route.epoch + 1 + more, 2.0)

    assert ADDRESSES[1] == route.principal
