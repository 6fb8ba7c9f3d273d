"""What an operator or an application writes: T-SQL statements, questions, TOML, the environment."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from broker.config.consistency import setting_warnings
from broker.config.load import load_settings
from broker.config.schema import settings_of
from broker.config.settings import Settings
from broker.ddl.parser import parse_script, read_script
from broker.ddl.render import render_statement
from broker.ddl.statements import CreateRoute
from broker.errors import DdlSyntaxError, SettingsError, StatementError, StoreUnavailableError
from broker.observe import query
from broker.observe import views as view
from broker.observe.query import SystemViews
from broker.routing.route import PropertyError, create_route
from broker.store.sqlite.database import open_store
from tests.fuzz.target import KIB, Target, directory

QUERY_SECONDS = 0.5
_WORD = re.compile(r"[A-Za-z_]{2,}")


def _text(data: bytes) -> str:
    """Any text that may come in: half characters too, which JSON and files do not let through but a caller may."""
    return data.decode("utf-8", "surrogateescape")


# --- scripts ---


def _script(data: bytes) -> None:
    """Every statement reads back from its rendering; every mistake has a place inside of the text."""
    text = _text(data)
    lines = text.split("\n")
    for outcome in read_script(text, source="fuzz"):
        if isinstance(outcome, DdlSyntaxError):
            span = outcome.span
        else:
            assert outcome.origin is not None
            span = outcome.origin.span(outcome.origin.start, outcome.origin.end)
        assert span is not None
        assert 1 <= span.line <= len(lines)
        assert 1 <= span.column <= len(lines[span.line - 1]) + 1
        if isinstance(outcome, DdlSyntaxError):
            assert str(outcome)
            continue
        assert [outcome] == parse_script(render_statement(outcome))
        if isinstance(outcome, CreateRoute):
            try:
                create_route(outcome.name, outcome.properties)
            except PropertyError as error:
                assert error.properties  # noqa: PT017 - a route that is refused and one that is not are both right


SCRIPTS = [
    "CREATE ROUTE [r] AUTHORIZATION dbo WITH SERVICE_NAME = N'//a', LIFETIME = 60, ADDRESS = 'tcp://a:4022'",
    "CREATE ROUTE r WITH BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11', MIRROR_ADDRESS = 'tcp://b:4022'",
    "ALTER ROUTE r WITH ADDRESS = 'LOCAL'\nGO\nDROP ROUTE r",
    "CREATE QUEUE dbo.q WITH STATUS = ON, POISON_MESSAGE_HANDLING (STATUS = OFF); ALTER QUEUE q WITH STATUS = OFF",
    "CREATE SERVICE [//s] ON QUEUE q ([//c], [DEFAULT]); ALTER SERVICE [//s] (ADD CONTRACT [x], DROP CONTRACT [y])",
    "CREATE MESSAGE TYPE t VALIDATION = WELL_FORMED_XML; CREATE CONTRACT c (t SENT BY ANY, u SENT BY INITIATOR)",
    "CREATE BROKER PRIORITY p FOR CONVERSATION SET (CONTRACT_NAME = ANY, PRIORITY_LEVEL = 3)",
    "END CONVERSATION '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11' WITH ERROR = 5 DESCRIPTION = N'it''s'",
    "BEGIN CONVERSATION TIMER ('5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11') TIMEOUT = 9; USE [a]]b];",
    "MOVE CONVERSATION '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11' TO '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f12'",
    "ALTER DATABASE CURRENT SET NEW_BROKER -- /* \n/* -- /* */ ' */ GO 5",
    "CREATE ROUTE r WITH ADDRESS = 'x",
    "CREATE CERTIFICATE c FROM FILE = 'c.pem'; GRANT SEND ON SERVICE::[//s] TO [CN=billing]; DENY CONNECT TO x;",
    "CREATE REMOTE SERVICE BINDING b TO SERVICE '//s' WITH USER = [CN=x], ANONYMOUS = ON; REVOKE CONNECT FROM x",
    "\ud800 \ufeff \u017f [" + "]]" * 50,
]


# --- questions ---


@cache
def _views() -> SystemViews:
    databases = {name: directory() / f"{name}.db" for name in ("msdb", "orders")}
    for path in databases.values():
        open_store(path).close()
    asked = view.MEMORY_VIEWS.keys() - query.SELF_MADE
    snapshots: dict[str, Callable[[], list[Any]]] = dict.fromkeys(asked, list)
    limits = query.QueryLimits(seconds=QUERY_SECONDS, rows=1000, result_bytes=KIB * KIB)
    return query.SystemViews(databases=databases, snapshots=snapshots, limits=limits)


def _question(data: bytes) -> None:
    """What JSON can carry, so no half characters: the admin interface has refused those."""
    _views().select(data.decode(errors="replace"), database="orders")


QUESTIONS = [
    "SELECT TOP (5) name, address FROM msdb.sys.routes WHERE name LIKE 'a%' ORDER BY name DESC",
    "WITH a AS (SELECT COUNT(*) AS n FROM sys.conversation_endpoints) SELECT n + 1 FROM a",
    "SELECT c.state_desc, q.name FROM sys.conversation_endpoints c LEFT JOIN sys.service_queues q ON 1 = 1",
    "SELECT CAST(message_body AS nvarchar(max)), GETUTCDATE(), DATEDIFF(second, '2026-01-01', SYSUTCDATETIME()) FROM q",
    "SELECT * FROM sys.routes FOR XML PATH; DROP TABLE x",
    "DELETE FROM sys.routes",
    "SELECT " + "(" * 400 + "1" + ")" * 400,
    "SELECT " + "-" * 999 + "1",
    "SELECT zeroblob(999999999), randomblob(999999999), load_extension('x')",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r",
    "SELECT REPLICATE('x', 2000000000)",
    "SELECT DATEDIFF('', '2026', '2027'), CONVERT('', 1), DATEADD([], 1, 2)",
    "SELECT * FROM sqlite_master; ATTACH 'x' AS y; PRAGMA writable_schema = 1",
    "SELECT [a]]b], 'it''s', N'\u00e9', 0xFF, 1e308 * 10, NULL, @@VERSION, {fn NOW()}",
]


# --- settings ---


def _settings(data: bytes) -> None:
    """The first line is a variable of the environment, the rest the file; of a report each error takes one line."""
    name, _, rest = data.partition(b"\n")
    variable, _, value = _text(name).partition("=")
    path = directory() / "broker.toml"
    path.write_bytes(rest)
    environ = {f"BROKER_{variable.upper()}": value} if variable else {}
    try:
        warnings = setting_warnings(load_settings(path, environ=environ))
    except SettingsError as error:
        assert len(error.errors) == len("\n".join(map(str, error.errors)).splitlines())  # noqa: PT017 - raised again
        raise
    assert len(warnings) == len("\n".join(map(str, warnings)).splitlines())


CONFIGURATIONS = [
    '\n[instance]\nname = "a"\nstate_dir = "."\n[endpoint]\nlisten = ["127.0.0.1:0"]\nmessage_forwarding = true\n',
    'ENDPOINT__MAX_HOPS=4\n[databases.orders]\npath = "orders.db"\nscripts = ["*.sql"]\n[admin]\nlisten = "[::1]:0"\n',
    'ENDPOINT__LISTEN=["a:1","b:2"]\n[journal]\ndirectory = "flows"\nsample = 0.5\n',
    "INSTANCE__NAME=x\n[endpoint]\nmax_hops = 0xfff\nmax_hops = 2\n[endpoint]\n[[endpoint]]\n",
    "A__B=[[[[\n" + "a = " + "[" * 500 + "]" * 500,
    '\na.b.c.d."e f" = {x = [1, {y = """\nz"""}], "" = 1979-05-27T07:32:00Z}\n',
    "\nendpoint = 5\n[limits]\nconnections = -1\n",
    "\n\xff\x00",
    "ENDPOINT__]\x0b[journal]\n[journal]\n",  # a name that would have broken the line it is told in
    "\xc4NDPOINT__LISTEN=[]\n",  # no UTF-8, and so no key that pydantic could name
]


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (
        Target(
            "script",
            _script,
            (),
            lambda: [one.encode(errors="surrogatepass") for one in SCRIPTS],
            words=tuple(sorted({word for one in SCRIPTS for word in _WORD.findall(one)})),
        ),
        Target(
            "question",
            _question,
            (StatementError, StoreUnavailableError),
            lambda: [one.encode() for one in QUESTIONS],
            memory_max=32 * KIB * KIB,
            words=tuple(sorted({word for one in QUESTIONS for word in _WORD.findall(one)} | view.MEMORY_VIEWS.keys())),
        ),
        Target(
            "settings",
            _settings,
            (SettingsError,),
            lambda: [one.encode("latin-1") for one in CONFIGURATIONS],
            words=tuple(sorted({str(step) for one in settings_of(Settings) for step in one.path})),
        ),
    )
