# ruff: noqa: E501 - the scripts stand here as they were published, line for line  # noqa: RUF100
"""
The servers, the scripts and the applications of "Using multiple routes in Service Broker".

The scripts are the article's own, word for word. Only two things are put in their place when they are run: a broker
instance is called like its database there ("in reality they would be GUIDs"), and `tcp://ServerB:4022` becomes the
address on which ServerB really listens. The services themselves are taken for granted there, so they are made here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Self

import broker
from examples.demo.topology import Daemon, Topology

DATABASES = {"ServerA": "DatabaseA", "ServerB": "DatabaseB", "ServerC": "DatabaseC"}
INSTANCES = {database: str(uuid.uuid5(uuid.NAMESPACE_OID, database)) for database in DATABASES.values()}
QUEUE = "Inbox"
BATCH = 1000  # dialogs, or messages, in one transaction

# --- Load balancing example: DatabaseA on ServerA; DatabaseB on ServerB and DatabaseC on ServerC; two msdbs ---

LOAD_BALANCING = """
CREATE ROUTE [LoadBalancingRoute1] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseB', ADDRESS = 'tcp://ServerB:4022';
CREATE ROUTE [LoadBalancingRoute2] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseC', ADDRESS = 'tcp://ServerC:4022';
"""
RETURN = """
CREATE ROUTE [ReturnRoute] WITH SERVICE_NAME = 'InitiatorService', BROKER_INSTANCE = 'DatabaseA', ADDRESS = 'tcp://ServerA:4022';
"""
# --- Unfair load balancing ---

UNFAIR = """
CREATE ROUTE [LoadBalancingRoute1] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseB', ADDRESS = 'tcp://ServerB:4022';
CREATE ROUTE [LoadBalancingRoute2] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseC', ADDRESS = 'tcp://ServerC:4022';
CREATE ROUTE [LoadBalancingRoute3] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseC', ADDRESS = 'tcp://ServerC:4022';
"""

# --- High availability example: DatabaseA; DatabaseB; msdb of both gateways; the msdbs of the servers are as above ---

HIGH_AVAILABILITY = """
CREATE ROUTE [HighAvailabilityRoute1] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseB', ADDRESS = 'tcp://GatewayA:4022';
CREATE ROUTE [HighAvailabilityRoute2] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseB', ADDRESS = 'tcp://GatewayB:4022';
"""
HIGH_AVAILABILITY_RETURN = """
CREATE ROUTE [ReturnRoute1] WITH SERVICE_NAME = 'InitiatorService', BROKER_INSTANCE = 'DatabaseA', ADDRESS = 'tcp://GatewayA:4022';
CREATE ROUTE [ReturnRoute2] WITH SERVICE_NAME = 'InitiatorService', BROKER_INSTANCE = 'DatabaseA', ADDRESS = 'tcp://GatewayB:4022';
"""
FORWARDING = """
CREATE ROUTE [ForwardingRoute] WITH SERVICE_NAME = 'TargetService', BROKER_INSTANCE = 'DatabaseB', ADDRESS = 'tcp://ServerB:4022';
CREATE ROUTE [ForwardingReturnRoute] WITH SERVICE_NAME = 'InitiatorService', BROKER_INSTANCE = 'DatabaseA', ADDRESS = 'tcp://ServerA:4022';
"""


def add_servers(net: Topology, names: Iterable[str], settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Servers with their databases; whatever has none is a gateway."""
    for name in names:
        databases = [DATABASES[name]] if name in DATABASES else []
        net.add(name, forwarding=not databases, databases=databases, broker_instances=INSTANCES, settings=settings)


def deploy(net: Topology, scripts: Mapping[str, str]) -> None:
    """Give databases their service and their routes, and msdbs their routes; keys are `DatabaseA`, `msdb of ServerA`."""
    for where, script in scripts.items():
        database, _, name = where.partition(" of ")
        if not name:
            (name,) = (server for server, hosted in DATABASES.items() if hosted == database)
            service = "InitiatorService" if database == "DatabaseA" else "TargetService"
            script = f"CREATE QUEUE {QUEUE}; CREATE SERVICE [{service}] ON QUEUE {QUEUE};\n{script}"  # noqa: PLW2901
        net.script(name, database, as_here(net, script))


def as_here(net: Topology, script: str) -> str:
    """A script with the broker instances and the addresses of this topology in place of their names."""
    for database, instance in INSTANCES.items():
        script = script.replace(f"BROKER_INSTANCE = '{database}'", f"BROKER_INSTANCE = '{instance}'")
    for name, daemon in net.daemons.items():
        script = script.replace(f"'tcp://{name}:4022'", f"'{daemon.address}'")
    return script


def without_broker_instance(script: str, database: str) -> str:
    """The same routes by service name only: "you may omit the BROKER_INSTANCE part"."""
    return script.replace(f"BROKER_INSTANCE = '{database}', ", "")


class Application:
    """
    The application on a server's database; used by one thread.

    Shape: `dialogs` by conversation id, those begun here or heard of; `heard` the bodies of each, in order of arrival.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.database = DATABASES[daemon.name]
        self.dialogs: dict[uuid.UUID, broker.Dialog] = {}
        self.heard: dict[uuid.UUID, list[str]] = {}
        self._db = daemon.connect(self.database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def begin(self, count: int, *, broker_instance: str | None = None) -> set[uuid.UUID]:
        """BEGIN DIALOG so many times, a first message `0` on each; the new conversation ids."""
        begun = set()
        for start in range(0, count, BATCH):
            with self._db:
                for _ in range(min(BATCH, count - start)):
                    dialog = broker.begin_dialog(
                        self._db,
                        from_service="InitiatorService",
                        to_service="TargetService",
                        broker_instance=broker_instance,
                    )
                    dialog.send("0")
                    self.dialogs[dialog.conversation_id] = dialog
                    begun.add(dialog.conversation_id)
        return begun

    def say(self, body: str) -> None:
        """SEND the same on every dialog."""
        dialogs = list(self.dialogs.values())
        for start in range(0, len(dialogs), BATCH):
            with self._db:
                for dialog in dialogs[start : start + BATCH]:
                    dialog.send(body)

    def end(self, conversations: Iterable[uuid.UUID]) -> None:
        """END CONVERSATION of each."""
        with self._db:
            for conversation in conversations:
                self.dialogs[conversation].end()

    def listen(self) -> dict[uuid.UUID, list[str]]:
        """RECEIVE what is there now; all that was ever heard."""
        while True:
            with self._db:
                messages = broker.receive(self._db, queue=QUEUE, top=BATCH)
            for message in messages:
                self.dialogs.setdefault(message.dialog.conversation_id, message.dialog)
                self.heard.setdefault(message.dialog.conversation_id, []).append(message.body.decode())
            if len(messages) < BATCH:
                return self.heard

    @property
    def messages_sent(self) -> int:
        """Messages that its daemon has handed to a next hop since it was started, resends left out."""
        return self._count("sent")

    def _count(self, what: str) -> int:
        services = self.daemon.status()["databases"][self.database]["services"]
        return sum(service[what] for service in services.values())

    @property
    def is_all_acknowledged(self) -> bool:
        """Whether everything said is stored at the far sides."""
        return not self.daemon.query("SELECT TOP 1 * FROM sys.transmission_queue", self.database)

    def bound_to(self, database: str) -> set[uuid.UUID]:
        """The dialogs that have fixed this database as their far side, as the original's view tells."""
        query = "SELECT conversation_id FROM sys.conversation_endpoints WHERE far_broker_instance = "
        rows = self.daemon.query(f"{query}'{INSTANCES[database].upper()}'", self.database)
        return {uuid.UUID(row["conversation_id"]) for row in rows}

    def states(self) -> dict[uuid.UUID, str]:
        """The states of all dialogs of its database, as the original's view tells."""
        rows = self.daemon.query("SELECT conversation_id, state FROM sys.conversation_endpoints", self.database)
        return {uuid.UUID(row["conversation_id"]): row["state"] for row in rows}
