"""
A fault run: phases, each with traffic, its faults, the time to recover, and a judgement.

In each phase the applications begin and end dialogs of their own. Once traffic flows everywhere the faults begin, last,
and end; then every initiator has to get an answer of every service to something it sent since; then nothing new is
begun, everything that was has to be finished and acknowledged, and the judge reads the histories.
"""

import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.errors import BrokerError
from tests.chaos import pair
from tests.chaos.accounts import Accounts, journal_faults
from tests.chaos.configuration import SEALED, STOCK, journal_of
from tests.chaos.daemon_log import DaemonLogs
from tests.chaos.faults.catalog import FAULTS
from tests.chaos.faults.fault import Fault, NoVictimError
from tests.chaos.fleet import Fleet, wait_until
from tests.chaos.history import Entry, Orders, What
from tests.chaos.judge import Circumstances, Span, judge
from tests.chaos.path import Paths
from tests.chaos.progress import Judged, Progress, read_chapter, wait_entered

WARM_SECONDS = 30.0
HOLD_SECONDS = (3.0, 8.0)
RECOVER_SECONDS = 120.0  # with the start of a daemon in it, which takes a minute and more on a very busy machine
SETTLE_SECONDS = 90.0
SLACK_SECONDS = 3.5  # three heartbeats until a dead connection is given up, and two for a busy machine
MIXTURE = (2, 4)  # faults at one time, least and most
POLL_SECONDS = 0.2


@dataclass
class Report:
    """
    What came of a phase.

    Shape: `faults` what was done; `wrong` sentences, none when all is well; `is_felt` whether it befell anything that
    carried frames; times in seconds.
    """

    name: str
    faults: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    is_felt: bool = False
    dialogs: int = 0
    messages: int = 0
    resent: int = 0
    duplicates: int = 0
    recovery: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        told = (
            f"{self.name:<24} {self.messages:>6} messages {self.dialogs:>4} dialogs {self.resent:>5} resent"
            f" {self.duplicates:>5} duplicates dropped, recovered in {self.recovery:4.1f} s, {self.seconds:5.1f} s"
        )
        counted = "" if self.is_felt or self.wrong else "  HIT NOTHING, not counted"
        return f"{told}  {'; '.join(self.faults)}{counted}"


class Campaign:
    """Phases on one fleet, which runs already."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.seed = seed
        self._phases = 0
        self._occasions: Counter[str] = Counter()
        self._astray: list[tuple[str, Span]] = []  # of all phases: what a clock's jump does lasts a while
        self._judged = Judged()
        self._paths = Paths(fleet)
        self._accounts = Accounts(fleet)
        self._logs = DaemonLogs(
            [daemon.log for daemon in fleet.daemons.values()],
            [fleet.directory / "applications" / f"{name}.log" for name in fleet.applications],
        )

    @property
    def possible(self) -> list[str]:
        """Names of faults that this network can do."""
        return [name for name, kind in FAULTS.items() if all(self.fleet.network.can(need) for need in kind.needs)]

    def alone(self, name: str) -> Report:
        """One fault alone."""
        return self._phase(name, [name])

    def mixture(self, number: int) -> Report:
        """Some faults at one time, by the seed and the number."""
        dice = random.Random(f"{self.seed} mixture {number}")
        names = dice.sample(self.possible, k=dice.randint(*MIXTURE))
        return self._phase(f"mixture-{number}", names)

    def close(self) -> list[str]:
        """End everything, and look at what can only be looked at then: what is wrong, in sentences."""
        self._paths.wait_empty()
        found = self.fleet.close() + self._judged.added()
        found += self._logs.unexpected({})
        for name in self.fleet.names:
            found += journal_faults(journal_of(self.fleet, name), is_used=name not in STOCK)  # a mirror has none
        return [*found, *self._accounts.journal_faults(), *self._accounts.twice()]

    def _phase(self, name: str, names: Sequence[str]) -> Report:
        self._phases += 1
        report = Report(name)
        phase = f"{self._phases:03d}-{name}"
        self._occasions[name] += 1
        dice = dice_for(self.seed, name, self._occasions[name])
        self.fleet.traffic.begin()
        began = time.monotonic()
        progress = Progress(self.fleet.histories / phase)
        faults: list[Fault] = []
        is_over = False
        try:
            self._enter(phase, report)
            self._answered(progress, since=time.monotonic(), seconds=WARM_SECONDS, what="traffic everywhere")
            self._paths.open()
            faults = self._chosen(names, dice, report)
            report.recovery = self._strike(faults, dice, progress, report)
            Orders(phase, is_sending=False).write(self.fleet.orders)
            is_over = True
            self._settled(progress)
            report.wrong += self.fleet.ended()
            report.wrong += pair.contradictions(self.fleet)
        except (BrokerError, AssertionError, OSError, subprocess.TimeoutExpired) as error:
            report.wrong.append(f"{type(error).__name__}: {error}")
        befallen = {one.name: one.hosts for one in faults}
        self._accounts.add(self._judge(phase, faults, report, is_over=is_over), befallen)
        if not report.wrong:
            report.wrong += self._accounts.ledger_faults()
        report.wrong += self._logs.unexpected(befallen)
        self.fleet.traffic.sample()
        report.dialogs, report.messages = progress.dialogs, progress.messages
        report.resent, report.duplicates = self.fleet.traffic.resent, self.fleet.traffic.duplicates
        report.seconds = time.monotonic() - began
        return report

    def _enter(self, phase: str, report: Report) -> None:
        """Everybody is in the phase before anybody sends in it, and nobody has said more in the last one."""
        Orders(phase, is_sending=False).write(self.fleet.orders)
        pair.tell_roles(self.fleet)
        wait_entered(self.fleet, phase)
        report.wrong += self._judged.added()
        Orders(phase, is_sending=True).write(self.fleet.orders)

    def _chosen(self, names: Sequence[str], dice: random.Random, report: Report) -> list[Fault]:
        """Faults whose victims are different ones; whichever finds none is left out, and told as such."""
        faults: list[Fault] = []
        free = set(self.fleet.names)
        self.fleet.traffic.sample()
        for name in names:
            try:
                fault = FAULTS[name](self.fleet, dice, free)
            except NoVictimError:
                report.faults.append(f"{name}: left out, all its victims are taken")
                continue
            free -= fault.victims
            faults.append(fault)
            report.faults.append(f"{name}: {fault.told}")
        return faults

    def _strike(self, faults: Sequence[Fault], dice: random.Random, progress: Progress, report: Report) -> float:
        """The faults begin, last and end, each in its turn; seconds until everything is answered again."""
        self.fleet.traffic.sample()
        before = [fault.frames for fault in faults]
        for fault in faults:
            fault.start()
            self.fleet.pause(dice.uniform(0.0, 1.0))
        self.fleet.pause(dice.uniform(*HOLD_SECONDS))
        self.fleet.traffic.sample()
        left_out = [told for told in report.faults if "left out" in told]
        bitten = [fault.has_bitten() for fault in faults]
        report.faults = [_told(*one) for one in zip(faults, before, bitten, strict=True)] + left_out
        report.is_felt = any(fault.is_felt and bit for fault, bit in zip(faults, bitten, strict=True))
        for fault in faults:
            fault.stop()
        ended = time.monotonic()
        report.wrong += [f"{name} has ended by itself" for name in self.fleet.revive()]
        self._answered(progress, since=ended, seconds=RECOVER_SECONDS, what="answers after the faults")
        recovery = time.monotonic() - ended
        self._paths.wait_whole()
        return recovery

    def _answered(self, progress: Progress, *, since: float, seconds: float, what: str) -> None:
        names = [f"application-{name}" for home in self.fleet.initiators for name in home.hosts]
        services = [home.service for home in self.fleet.targets]

        def is_so() -> bool:
            progress.read()
            return progress.is_answered(names, services, since)

        wait_until(is_so, seconds=seconds, what=what, every=POLL_SECONDS)

    def _settled(self, progress: Progress) -> None:
        """Wait until every dialog is over at both sides, and its initiator has heard it."""
        left = set[str]()

        def is_so() -> bool:
            nonlocal left
            progress.read()
            begun, astray = self.fleet.open_dialogs()
            left = begun | progress.unfinished - astray
            return not left

        wait_until(
            is_so,
            seconds=SETTLE_SECONDS,
            what="all dialogs over",
            every=POLL_SECONDS,
            why=lambda: f"{len(left)} are not, such as {min(left, default='none')}",
        )

    def _judge(self, phase: str, faults: Sequence[Fault], report: Report, *, is_over: bool) -> list[Entry]:
        """What was done in the phase; with `is_over` everything had the time to arrive."""
        if (
            report.wrong
        ):  # what is under way could still come: what is there is judged all the same, when it stands still
            for application in self.fleet.applications.values():
                application.stop()
        self._astray += [(database, fault.span) for fault in faults for database in fault.astray]
        known = Circumstances(
            held=self.fleet.held(),
            waiting=self.fleet.waiting(),
            is_over=is_over,
            lateness=SLACK_SECONDS,
            hidden=[span for fault in faults for span in fault.hidden],
            astray=self._astray,
            utc_at_zero=time.time() - time.monotonic(),
            copies=self.fleet.copies,
            services=self.fleet.services,
        )
        entries = read_chapter(self.fleet.histories / phase)
        self._judged.close(self.fleet.histories / phase, entries)
        report.wrong += [str(verdict) for verdict in judge(entries, known)]
        report.wrong += [f"in clear: dialog {one}" for one in sorted(self.fleet.in_clear(self._to_be_sealed(entries)))]
        return entries

    def _to_be_sealed(self, entries: Sequence[Entry]) -> set[str]:
        """Dialogs of which the target whose dialogs are sealed has received something of who seals them."""
        initiator, target = (self.fleet.applications[name].job for name in SEALED)
        begun = {
            one.event.conversation
            for one in entries
            if one.event.what is What.BEGAN and one.application == initiator.name
        }
        received = {
            one.event.conversation
            for one in entries
            if one.event.what is What.RECEIVED and one.application == target.name
        }
        return begun & received


def _told(fault: Fault, before: int | None, has_bitten: bool) -> str:  # noqa: FBT001 - from a tuple
    """What a fault does, and how many frames what it befalls has carried before it began, and while it lasted."""
    told, frames = f"{fault.name}: {fault.told}", fault.frames
    told += "" if has_bitten else ", but it did not bite"
    if before is None or frames is None:
        return told
    nothing = "" if fault.is_felt else ", so it hit nothing"
    return f"{told} ({before} frames before, {frames - before} meanwhile{nothing})"


def dice_for(seed: int, name: str, occasion: int) -> random.Random:
    """The dice of a phase: the first occasion of a fault is the same in every run, and the next one another."""
    return random.Random(f"{seed} {name}" + f" {occasion}" * (occasion > 1))


def keep(fleet: Fleet) -> None:
    """Copy what is on the disks of hosts, which end with the network, to what stays."""
    for name, host in fleet.network.hosts.items():
        shutil.copytree(
            host.directory,
            fleet.directory / "files" / name,
            ignore=shutil.ignore_patterns("ballast"),
            dirs_exist_ok=True,
        )


def evidence(directory: Path) -> str:
    """Where what remains of a run is, in one line for each kind."""
    kinds = {"histories": "histories", "daemons": "configurations and logs", "journals": "journals"}
    return "\n".join(f"  {what}: {directory / name}" for name, what in kinds.items())
