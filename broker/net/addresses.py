"""
What is known of addresses: who serves them, how dialling them went, and whose health somebody has asked for.

Remembered ways depend on the health of the addresses that were looked at when they were decided, and of no others. So
it is noted which were, and a stranger that announces anything else comes and goes without costing anybody a way.
Loop-only; changed by `broker.net.peers` alone.
"""

from __future__ import annotations

import asyncio

import structlog

from broker.net.dial_history import DialHistory
from broker.net.servers import Servers
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth

ASKED_MAX = 10_000  # addresses of which it is noted that they matter; past it all do
ATTEMPTS_MAX = 10_000  # addresses remembered: with ADDRESS 'TRANSPORT' a peer may invent them

log = structlog.get_logger(__name__)


class Addresses:
    """Shape: `attempts` what is remembered of addresses dialled; `servers` who serves what."""

    def __init__(self) -> None:
        self.attempts: dict[NetworkAddress, DialHistory] = {}
        self.servers = Servers()
        self._asked: set[NetworkAddress] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def known(self) -> set[NetworkAddress]:
        """Every address that was dialled or is served."""
        return self.attempts.keys() | set(self.servers.addresses)

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        """Whether an address is served, and for how long, was not tried, or did not answer lately; that matters now."""
        if len(self._asked) < ASKED_MAX:
            self._asked.add(address)
        link = self.servers.serving(address)
        if link is not None:
            return AddressHealth.LEAVING if link.is_leaving else AddressHealth.CONNECTED
        attempts = self.attempts.get(address)
        is_suppressed = attempts is not None and self._loop.time() < attempts.suppressed_until
        return AddressHealth.SUPPRESSED if is_suppressed else AddressHealth.UNTRIED

    def answered_by(self, address: NetworkAddress) -> str:
        """The principal that answered when an address was dialled; empty when that is not known."""
        attempts = self.attempts.get(address)
        return "" if attempts is None else attempts.principal

    def matters(self, address: NetworkAddress) -> bool:
        """Whether anybody has asked for the health of an address since `forget_who_asked`."""
        return address in self._asked or len(self._asked) >= ASKED_MAX

    def forget_who_asked(self) -> None:
        """Everybody who wants to know asks again."""
        self._asked.clear()

    def problem_of(self, address: NetworkAddress) -> str:
        """Why an address is not reached: its last attempt failed, or its link was lost; empty when all is well."""
        attempts = self.attempts.get(address)
        return "" if attempts is None or self.servers.staying(address) is not None else attempts.problem

    def suppress(self, address: NetworkAddress, problem: str) -> None:
        """An attempt has failed, or the link was lost: do not try again for a while. The same again is a detail."""
        is_told = problem == self.attempts[address].problem
        seconds = round(self.attempts[address].failed(problem, self._loop.time()), 3)
        if is_told:
            log.debug("address suppressed", address=str(address), reason=problem, seconds=seconds)
        else:
            log.info("address suppressed", address=str(address), reason=problem, seconds=seconds)

    def forget_old(self, now: float) -> None:
        """Keep no more of the past than there is room for."""
        if len(self.attempts) > ATTEMPTS_MAX:
            self.attempts = {
                address: attempts
                for address, attempts in self.attempts.items()
                if attempts.is_under_way or now < attempts.suppressed_until or self.servers.serving(address) is not None
            }
