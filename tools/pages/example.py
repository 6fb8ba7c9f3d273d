"""
A small instance that runs the examples of the catalogue of numbers: pages show its answers.

It has the databases `shop` and `msdb`, as files in a directory, and no network.
"""

import asyncio
import re
import sqlite3
import textwrap
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import broker
from broker.catalog.catalog import MSDB, Borrow, Catalog, Database
from broker.catalog.execute import execute
from broker.ddl.parser import read_script
from broker.errors import BrokerError
from broker.observe.message_catalogue import MessageChannel
from broker.observe.query import SELF_MADE, SystemViews
from broker.observe.views import MEMORY_VIEWS
from broker.store.sqlite.database import broker_instance, open_store

SETUP = """\
CREATE ROUTE Billing WITH SERVICE_NAME = '//shop/Billing', ADDRESS = 'tcp://billing.example:4022';
USE shop;
CREATE MESSAGE TYPE [//shop/Invoice] VALIDATION = JSON;
CREATE MESSAGE TYPE [//shop/Letter] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//shop/Receipt] VALIDATION = EMPTY;
CREATE MESSAGE TYPE [//shop/Note];
CREATE CONTRACT [//shop/Invoicing]
    ([//shop/Invoice] SENT BY INITIATOR, [//shop/Letter] SENT BY ANY, [//shop/Receipt] SENT BY TARGET);
CREATE QUEUE OrdersQueue;
CREATE QUEUE BillingQueue;
CREATE QUEUE ClosedQueue WITH STATUS = OFF;
CREATE SERVICE [//shop/Orders] ON QUEUE OrdersQueue;
CREATE SERVICE [//shop/Billing] ON QUEUE BillingQueue;
CREATE BROKER PRIORITY Urgent FOR CONVERSATION SET (LOCAL_SERVICE_NAME = [//shop/Orders], PRIORITY_LEVEL = 9);
"""
MIRROR = "archive"  # a database of which another instance is the principal
SAMPLE = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"  # the GUID of the examples, and of sentences that show one
_GUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _lent(db: sqlite3.Connection) -> Borrow:
    return lambda: nullcontext(db)


class Example(ExitStack):
    """The instance, made in a directory until it is closed. Nothing that an example does to it is kept."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        paths = {MSDB: directory / "msdb.db", "shop": directory / "shop.db"}
        stores = {name: self.enter_context(closing(open_store(path))) for name, path in paths.items()}
        databases = {name: Database(name, broker_instance(db), None, _lent(db)) for name, db in stores.items()}
        self._catalog = Catalog(databases, lambda: None)
        asyncio.run(execute(self._catalog, read_script(SETUP), database=MSDB))
        snapshots = {name: tuple for name in MEMORY_VIEWS if name not in SELF_MADE}
        self._views = SystemViews(databases=paths, snapshots=snapshots, mirrors=[MIRROR])
        self._shop = self.enter_context(closing(sqlite3.connect(paths["shop"], isolation_level=None)))

    def told(self, place: MessageChannel, text: str) -> BrokerError:
        """The error in which an example ends. Raises ValueError: it ends in none."""
        carry_out = {
            MessageChannel.STATEMENT: self._script,
            MessageChannel.SELECT: self.select,
            MessageChannel.APPLICATION: self._python,
        }[place]
        try:
            carry_out(text)
        except BrokerError as error:
            return error
        raise ValueError(f"this {place} example is carried out: {textwrap.shorten(text, 80)}")

    def _script(self, text: str) -> None:
        asyncio.run(execute(self._catalog, read_script(text), database=MSDB))

    def select(self, text: str, *, database: str = MSDB) -> None:
        """Ask the views. Raises SqlError."""
        self._views.select(text, database=database)

    def _python(self, text: str) -> None:
        self._shop.execute("BEGIN")
        try:
            exec(compile(text, "example", "exec"), {"broker": broker, "db": self._shop})  # noqa: S102 - our own text
        finally:
            self._shop.execute("ROLLBACK")


def shown(error: BrokerError) -> str:
    """What an error says, with `HANDLE` for the GUIDs that are others at every run."""
    return _GUID.sub(lambda found: found[0] if found[0].lower() == SAMPLE else "HANDLE", str(error))
