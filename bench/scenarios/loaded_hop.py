"""
A hop, and the load generator on both sides of it, loaded with an open loop.

The hop has one core, the generator another. Messages have 256 bytes and go over several connections to several
services, which are behind two next hops in turn; the second one can be made slow.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.figures import cpu_seconds, pin
from bench.forwarding import GENERATOR_CORE, HOP_CORE, Hop
from bench.generator import Answer, Generator, service_names, traffic
from bench.scenarios.knee import Step

PAYLOAD = 256
CONNECTIONS = 16
DESTINATIONS = 16
NEXT_HOPS = 2
REST_SECONDS = 5.0  # for what is under way when a step ends, at most


class LoadedHop:
    """Shape: `frame_bytes` of each message on the wire. Use as a context manager."""

    def __init__(self, hop: Hop, command: Sequence[str], directory: Path) -> None:
        self.hop = hop
        made = traffic(service_names(DESTINATIONS), PAYLOAD, connections=CONNECTIONS, listeners=len(hop.ports))
        self.frame_bytes = made.frame_bytes
        self.generator = Generator(
            command,
            directory,
            made,
            port=hop.port,
            connections=CONNECTIONS,
            listen=hop.ports,
            is_greeting=hop.is_greeting,
        )
        for pid in hop.pids:
            pin(pid, HOP_CORE)
        pin(self.generator.pid, GENERATOR_CORE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.generator.close()

    def step(self, offered_s: float, seconds: float, *, limit: float) -> Step:
        """
        Offer so many messages a second for so long, and wait for what is under way.

        Shape: `limit` seconds within which an arrival is in time.
        """
        before = self.busy()
        told = self.generator.offer(seconds, offered_s, limit=limit, rest=REST_SECONDS)
        return step_of(told, offered_s, (self.busy() - before) / told["seconds"])

    def busy(self) -> float:
        """CPU seconds of the hop so far."""
        return sum(map(cpu_seconds, self.hop.pids))


def step_of(told: Answer, offered_s: float, busy: float) -> Step:
    """A step out of what the generator tells. Shape: `busy` cores of the hop."""
    offered = max(1.0, told["messages"])
    return Step(
        offered_s,
        told["in_time"] / offered,
        {
            "offered_s": offered_s,
            "messages_s": told["arrived"] / told["seconds"],
            "in_time_pct": 100 * told["in_time"] / offered,
            "refused_pct": 100 * told["refused"] / offered,
            "p50_us": told["p50_us"],
            "p99_us": told["p99_us"],
            "busy_pct": 100 * busy,
            "late_us": told["late_us"],
        },
    )
