"""
What the pipeline makes of the demo's own journal: the report, and a ledger that has to agree with the databases'.

The pipeline is a program of its own (`broker pipeline report`), started when the instances have stopped, so that
all they had to record is in files; but for what the killed gateway had not written. Nothing here imports Spark.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

from broker.advice import to_install
from broker.errors import BrokerError, PipelineUnavailableError

from .ledger import Account

NEEDS = ("pyarrow", "pandas", "pyspark")
WINDOW = "1s"  # of rates and latency over time: the demo lasts a few seconds
PROGRAM = (sys.executable, "-m", "broker", "pipeline", "report")
FILE_AGE = "1s"  # the least: what a gateway loses of its journal when it is killed
_UNAVAILABLE = str(PipelineUnavailableError("", "")).split(":")[0]


@dataclass(frozen=True, slots=True)
class Total:
    """The total of `reconcile`, as `broker.pipeline.results.RECONCILE` tells its columns. Shape: all messages whole."""

    sent: int
    delivered: int
    acknowledged: int
    under_way: int
    missing: int
    doubled: int
    untold: int
    invented: int
    resent: int
    dropped: int
    lost: int
    adds_up: bool | None

    @property
    def sentence(self) -> str:
        """The ledger in one line."""
        left = f"{self.sent:,} sent" + (f" + {self.untold:,} of unknown senders" if self.untold else "")
        right = f"{self.delivered:,} delivered + {self.acknowledged:,} acknowledged"
        rest = f" + {self.under_way:,} under way + {self.missing:,} missing" if self.under_way or self.missing else ""
        return f"{left} = {right}{rest}; {self.resent:,} resent, {self.dropped:,} dropped, {self.lost:,} lost on links"


class ReportFailedError(BrokerError):
    """The pipeline ran and failed; says what it said."""


class ReportLeftOutError(BrokerError):
    """The pipeline cannot run on this machine; says why."""


def why_no_journal() -> str:
    """Why instances cannot keep a journal that the pipeline reads; "" when they can."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    return f"{', '.join(missing)} not installed: {to_install('pipeline')}" if missing else ""


def make_report(flows: Path, out: Path, target: Path, tell: Callable[[str], None]) -> Total:
    """
    Run the pipeline over a journal.

    Args:
        flows: Directory of the journal.
        out: Where the results go.
        target: Where the report goes, in place of an earlier one.
        tell: Who hears its progress, in lines.

    Returns:
        What its ledger comes to.

    Raises:
        ReportLeftOutError: it cannot run here.
        ReportFailedError: it failed.
    """
    command = [*PROGRAM, "--journal", str(flows), "--out", str(out), "--window", WINDOW]
    said: list[str] = []
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.rstrip())
            if str(out) not in line:  # the report is moved away from there
                tell(said[-1])
    last = next((line for line in reversed(said) if line), f"exit code {process.returncode}")
    if process.returncode:
        raise (ReportLeftOutError if last.startswith(_UNAVAILABLE) else ReportFailedError)(last)
    target.write_bytes((out / "report.html").read_bytes())
    return read_total(out / "reconcile")


def read_total(reconcile: Path) -> Total:
    """The total in the result of `reconcile`."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - the demo runs without it

    rows = pq.read_table(reconcile, columns=["conversation_id", *(one.name for one in fields(Total))]).to_pylist()
    [total] = [row for row in rows if row.pop("conversation_id") is None]
    return Total(**total)


def total_faults(total: Total, accounts: Mapping[str, Account]) -> list[str]:
    """Where the ledger of the journal contradicts those of the databases; empty when they agree."""
    found = [] if total.adds_up else [f"the ledger of the journal does not add up: {total.sentence}"]
    sent = sum(one.sent for one in accounts.values())
    arrived = sum(one.arrived for one in accounts.values())
    if total.sent != sent:
        found.append(f"{sent:,} sent by the databases' ledgers, {total.sent:,} by the journal")
    if total.delivered + total.acknowledged != arrived:
        found.append(
            f"{arrived:,} arrived by the databases' ledgers, {total.delivered + total.acknowledged:,} by the journal"
        )
    return found
