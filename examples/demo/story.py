"""
The demo: the whole system on loopback, told with a progress bar and a ledger.

The initiator has routes to each target through two gateways; one of the targets are two instances that share its load,
the other a mirrored pair. While messages go there and answers come back, gateway-a is killed; what it held is sent
again through gateway-b. Then the mirrored pair is failed over, and later the gateway comes back. At the end the
applications' own tables say whether anything was lost, doubled or out of order, and the ledgers of all databases, asked
of their daemons, whether everything that was sent has arrived. Then the instances stop, and the pipeline reads the
journal that all of them have kept: its ledger has to come to the same, and its report is left behind.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from broker.cli.output import Terminal

from .cast import GATEWAYS, HOMES, ORDERS, QUEUE, SHIPPING, TARGETS, demo_topology
from .journal import ReportFailedError, ReportLeftOutError, make_report, total_faults, why_no_journal
from .ledger import Account, account_faults, read_account
from .topology import Daemon, TimedOutError, Topology, wait_for
from .workload import Plan, Workload, connection, faults

_OPEN = (
    "SELECT EXISTS (SELECT 1 FROM broker_conversation WHERE state <> 'CD')"
    " OR EXISTS (SELECT 1 FROM broker_transmission)"
)

SERVICES = tuple(dict.fromkeys(home.service for home in TARGETS))
DIALOGS = 10  # to each service
KILL_AT, RETURN_AT = 0.35, 0.65  # parts of all answers after which gateway-a is killed, and is started again
FAIL_OVER_AT = 0.4  # part of what goes to the mirrored pair, after which it is failed over
GIVE_UP_SECONDS = 60.0  # without one more answer
SETTLE_SECONDS = 20.0
JOURNAL = "journal"  # of all instances, in the demo's directory
READING = "the pipeline reads the journal of the demo, on Spark: half a minute, longer on a busy machine"


def run_demo(*, messages: int, directory: Path | None, keep: bool, report: Path | None) -> int:
    """
    Play it.

    Args:
        messages: Messages to the targets, in equal parts on all dialogs; as many answers come back.
        directory: Where the instances keep their files, left behind; None = a temporary one, removed.
        keep: Whether to leave the instances running until a key is pressed.
        report: Where the pipeline's report on the demo's own journal goes; None = no journal, no report.

    Returns:
        0 when the ledgers add up and agree, else 1.
    """
    console, terminal = Console(stderr=True), Terminal(sys.stderr)
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-demo-")))
        why_not = why_no_journal() if report else ""
        journal = (directory / JOURNAL).absolute() if report and not why_not else None
        net = stack.enter_context(demo_topology(directory, journal=journal))
        plan = Plan(ORDERS.service, SERVICES, DIALOGS, max(1, messages // (DIALOGS * len(SERVICES))))
        console.print(f"starting {len(net.daemons)} instances on loopback: {', '.join(net.daemons)}")
        net.start()
        workload = Workload(plan)
        stack.callback(workload.stop)
        started = time.monotonic()
        workload.start(ORDERS.path(net), [home.path(net) for home in TARGETS], QUEUE)
        gateways = _play(net, workload, console)
        seconds = time.monotonic() - started
        problems = _settle(net, workload) + ledger_faults(net, plan)
        _report(net, gateways, terminal)
        accounts = _settle_accounts(net, terminal)
        problems += account_faults(accounts)
        rate = 2 * plan.total / seconds
        console.print(f"{2 * plan.total} messages in {seconds:.1f} s, {rate:.0f} a second, each stored at both ends")
        if keep:
            console.print(
                f"the instances stay up; try: broker status --socket {net.daemons['orders'].directory}/admin.sock"
            )
            console.print("or look at their status pages:")
            for daemon in net.daemons.values():
                console.print(Text(f"  {daemon.page}  {daemon.name}"), soft_wrap=True)
            click.pause("press any key to stop them", err=True)
        if report and journal:
            net.stop()  # all that they had to record is in files then
            problems += _read_journal(journal, report, accounts, console)
        elif report:
            console.print(Text(f"no report: {why_not}", style="yellow"))
    return _judge(problems, console)


class _Turns:
    """What happens on the way, each once. Shape: `counts` what became of frames at each gateway, and of the killed."""

    def __init__(self, net: Topology, workload: Workload, console: Console) -> None:
        plan, path = workload.plan, SHIPPING.path(net)
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in GATEWAYS}
        self._net = net
        self._console = console
        self._victim = net.daemons[GATEWAYS[0]]
        self._turns: list[tuple[Callable[[], bool], Callable[[], None]]] = [
            (lambda: workload.returned >= KILL_AT * plan.total, self._kill),
            (lambda: workload.answered_in(path) >= FAIL_OVER_AT * plan.dialogs * plan.messages, self._fail_over),
            (lambda: workload.returned >= RETURN_AT * plan.total, self._return),
        ]

    def take(self) -> None:
        """Whatever is due happens."""
        due = [turn for turn in self._turns if turn[0]()]
        for turn in due:
            self._turns.remove(turn)
            turn[1]()

    def close(self) -> None:
        """The gateways that run tell what became of their frames."""
        for name in GATEWAYS:
            daemon = self._net.daemons[name]
            if daemon.is_running:
                daemon.wait_ready()
                self.counts[name] += _outcomes(daemon)

    def _kill(self) -> None:
        self.counts[self._victim.name] += _outcomes(self._victim)
        self._victim.kill()
        self._console.print(f"{self._victim.name} killed (SIGKILL) with messages in it")

    def _fail_over(self) -> None:
        principal = SHIPPING.principal(self._net)
        [told] = principal.admin.sql(f"ALTER DATABASE {SHIPPING.database} SET PARTNER FAILOVER", None)["messages"]
        self._console.print(f"{principal.name} told to fail over with messages on their way to it: {told}")

    def _return(self) -> None:
        self._victim.start(wait=False)
        self._console.print(f"{self._victim.name} started again")


def _play(net: Topology, workload: Workload, console: Console) -> dict[str, Counter[str]]:
    """Watch the messages go, and let happen what happens; what became of frames at each gateway."""
    total = workload.plan.total
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seen, deadline = 0, time.monotonic() + GIVE_UP_SECONDS
    with Progress(*columns, console=console) as progress:
        turns = _Turns(net, workload, progress.console)
        sent, answered, back = (
            progress.add_task(what, total=total) for what in ("sent", "answered", "answers received")
        )
        while not workload.failures and time.monotonic() < deadline:
            progress.update(sent, completed=workload.sent)
            progress.update(answered, completed=workload.answered)
            progress.update(back, completed=workload.returned)
            if workload.returned > seen:
                seen, deadline = workload.returned, time.monotonic() + GIVE_UP_SECONDS
            turns.take()
            if workload.returned >= total:
                break
            time.sleep(0.05)
    turns.close()
    return turns.counts


def _outcomes(gateway: Daemon) -> Counter[str]:
    forwarding = gateway.status()["forwarding"]
    return Counter({"forwarded": forwarding["forwarded"]}) + Counter(forwarding["dropped"])


def _settle(net: Topology, workload: Workload) -> list[str]:
    """Let all dialogs close; what went wrong with that, and before."""
    try:
        wait_for(lambda: workload.failures or is_settled(net), seconds=SETTLE_SECONDS, what="all dialogs closed")
    except TimedOutError as error:
        return [str(error), *map(str, workload.failures)]
    finally:
        workload.stop()
    return list(map(str, workload.failures))


def is_settled(net: Topology) -> bool:
    """Whether every dialog has been ended by both sides and nothing waits anywhere."""
    for home in HOMES:
        with connection(home.path(net)) as db:
            if db.execute(_OPEN).fetchone()[0]:
                return False
    return True


def ledger_faults(net: Topology, plan: Plan) -> list[str]:
    """What does not add up, by the applications' own tables; empty when everything does."""
    found = []
    expected = {ORDERS.service: plan.dialogs * len(plan.services), **dict.fromkeys(plan.services, plan.dialogs)}
    for service, dialogs in expected.items():
        with ExitStack() as stack:
            paths = [home.path(net) for home in HOMES if home.service == service]
            tables = [stack.enter_context(connection(path)) for path in paths]
            found += [f"{service}: {problem}" for problem in faults(*tables, dialogs=dialogs, messages=plan.messages)]
    return found


def _report(net: Topology, gateways: dict[str, Counter[str]], terminal: Terminal) -> None:
    rows = []
    for home in HOMES:
        database = home.principal(net).status()["databases"][home.database]
        counts = database["services"][home.service]
        rows.append(
            {
                "database": home.database,
                "sent": counts["sent"],
                "delivered": counts["delivered"],
                "resent": counts["resent"],
                "duplicates dropped": database["dropped"].get("duplicate", 0),
            }
        )
    title = f"Per database ({SHIPPING.database}: what {SHIPPING.principal(net).name} did since it took over)"
    terminal.table(list(rows[0]), rows, title)
    reasons = sorted({reason for counts in gateways.values() for reason in counts} - {"forwarded"})
    rows = [
        {"gateway": name, "forwarded": counts["forwarded"], "dropped": _list(counts, reasons) or "none"}
        for name, counts in gateways.items()
    ]
    terminal.table(
        list(rows[0]),
        rows,
        f"Per gateway ({GATEWAYS[0]}: before it was killed, and after it came back)",
    )


def _judge(problems: list[str], console: Console) -> int:
    """The end of the story, and its exit code."""
    for problem in problems:
        console.print(Text(problem, style="red"))
    if problems:
        console.print("[red]The ledger does NOT add up.")
        return 1
    console.print("[green]The ledger adds up: every message delivered once, in order, and every answer came back.")
    return 0


def _settle_accounts(net: Topology, terminal: Terminal) -> dict[str, Account]:
    """Lay the ledgers of all databases side by side."""
    accounts = {home.database: read_account(home.principal(net), home.database) for home in HOMES}
    _report_accounts(accounts, terminal)
    return accounts


def _read_journal(journal: Path, report: Path, accounts: Mapping[str, Account], console: Console) -> list[str]:
    """Let the pipeline read the journal; where its ledger contradicts those of the databases."""
    try:
        if not console.is_terminal:  # which has something that turns instead
            console.print(READING)
        with console.status(READING):
            total = make_report(journal, journal.parent / "pipeline", report, _dimly(console))
    except ReportLeftOutError as reason:
        console.print(Text(f"no report: {reason}", style="yellow"))
        return []
    except ReportFailedError as reason:
        return [f"no report: {reason}"]
    console.print(Text(f"Ledger by the journal: {total.sentence}"))
    console.print(Text(f"the report is in {report.resolve()}"))
    return total_faults(total, accounts)


def _dimly(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(Text(line, style="dim"))


def _report_accounts(accounts: Mapping[str, Account], terminal: Terminal) -> None:
    columns = ["database", "sent", "acknowledged", "held", "failed", "unaccounted", "arrived"]
    rows = [
        {
            "database": name,
            "sent": one.sent,
            "acknowledged": one.acknowledged,
            "held": one.held,
            "failed": sum(one.failed.values()),
            "unaccounted": one.unaccounted,
            "arrived": one.arrived,
        }
        for name, one in accounts.items()
    ]
    total = {column: sum(row[column] for row in rows) for column in columns[1:]}  # type: ignore[misc]
    title = "Ledger (each database as its own daemon tells it; all together, what was sent has arrived)"
    terminal.table(columns, [*rows, {"database": "all", **total}], title)


def _list(counts: Counter[str], reasons: list[str]) -> str:
    return ", ".join(f"{counts[reason]} {reason}" for reason in reasons if counts[reason])
