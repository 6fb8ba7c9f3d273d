"""
`broker demo`: the whole system on loopback, told with a progress bar and a ledger.

    orders (initiator) ==> gateway-a, gateway-b ==> billing, shipping (targets)

Five daemons. The initiator has two routes to each target, one through each gateway, and so have the targets back.
While messages go there and answers come back, gateway-a is killed; what it held is sent again through gateway-b. Later
it comes back. At the end the applications' own tables say whether anything was lost, doubled or out of order, and the
ledgers of all databases, asked of their daemons, whether everything that was sent has arrived.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from broker.demo.ledger import Account, account_faults, read_account
from broker.demo.topology import Daemon, TimedOutError, Topology, wait_for
from broker.demo.workload import Plan, Workload, connection, faults
from broker.observe.glance import render_table

INITIATOR, QUEUE = "//demo/Orders", "DemoQueue"
TARGETS = {"billing": "//demo/Billing", "shipping": "//demo/Shipping"}
GATEWAYS = ("gateway-a", "gateway-b")
DIALOGS = 10  # to each target
KILL_AT, RETURN_AT = 0.35, 0.65  # parts of the answers after which gateway-a is killed, and is started again
GIVE_UP_SECONDS = 60.0  # without one more answer
SETTLE_SECONDS = 20.0


def run_demo(*, messages: int, directory: Path | None, keep: bool) -> int:
    """
    Play it.

    Args:
        messages: Messages to the targets, in equal parts on all dialogs; as many answers come back.
        directory: Where the instances keep their files, left behind; None = a temporary one, removed.
        keep: Whether to leave the instances running until a key is pressed.

    Returns:
        0 when the ledger adds up, else 1.
    """
    console = Console(stderr=True)
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-demo-")))
        net = stack.enter_context(demo_topology(directory))
        plan = Plan(INITIATOR, tuple(TARGETS.values()), DIALOGS, max(1, messages // (DIALOGS * len(TARGETS))))
        console.print(f"starting {len(net.daemons)} instances on loopback: {', '.join(net.daemons)}")
        net.start()
        workload = Workload(plan)
        stack.callback(workload.stop)
        started = time.monotonic()
        paths = {service: net.daemons[name].directory / f"{name}.db" for name, service in TARGETS.items()}
        workload.start(net.daemons["orders"].directory / "orders.db", paths, QUEUE)
        gateways = _play(net, workload, console)
        seconds = time.monotonic() - started
        problems = []
        try:
            wait_for(lambda: workload.failures or is_settled(net), seconds=SETTLE_SECONDS, what="all dialogs closed")
        except TimedOutError as error:
            problems.append(str(error))
        workload.stop()
        problems += [str(failure) for failure in workload.failures] + ledger_faults(net, plan)
        _report(net, gateways, console)
        problems += _settle_accounts(net, console)
        rate = 2 * plan.total / seconds
        console.print(f"{2 * plan.total} messages in {seconds:.1f} s, {rate:.0f} a second, each stored at both ends")
        if keep:
            console.print(
                f"the instances stay up; try: broker status --socket {net.daemons['orders'].directory}/admin.sock"
            )
            click.pause("press any key to stop them", err=True)
    for problem in problems:
        console.print(f"[red]{problem}")
    if problems:
        console.print("[red]The ledger does NOT add up.")
        return 1
    console.print("[green]The ledger adds up: every message delivered once, in order, and every answer came back.")
    return 0


def demo_topology(directory: Path) -> Topology:
    """The five instances with their services and routes, not started."""
    net = Topology(directory)
    instances = {name: str(uuid4()) for name in ("orders", *TARGETS)}
    services = {"orders": INITIATOR} | TARGETS
    for name in GATEWAYS:
        net.add(name, forwarding=True)
    for name in services:
        net.add(name, databases=[name], broker_instances=instances)
    for gateway in GATEWAYS:
        # Only what is named here passes: no AutoCreatedLocal.
        routes = [_route(name, services[name], instances[name], net.daemons[name]) for name in services]
        net.script(gateway, "msdb", "\n".join(["DROP ROUTE AutoCreatedLocal;", *routes]))
    for name, service in services.items():
        far = TARGETS if name == "orders" else {"orders": INITIATOR}
        routes = [
            _route(f"{there}-{gateway}", far[there], instances[there], net.daemons[gateway])
            for there in far
            for gateway in GATEWAYS
        ]
        net.script(
            name, name, "\n".join([f"CREATE QUEUE {QUEUE};", f"CREATE SERVICE [{service}] ON QUEUE {QUEUE};", *routes])
        )
    return net


def _route(name: str, service: str, instance: str, next_hop: Daemon) -> str:
    return (
        f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{service}', BROKER_INSTANCE = '{instance}',"
        f" ADDRESS = '{next_hop.address}';"
    )


def _play(net: Topology, workload: Workload, console: Console) -> dict[str, Counter[str]]:
    """Watch the messages go, kill a gateway on the way; what became of frames at each gateway."""
    victim = net.daemons[GATEWAYS[0]]
    total = workload.plan.total
    counts: dict[str, Counter[str]] = {name: Counter() for name in GATEWAYS}
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seen, deadline = 0, time.monotonic() + GIVE_UP_SECONDS
    killed = returned = False
    with Progress(*columns, console=console) as progress:
        sent, answered, back = (
            progress.add_task(what, total=total) for what in ("sent", "answered", "answers received")
        )
        while not workload.failures and time.monotonic() < deadline:
            progress.update(sent, completed=workload.sent)
            progress.update(answered, completed=workload.answered)
            progress.update(back, completed=workload.returned)
            if workload.returned > seen:
                seen, deadline = workload.returned, time.monotonic() + GIVE_UP_SECONDS
            if not killed and workload.returned >= KILL_AT * total:
                killed = True
                counts[victim.name] += _outcomes(victim)
                victim.kill()
                progress.console.print(f"{victim.name} killed (SIGKILL) with messages in it")
            elif killed and not returned and workload.returned >= RETURN_AT * total:
                returned = True
                victim.start(wait=False)
                progress.console.print(f"{victim.name} started again")
            if workload.returned >= total:
                break
            time.sleep(0.05)
    if returned:
        victim.wait_ready()
    for name in GATEWAYS:
        if net.daemons[name].is_running:
            counts[name] += _outcomes(net.daemons[name])
    return counts


def _outcomes(gateway: Daemon) -> Counter[str]:
    forwarding = gateway.status()["forwarding"]
    return Counter({"forwarded": forwarding["forwarded"]}) + Counter(forwarding["dropped"])


def is_settled(net: Topology) -> bool:
    """Whether every dialog has been ended by both sides and nothing waits anywhere."""
    for name in ("orders", *TARGETS):
        with connection(net.daemons[name].directory / f"{name}.db") as db:
            open_dialogs = db.execute("SELECT count(*) FROM broker_conversation WHERE state <> 'CD'").fetchone()[0]
            waiting = db.execute("SELECT count(*) FROM broker_transmission").fetchone()[0]
        if open_dialogs or waiting:
            return False
    return True


def ledger_faults(net: Topology, plan: Plan) -> list[str]:
    """What does not add up, by the applications' own tables; empty when everything does."""
    found = []
    for name, dialogs in (("orders", plan.dialogs * len(plan.services)), *((name, plan.dialogs) for name in TARGETS)):
        with connection(net.daemons[name].directory / f"{name}.db") as db:
            found += [f"{name}: {problem}" for problem in faults(db, dialogs, plan.messages)]
    return found


def _report(net: Topology, gateways: dict[str, Counter[str]], console: Console) -> None:
    rows = []
    for name, service in ({"orders": INITIATOR} | TARGETS).items():
        database = net.daemons[name].status()["databases"][name]
        counts = database["services"][service]
        rows.append(
            {
                "service": service,
                "sent": counts["sent"],
                "delivered": counts["delivered"],
                "resent": counts["resent"],
                "duplicates dropped": database["dropped"].get("duplicate", 0),
            }
        )
    render_table(list(rows[0]), rows, title="Per service", console=console)
    reasons = sorted({reason for counts in gateways.values() for reason in counts} - {"forwarded"})
    rows = [
        {"gateway": name, "forwarded": counts["forwarded"], "dropped": _list(counts, reasons) or "none"}
        for name, counts in gateways.items()
    ]
    render_table(
        list(rows[0]),
        rows,
        title=f"Per gateway ({GATEWAYS[0]}: before it was killed, and after it came back)",
        console=console,
    )


def _settle_accounts(net: Topology, console: Console) -> list[str]:
    """Lay the ledgers of all databases side by side; what does not add up."""
    accounts = {name: read_account(net.daemons[name], name) for name in ("orders", *TARGETS)}
    _report_accounts(accounts, console)
    return account_faults(accounts)


def _report_accounts(accounts: Mapping[str, Account], console: Console) -> None:
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
    render_table(columns, [*rows, {"database": "all", **total}], title=title, console=console)


def _list(counts: Counter[str], reasons: list[str]) -> str:
    return ", ".join(f"{counts[reason]} {reason}" for reason in reasons if counts[reason])
