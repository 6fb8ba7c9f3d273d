"""
A gateway or an endpoint around the machine under test: it carries its questions and holds frames until it has answers.

It is what the daemon's task is, on links that are played: it dials when somebody is to be asked, tells the machine what
comes and what is lost, and keeps the frames of a database in order while nobody is principal.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from broker.routing.mirrored import MirroredRoute
from tests.simulation.mirror_story import INSTANCES
from tests.simulation.mirror_world import DIAL_SECONDS, Frame, Instance, Link, World

HELD_MAX = 64  # frames of one database; more are let go, as their sender will send them again
HELD_SECONDS = 5.0  # that a frame may wait
PACE_SECONDS = 0.2


class Prober:
    """
    One of them.

    Shape: `asked` questions put, `frames` sent; `on_ack` is told (dialog, sequence) of what is committed.
    """

    def __init__(
        self,
        world: World,
        number: int,
        instances: dict[str, Instance],
        on_ack: Callable[[int, int], None],
        *,
        is_late: bool,
    ) -> None:
        self.world = world
        self.number = number
        self.instances = instances
        self.on_ack = on_ack
        self.is_late = is_late
        self.asked = self.frames = 0
        self._life = 0
        self._forget()

    def restart(self) -> None:
        """Everything in memory is gone."""
        for link in self._links.values():
            link.is_over = link.is_doomed = True
            self.world.links.pop(link, None)
        self._life += 1
        self._forget()

    def _forget(self) -> None:
        self.routes: dict[int, MirroredRoute[str]] = {}
        self._born: dict[int, float] = {}
        self._links: dict[str, Link] = {}
        self._dialing: dict[str, set[int]] = {}  # databases to ask about once the link stands
        self._held: dict[int, deque[tuple[float, Frame]]] = defaultdict(deque)
        self._asked_of: dict[int, int] = defaultdict(int)
        self._checked: dict[int, float] = {}  # when the principal was asked because it refused a frame
        self._claims: set[tuple[int, str]] = set()  # who has claimed a database since it was lost or said otherwise

    def hand(self, frame: Frame) -> None:
        """A frame to send."""
        number = frame.database
        if number not in self.routes:
            self.routes[number] = MirroredRoute(*INSTANCES, self.world.chance.random)
            self._born[number] = self.world.clock.now
        held = self._held[number]
        if len(held) < HELD_MAX:
            held.append((self.world.clock.now + HELD_SECONDS, frame))
        self._follow(number, self.routes[number].use(self.world.clock.now))

    # --- what the machine says ---

    def _follow(self, number: int, asked: tuple[str, ...]) -> None:
        route, now = self.routes[number], self.world.clock.now
        assert not (asked and route.principal), "somebody is asked while the principal is known"
        for name in asked:
            self._ask(number, name)
        self._flush(number)
        if route.due is not None:
            assert route.due >= now
            self.world.clock.later(route.due - now, partial(self._tick, number, route))

    def _tick(self, number: int, route: MirroredRoute[str]) -> None:
        if self.routes.get(number) is route and route.due is not None and route.due <= self.world.clock.now:
            self._follow(number, route.on_time(self.world.clock.now))

    def _ask(self, number: int, name: str) -> None:
        self.asked += 1
        self._asked_of[number] += 1
        most = len(INSTANCES) * (1 + (self.world.clock.now - self._born[number]) / PACE_SECONDS)
        assert self._asked_of[number] <= most + 1e-6, f"prober {self.number} asks {self._asked_of[number]} times"
        link = self._links.get(name)
        if link is not None:
            self.world.carry(link, ("probe", number), to_prober=False)
        elif name in self._dialing:
            self._dialing[name].add(number)
        else:
            self._dialing[name] = {number}
            self._dial(self.instances[name])

    def _check(self, number: int, link: Link) -> None:
        """A frame was refused: whether that was the principal is for its answer to say."""
        now = self.world.clock.now
        is_principal = self.routes[number].principal == link.instance.name
        if is_principal and now - self._checked.get(number, -PACE_SECONDS) >= PACE_SECONDS:
            self._checked[number] = now
            self.world.carry(link, ("probe", number), to_prober=False)

    def _flush(self, number: int) -> None:
        route, held = self.routes[number], self._held[number]
        principal = route.principal
        while principal is not None and held:
            assert (number, principal) in self._claims, (
                f"prober {self.number} sends to {principal}, which claims nothing"
            )
            deadline, frame = held.popleft()
            link = self._links.get(principal)
            if deadline >= self.world.clock.now and link is not None:
                self.frames += 1
                self.world.carry(link, ("frame", replace(frame, believed=route.epoch)), to_prober=False)

    # --- links ---

    def _dial(self, instance: Instance) -> None:
        is_cut = self.world.is_cut(self.number, instance.name) or instance.is_frozen
        seconds = DIAL_SECONDS if is_cut else 2 * self.world.chance.uniform(0.0, self.world.delay)
        life = self._life
        self.world.clock.later(seconds, lambda: self._dialed(instance, life))

    def _dialed(self, instance: Instance, life: int) -> None:
        if life != self._life:
            return
        name = instance.name
        numbers = self._dialing.pop(name)
        if not instance.is_up or instance.is_frozen or self.world.is_cut(self.number, name):
            self._unreachable(name, "connection refused")
            return
        link = Link(self.number, instance, self._hear, self._lost)
        self._links[name] = link
        self.world.links[link] = None
        for number in sorted(numbers):
            self.world.carry(link, ("probe", number), to_prober=False)

    def _lost(self, link: Link) -> None:
        name = link.instance.name
        if self._links.get(name) is link:
            del self._links[name]
            self._unreachable(name, "link lost")

    def _unreachable(self, name: str, problem: str) -> None:
        for number, route in self.routes.items():
            self._claims.discard((number, name))
            self._follow(number, route.on_unreachable(name, problem, self.world.clock.now))

    def _hear(self, link: Link, words: tuple[object, ...]) -> None:
        name, now = link.instance.name, self.world.clock.now
        is_current = self._links.get(name) is link
        number, *rest = (word for word in words[1:] if isinstance(word, int | str))
        assert isinstance(number, int)
        if words[0] == "ack":
            (sequence,) = rest
            assert isinstance(sequence, int)
            self.on_ack(number, sequence)
        elif number not in self.routes or not (is_current or (self.is_late and name in self._links)):
            return
        elif words[0] == "denied":
            self._check(number, link)
        else:
            role, epoch = rest
            assert isinstance(role, str)
            assert isinstance(epoch, int)
            self._claims.discard((number, name))
            if role == "principal":
                self._claims.add((number, name))
            self._follow(number, self.routes[number].on_reply(name, role, epoch, now))
