"""
Play a story of mirrored pairs: the machine under test in every prober, everything around it played.

All the time: no message is committed in two epochs, none by an instance that has not the last epoch, none reaches a
stale copy through a prober that knew better, no partner is asked while the principal is known, and nobody is asked more
often than every 200 ms. When the blows are over and the network is whole: every message is committed within a bounded
time and once; every prober that is used knows the principal; and after that nobody is asked any more.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

from broker.routing.mirrored import MirroredRouteState
from tests.simulation.mirror_prober import Prober
from tests.simulation.mirror_story import ACTED_SECONDS, INSTANCES, MirrorBlow, MirrorStory
from tests.simulation.mirror_world import HEARTBEAT_SECONDS, LEASE_SECONDS, Frame, Instance, World

RESEND_SECONDS = 0.7  # after which a sender sends again what nobody has acknowledged
WINDOW = 8  # messages of a dialog under way
WHOLE_SECONDS = 25.0  # within which all is over once the network is whole: two longest waits of a prober, and some
UNDER_WAY_SECONDS = 1.0  # for which frames may be on a link at most
SILENCE_SECONDS = 25.0  # ... and so long nobody is asked anything afterwards


@dataclass
class Outcome:
    """
    How it went. Shape: `frames` sent by probers, `needed` the least there can be; `asked` questions; `seconds` from
    when the network was whole until the last message was known to be committed.
    """

    digest: int = 0
    frames: int = 0
    needed: int = 0
    asked: int = 0
    seconds: float = 0.0
    history: list[str] = field(default_factory=list)


def play(story: MirrorStory) -> Outcome:
    """
    Tell it from beginning to end.

    Raises:
        AssertionError, or whatever went wrong in it; the history so far is in its `__notes__`.
    """
    stage = _Stage(story)
    try:
        stage.run()
    except Exception as error:
        error.add_note("\n".join(stage.world.history[-200:]))
        raise
    return stage.outcome


@dataclass
class _Dialog:
    """A sender. Shape: `begun` messages exist, of `messages` in all; `open` those not known to be committed."""

    database: int
    messages: int
    begun: int = 0
    open: dict[int, None] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.begun == self.messages and not self.open


class _Stage:
    """One performance."""

    def __init__(self, story: MirrorStory) -> None:
        self.story = story
        chance = random.Random(story.seed)
        self.world = World(chance, delay=story.delay, commit=story.commit, poll=story.poll, is_fenced=story.is_fenced)
        self.clock = self.world.clock
        for number in range(story.databases):
            self.world.databases[number].epoch = 0
        self.instances = {name: Instance(self.world, name) for name in INSTANCES}
        self.probers = [
            Prober(self.world, number, self.instances, self._stored, is_late=story.is_late)
            for number in range(story.probers)
        ]
        self.dialogs = [_Dialog(database, messages) for database, messages, _ in story.dialogs]
        self._lied_until: dict[tuple[str, int], float] = {}
        self.outcome = Outcome(needed=sum(dialog.messages for dialog in self.dialogs), history=self.world.history)

    def run(self) -> None:
        """All of it."""
        self.world.stir()
        for number, (_, _, pause) in enumerate(self.story.dialogs):
            self._begin(number, pause)
        for blow in self.story.blows:
            self.clock.later(blow.at, lambda blow=blow: self._strike(blow))  # type: ignore[misc]
        whole = max([ACTED_SECONDS, *(blow.at + blow.seconds for blow in self.story.blows)]) + 0.001
        self.clock.run(whole)
        self.world.note("the network is whole")
        self.clock.run(whole + WHOLE_SECONDS, self._is_over)
        assert self._is_over(), [(dialog.begun, list(dialog.open)) for dialog in self.dialogs]
        self.outcome.seconds = self.clock.now - whole
        self.clock.run(whole + WHOLE_SECONDS)
        self._check()

    def _check(self) -> None:
        asked = self._count()
        self.clock.run(self.clock.now + SILENCE_SECONDS)
        assert asked == self._count(), "somebody is still asked when all is over"
        for number, dialog in enumerate(self.dialogs):
            committed = self.world.databases[dialog.database].committed
            assert set(range(dialog.messages)) == {sequence for one, sequence in committed if one == number}
        for prober in self.probers:
            for number, route in prober.routes.items():
                holder = self.world.databases[number].holder
                assert holder is not None
                assert (holder.name, self.world.databases[number].epoch) == (route.principal, route.epoch)
                assert route.state in {MirroredRouteState.OPERATIONAL, MirroredRouteState.PRINCIPAL_ONLY}
        self.outcome.asked = asked
        self.outcome.frames = sum(prober.frames for prober in self.probers)
        self.outcome.digest = zlib.crc32("\n".join(self.world.history).encode(), self.outcome.frames)

    def _count(self) -> int:
        return sum(prober.asked for prober in self.probers)

    # --- senders ---

    def _begin(self, number: int, pause: float) -> None:
        dialog = self.dialogs[number]
        for sequence in range(dialog.messages):
            self.clock.later(sequence * pause, lambda: self._send(number))
        self.clock.later(RESEND_SECONDS, lambda: self._resend(number))

    def _send(self, number: int) -> None:
        dialog = self.dialogs[number]
        dialog.open[dialog.begun] = None
        dialog.begun += 1
        if len(dialog.open) <= WINDOW:
            self._hand(number, dialog.begun - 1)

    def _resend(self, number: int) -> None:
        dialog = self.dialogs[number]
        for sequence in list(dialog.open)[:WINDOW]:
            self._hand(number, sequence)
        if not dialog.is_over:
            self.clock.later(RESEND_SECONDS * self.world.chance.uniform(0.8, 1.2), lambda: self._resend(number))

    def _hand(self, number: int, sequence: int) -> None:
        prober = self.world.chance.choice(self.probers)
        prober.hand(Frame(self.dialogs[number].database, number, sequence))

    def _stored(self, number: int, sequence: int) -> None:
        dialog = self.dialogs[number]
        if sequence in dialog.open:
            del dialog.open[sequence]
            following = list(dialog.open)[WINDOW - 1 : WINDOW]
            for more in following:
                self._hand(number, more)

    def _is_over(self) -> bool:
        return all(dialog.is_over for dialog in self.dialogs)

    # --- blows ---

    def _strike(self, blow: MirrorBlow) -> None:
        self.world.note(f"{blow}")
        instance = self.instances[INSTANCES[blow.instance]]
        do = getattr(self, f"_strike_{blow.what}")
        do(blow, instance)

    def _strike_kill(self, blow: MirrorBlow, instance: Instance) -> None:
        instance.crash()
        life = instance.life

        def start() -> None:
            if instance.life == life:
                instance.is_up = True
                self.world.stir()

        self.clock.later(blow.seconds, start)

    def _strike_freeze(self, blow: MirrorBlow, instance: Instance) -> None:
        if instance.is_frozen or not instance.is_up:
            return
        instance.is_frozen = True
        life = instance.life

        def lose_locks() -> None:
            if instance.is_frozen and instance.life == life:
                for database in self.world.databases.values():
                    if database.holder is instance:
                        database.holder = None
                self.world.stir()

        def thaw() -> None:
            if instance.life == life:
                instance.thaw()

        self.clock.later(LEASE_SECONDS, lose_locks)
        self.clock.later(HEARTBEAT_SECONDS, lambda: self._watch(instance))
        self.clock.later(blow.seconds, thaw)

    def _watch(self, instance: Instance) -> None:
        for link in list(self.world.links):
            if link.instance is instance:
                self.world.watch(link)

    def _strike_failover(self, blow: MirrorBlow, _: Instance) -> None:
        for name in INSTANCES:
            (partner,) = (self.instances[other] for other in INSTANCES if other != name)
            if self.world.databases[blow.database].holder is self.instances[name]:
                self.instances[name].hand_over(blow.database, partner)
                return

    def _strike_cut(self, blow: MirrorBlow, instance: Instance) -> None:
        self._cut(blow.prober, instance, (False, True), blow.seconds)

    def _strike_mute(self, blow: MirrorBlow, instance: Instance) -> None:
        self._cut(blow.prober, instance, (False,), blow.seconds)

    def _strike_deafen(self, blow: MirrorBlow, instance: Instance) -> None:
        self._cut(blow.prober, instance, (True,), blow.seconds)

    def _strike_isolate(self, blow: MirrorBlow, instance: Instance) -> None:
        for prober in self.probers:
            self._cut(prober.number, instance, (False, True), blow.seconds)

    def _cut(self, prober: int, instance: Instance, ways: tuple[bool, ...], seconds: float) -> None:
        for way in ways:
            self.world.cuts[prober, instance.name, way] += 1
        self.clock.later(HEARTBEAT_SECONDS, lambda: self._watch(instance))

        def mend() -> None:
            for way in ways:
                self.world.cuts[prober, instance.name, way] -= 1

        self.clock.later(seconds, mend)

    def _strike_reset(self, blow: MirrorBlow, instance: Instance) -> None:
        for link in [link for link in self.world.links if (link.prober, link.instance) == (blow.prober, instance)]:
            self.world.end(link)

    def _strike_restart(self, blow: MirrorBlow, _: Instance) -> None:
        self.probers[blow.prober].restart()

    def _strike_rogue(self, blow: MirrorBlow, _: Instance) -> None:
        database = self.world.databases[blow.database]
        database.is_rogue = True
        self.world.stir()
        self.clock.later(blow.seconds, lambda: setattr(database, "is_rogue", False))

    def _strike_lie(self, blow: MirrorBlow, instance: Instance) -> None:
        self._lied_until[instance.name, blow.database] = self.clock.now + blow.seconds + UNDER_WAY_SECONDS
        self._claim(blow, instance, self.world.databases[blow.database].epoch, is_taking=False)

    def _strike_stale(self, blow: MirrorBlow, instance: Instance) -> None:
        database = self.world.databases[blow.database]
        has_lied = self.clock.now < self._lied_until.get((instance.name, blow.database), 0.0)
        # Else what was sent in its own reign, or on its own word, may be under way.
        if database.holder not in (None, instance) and not has_lied:
            self._claim(blow, instance, database.epoch - 1, is_taking=True)

    def _claim(self, blow: MirrorBlow, instance: Instance, epoch: int, *, is_taking: bool) -> None:
        if epoch < 0 or blow.database in instance.reign or not instance.is_up or instance.is_frozen:
            return
        claim = (epoch, is_taking)
        instance.claims[blow.database] = claim
        instance.tell_all(blow.database)

        def stop() -> None:
            if instance.claims.get(blow.database) == claim:
                del instance.claims[blow.database]
                instance.tell_all(blow.database)

        self.clock.later(blow.seconds, stop)
