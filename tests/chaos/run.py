"""
Faults on real daemons, and the judgement of what their applications saw.

    python -m tests.chaos.run [--fault NAME] [--seed N] [--minutes M] [--keep DIRECTORY] [--record FILE]

NAME is one of a fault, "mixture" for the next mixture of the seed, or "mixture-3" for its third one. Without --fault
every fault alone, then mixtures by the seed until the minutes are over. The first phase in which
anything is wrong ends the run: it prints the seed, what the judge says, and where histories, journals, logs and
database files are. Exit code: 0 nothing was wrong; 1 something was; 2 nothing could be tried: the directory holds
another run, hosts of the kind that was asked for cannot be made, or they cannot do a fault that was asked for by its
name. With BROKER_TEST_COMPLETE these are namespaces, and whoever names no fault asks for all of them.
"""

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count, cycle
from pathlib import Path

import click

from bench.figures import Result, Row, load_averages, machine, save
from tests.chaos.campaign import Campaign, Report, evidence, keep
from tests.chaos.configuration import COMMAND, LOCK
from tests.chaos.faults.catalog import FAULTS
from tests.chaos.fleet import Fleet
from tests.chaos.network.impairment import NetworkError
from tests.chaos.network.namespaces import open_network

VERDICTS_SHOWN = 20
ATTEMPTS = 3  # at a phase that hits nothing
MIXTURE = "mixture"  # as the name of a fault: several at one time
MIXTURES_MIN = 3  # however long each fault alone has taken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    asked = parser().parse_args(arguments)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    directory = Path(asked.keep or tempfile.mkdtemp(prefix="chaos-")).resolve()
    if any((directory / name).exists() for name in ("hosts", "histories")):
        click.echo(f"{directory} holds another run: name an empty directory", err=True)
        return 2
    click.echo(f"seed {seed}, {directory}")
    begun_at, load_before, is_well = datetime.now(UTC), load_averages(), False
    with ExitStack() as stack:
        try:
            network = stack.enter_context(open_network(directory / "hosts", seed=seed, kind=asked.network))
        except NetworkError as error:
            click.echo(f"no hosts: {error}; --network loopback does what can be done without namespaces", err=True)
            return 2
        fleet = Fleet(directory, network, gateways=asked.gateways, seed=seed, pair=pair_of(asked, seed))
        stack.callback(fleet.close)
        campaign = Campaign(fleet, seed)
        _tell_left_out(campaign)
        if missing := impossible(campaign, asked):
            click.echo(f"these hosts cannot do {', '.join(missing)}", err=True)
            return 2
        fleet.start("000-start")
        try:
            reports = run_phases(campaign, asked.fault, asked.minutes * 60.0)
            is_well = bool(reports) and _ends_well(campaign)
        finally:
            if not is_well:
                keep(fleet)
    if not is_well:
        click.echo(f"FAILED with seed {seed}; again: {again(asked, seed)}")
        click.echo(f"{evidence(directory)}\n  files: {directory / 'files'}")
        return 1
    if asked.record:
        case = f"seed {seed}, {asked.gateways} gateways, {_pair(fleet)}, hosts: {network.kind}"
        load = {"before": load_before, "after": load_averages()}
        rows = tuple(_row(case, report) for report in reports)
        save(Result(machine(), begun_at.isoformat(timespec="seconds"), load, rows), asked.record)
    if not asked.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _row(case: str, report: Report) -> Row:
    values = {name: getattr(report, name) for name in ("messages", "dialogs", "resent", "duplicates")}
    values |= {"recovered in seconds": round(report.recovery, 1), "seconds": round(report.seconds)}
    return Row("faults", case, "phases", report.name, "messages", values)


def impossible(campaign: Campaign, asked: argparse.Namespace) -> list[str]:
    """Faults that were asked for and cannot be done; a mixture is of those that can, unless nothing may be left out."""
    named = [name for name in asked.fault if name in FAULTS]
    is_complete = os.environ.get("BROKER_TEST_COMPLETE") and asked.network != "loopback"
    needed = list(FAULTS) if is_complete and len(named) < max(1, len(asked.fault)) else named
    return [name for name in needed if name not in campaign.possible]


def pair_of(asked: argparse.Namespace, seed: int) -> str:
    """How the mirrored pair of a run has its roles."""
    return str(asked.pair or random.Random(f"{seed} pair").choice([COMMAND, LOCK]))


def again(asked: argparse.Namespace, seed: int) -> str:
    """The command that repeats a run: as many hosts, of the same kind, and the same faults."""
    network = [f"--network {asked.network}"] if asked.network else []
    faults = [f"--fault {name}" for name in asked.fault]
    network += [f"--pair {asked.pair}"] if asked.pair else []
    counts = [f"--seed {seed}", f"--minutes {asked.minutes:g}", f"--gateways {asked.gateways}"]
    return " ".join(["python -m tests.chaos.run", *counts, *network, *faults])


def run_phases(campaign: Campaign, names: Sequence[str], seconds: float) -> list[Report]:
    """Phase after phase until the time is over, and all that was asked for has come; none if anything was wrong."""
    deadline = time.monotonic() + seconds
    least = len(names) or len(campaign.possible) + MIXTURES_MIN
    reports: list[Report] = []
    for number, phase in enumerate(_phases(campaign, names)):
        if number >= least and time.monotonic() > deadline:
            break
        report = _felt(campaign, *phase)
        if report.wrong or not report.is_felt:
            _tell_wrong(report.wrong or [f"{report.name} has hit nothing {ATTEMPTS} times"])
            return []
        reports.append(report)
    total = f"{len(reports)} phases, {sum(one.messages for one in reports)} messages"
    click.echo(f"{total}, {sum(one.dialogs for one in reports)} dialogs: nothing wrong in any of them")
    return reports


def _felt(campaign: Campaign, name: str, index: int) -> Report:
    """A phase, and again with other victims while it hits nothing, ATTEMPTS times at most; the last one."""
    for _ in range(ATTEMPTS):
        report = campaign.alone(name) if name else campaign.mixture(index)
        click.echo(report)
        if report.wrong or report.is_felt:
            break
    return report


def _ends_well(campaign: Campaign) -> bool:
    """Whether nothing is wrong with what can only be looked at when everything has ended."""
    wrong = campaign.close()
    _tell_wrong(wrong)
    return not wrong


def _tell_wrong(wrong: Sequence[str]) -> None:
    for sentence in wrong[:VERDICTS_SHOWN]:
        click.echo(f"  {sentence}")
    if len(wrong) > VERDICTS_SHOWN:
        counts = Counter(sentence.partition(":")[0] for sentence in wrong)
        click.echo("  all: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


def _phases(campaign: Campaign, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Names of faults, each with 0; for a mixture "" and its number."""
    mixtures = count(1)
    if not names:
        yield from ((name, 0) for name in campaign.possible)
    for name in cycle(names or [MIXTURE]):
        if name.startswith(MIXTURE):
            yield "", int(name.partition("-")[2] or next(mixtures))
        else:
            yield name, 0


def _tell_left_out(campaign: Campaign) -> None:
    network = campaign.fleet.network
    why = f" ({network.reason})" if network.reason else ""
    left = [name for name in FAULTS if name not in campaign.possible]
    click.echo(f"hosts: {network.kind}{why}" + (f"; left out: {', '.join(left)}" if left else ""))
    click.echo(f"pair: {_pair(campaign.fleet)}")


def _pair(fleet: Fleet) -> str:
    return "one file and a lock" if fleet.has_lock else "a file for each partner and a command"


def _name(text: str) -> str:
    """What may be said of --fault."""
    if text in FAULTS or re.fullmatch(rf"{MIXTURE}(-[1-9][0-9]*)?", text):
        return text
    raise argparse.ArgumentTypeError(f"{text} is no fault: {', '.join(FAULTS)}, {MIXTURE} or {MIXTURE}-N")


def parser() -> argparse.ArgumentParser:
    """What may be asked for."""
    known = argparse.ArgumentParser(prog="python -m tests.chaos.run", description="Fault runs on real daemons.")
    known.add_argument("--fault", action="append", default=[], type=_name, help="only this one; repeatable")
    known.add_argument("--seed", type=int, help="of everything that is left to chance; one by chance if not given")
    known.add_argument("--minutes", type=float, default=10.0, help="how long new phases are begun; %(default)s")
    known.add_argument("--keep", help="directory, empty or new, for what is left, which stays also when all is well")
    known.add_argument("--record", type=Path, help="file for the figures of each phase, if nothing was wrong")
    known.add_argument("--gateways", type=int, default=3, choices=range(2, 5), help="how many; %(default)s")
    known.add_argument("--pair", choices=[COMMAND, LOCK], help="how the mirrored pair has its roles; by the seed")
    known.add_argument("--network", choices=["namespaces", "loopback"], help="only this kind of hosts")
    return known


if __name__ == "__main__":
    os.environ.pop("BROKER_CONFIG", None)
    sys.exit(main())
