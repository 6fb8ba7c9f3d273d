"""
The instances of the day, and what is done to them while they work.

Each initiator reaches each target by way of either gateway, and is reached by its answers in the same way. Every two
hours of the day one instance gets another certificate; every four, a route of an initiator expires and is revived, and
a gateway hands on to the other one for an hour.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from uuid import uuid4

from bench.dialogs import QUEUE
from bench.figures import resident_mib
from bench.generator import PREFIX
from broker.security.certificate_files import Pair, store_files
from broker.security.issue import CertificateSubject, Validity, certificates_pem, issue_endpoint, make_authority
from examples.demo.topology import Daemon, Topology

HOURS = 24
GATEWAYS = ("gateway-1", "gateway-2")
INITIATORS = ("orders-1", "orders-2")
TARGETS = ("billing-1", "billing-2")
ENDS = (*INITIATORS, *TARGETS)
INSTANCES = (*GATEWAYS, *ENDS)
DATABASE = "work"
VALID_HOURS, LEAST_VALID = 14, timedelta(minutes=2)  # each certificate is replaced after twelve hours at most
FILE_HOURS, KEEP_HOURS = 0.5, 6  # of files of the journal
ROUTE_HOURS = 1.5  # after which the route expires that is revived an hour later
EARLY = timedelta(minutes=5)  # that a certificate was valid before it was made: clocks differ
FOR_EVER = 10**9  # seconds


class DayNet:
    """
    Six daemons. Use as a context manager.

    Args:
        directory: Of all their files.
        hour_seconds: How long an hour of the day takes.
    """

    def __init__(self, directory: Path, hour_seconds: float) -> None:
        self._directory, self._hour = directory, hour_seconds
        self._net = Topology(directory / "net")
        now = datetime.now(UTC)
        self._authority = make_authority("day", Validity(now - EARLY, now + timedelta(days=2)))
        (directory / "trust.pem").write_bytes(certificates_pem(self._authority.roots))
        self._ends_at: list[datetime] = []
        self._changes = 0
        self._broker_instances = {name: str(uuid4()) for name in ENDS}
        for name in INSTANCES:
            self._issue(name)
            self._add(name)
        self._write_scripts()

    def __enter__(self) -> Self:
        try:
            for daemon in self._net.daemons.values():  # one after the other: all at once take long on a small machine
                daemon.start()
        except BaseException:
            self._net.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._net.stop()

    def path(self, name: str) -> str:
        """The database of an initiator or a target."""
        return str(self._net.daemons[name].directory / f"{DATABASE}.db")

    def errand(self, hour: int) -> None:
        """What is done at the beginning of an hour."""
        if hour % 2 == 0:
            self._issue(INSTANCES[hour // 2 % len(INSTANCES)])
        route, orders, gateway = _name(TARGETS[0], GATEWAYS[0]), self._net.daemons[INITIATORS[0]], GATEWAYS[0]
        if hour % 4 == 1:
            lifetime = max(1, round(ROUTE_HOURS * self._hour))
            orders.admin.sql(f"ALTER ROUTE [{route}] WITH LIFETIME = {lifetime}", DATABASE)
        elif hour % 4 == 0 and hour:
            orders.admin.sql(f"ALTER ROUTE [{route}] WITH LIFETIME = {FOR_EVER}", DATABASE)
        elif hour % 4 == 2:
            self._lead(gateway, TARGETS[0], self._net.daemons[GATEWAYS[1]])
        elif hour % 4 == 3:
            self._lead(gateway, TARGETS[0], self._net.daemons[TARGETS[0]])
        self._changes += hour > 0

    def memory_mib(self) -> dict[str, float]:
        """Resident memory now, of the larger one of each kind."""
        kinds = {"gateway_mib": GATEWAYS, "sender_mib": INITIATORS, "target_mib": TARGETS}
        return {kind: max(resident_mib(self._net.daemons[name].pid) for name in names) for kind, names in kinds.items()}

    def journal_counts(self) -> dict[str, float]:
        """Files of all journals that are there now, and records that were shed so far."""
        there = sum(1 for name in INSTANCES for _ in self._journal(name).rglob("*.parquet"))
        shed = sum(daemon.status()["journal"]["shed"] for daemon in self._net.daemons.values())
        return {"journal_files": float(there), "shed": float(shed)}

    def counts(self) -> dict[str, int]:
        """What has happened on the way."""
        status = {name: daemon.status() for name, daemon in self._net.daemons.items()}
        journals = [one["journal"] for one in status.values()]
        dropped = sum(sum(status[name]["forwarding"]["dropped"].values()) for name in GATEWAYS)
        return {
            "frames dropped by gateways, and sent again": dropped,
            "changes of routes": self._changes,
            "certificates replaced": len(self._ends_at) - len(INSTANCES),
            "certificates that expired": sum(one < datetime.now(UTC) for one in self._ends_at),
            "records in journals": sum(journal["records"] for journal in journals),
            "records shed": sum(journal["shed"] for journal in journals),
            "files of journals written": sum(journal["files"] for journal in journals),
            "files of journals removed": sum(journal["removed_files"] for journal in journals),
        }

    def _add(self, name: str) -> None:
        pair = self._pair(name)
        settings: dict[str, dict[str, object]] = {
            "endpoint": {
                "encryption": "required",
                "authentication": "certificate",
                "certificate": str(pair.certificate),
                "private_key": str(pair.private_key),
                "trust": [str(self._directory / "trust.pem")],
            },
            "journal": {
                "directory": str(self._journal(name)),
                "file_age": f"{max(1000, round(1000 * FILE_HOURS * self._hour))}ms",
                "keep_age": f"{max(1000, round(1000 * KEEP_HOURS * self._hour))}ms",
            },
        }
        is_end = name in ENDS
        daemon = self._net.add(
            name,
            forwarding=not is_end,
            databases=[DATABASE] if is_end else [],
            broker_instances={DATABASE: self._broker_instances[name]} if is_end else None,
            settings=settings,
        )
        daemon.prefix = PREFIX

    def _write_scripts(self) -> None:
        for gateway in GATEWAYS:
            routes = [self._route(end, end, self._net.daemons[end]) for end in ENDS]
            neighbours = [name for name in INSTANCES if name != gateway]
            self._net.script(
                gateway, "msdb", "\n".join(["DROP ROUTE AutoCreatedLocal;", *routes, _grant(gateway, neighbours)])
            )
        for end in ENDS:
            far = TARGETS if end in INITIATORS else INITIATORS
            routes = [self._route(_name(to, by), to, self._net.daemons[by]) for to in far for by in GATEWAYS]
            service = f"CREATE QUEUE {QUEUE}; CREATE SERVICE [//day/{end}] ON QUEUE {QUEUE};"
            self._net.script(end, DATABASE, "\n".join([service, *routes]))
            self._net.script(end, "msdb", _grant(end, GATEWAYS))

    def _route(self, name: str, end: str, next_hop: Daemon) -> str:
        return (
            f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '//day/{end}',"
            f" BROKER_INSTANCE = '{self._broker_instances[end]}', ADDRESS = '{next_hop.address}';"
        )

    def _lead(self, gateway: str, end: str, next_hop: Daemon) -> None:
        """From now on a gateway hands what is for an end to somebody else."""
        self._net.daemons[gateway].admin.sql(f"ALTER ROUTE [{end}] WITH ADDRESS = '{next_hop.address}'", "msdb")

    def _issue(self, name: str) -> None:
        """A certificate for an instance, in the place of the one that it has."""
        now = datetime.now(UTC)
        validity = Validity(now - EARLY, now + max(LEAST_VALID, timedelta(seconds=VALID_HOURS * self._hour)))
        issued = issue_endpoint(CertificateSubject(name, hosts=("127.0.0.1",)), validity, self._authority)
        store_files(self._pair(name).files(issued), is_replacing=True)
        self._ends_at.append(validity.ends)

    def _pair(self, name: str) -> Pair:
        return Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")

    def _journal(self, name: str) -> Path:
        return self._directory / "journal" / name


def _grant(instance: str, neighbours: Iterable[str]) -> str:
    """They may connect, and send to whatever service."""
    return "\n".join(
        f"GRANT CONNECT ON ENDPOINT::[{instance}] TO [CN={name}]; GRANT SEND ON SERVICE::[*] TO [CN={name}];"
        for name in neighbours
    )


def _name(end: str, gateway: str) -> str:
    return f"{end}-{gateway}"
