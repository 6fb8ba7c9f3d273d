"""Queries of the views: what they answer, what they refuse, and the limits that hold."""

import contextlib
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import receive
from broker.errors import BrokerError, StatementError, StoreUnavailableError
from broker.observe.query import ATTACHED_MAX, SELF_MADE, QueryLimits, SystemViews, translate
from broker.observe.tsql import SelectQuery
from broker.observe.views import MEMORY_VIEWS
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue, put_service, queues
from broker.store.sqlite.views import FILE_VIEWS


def translated(sentence: str, code: int = sqlite3.SQLITE_ERROR) -> BrokerError:
    error = sqlite3.OperationalError(sentence)
    error.sqlite_errorcode = code
    return translate(error, SelectQuery("SELECT nam, COUNT(*) FROM Q"), columns=["name", "address"], path="/a.db")


@pytest.mark.parametrize(
    ("sentence", "number", "problem"),
    [
        ("no such function: F", 195, "'F' is not a recognized function name"),
        ("misuse of window function RANK()", 147, "aggregate or window function is out of place: RANK"),
        ("access to d.t.c is prohibited", 229, "the SELECT permission was denied on 'd.t.c'"),
        ("something else", 102, "not supported: something else"),
    ],
)
def test_sentence_of_sqlite_becomes_a_numbered_error(sentence: str, number: int, problem: str) -> None:
    error = translated(sentence)

    assert isinstance(error, StatementError)
    assert (number, True) == (error.number, error.problem.endswith(problem))


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR | 256])
def test_fault_of_the_file_is_the_machines(code: int) -> None:
    error = translated("disk I/O error", code)

    assert isinstance(error, StoreUnavailableError)
    assert (True, True) == (str(error).startswith("store /a.db: "), str(error).endswith(" (disk I/O error)"))


CONNECTIONS = "sys.dm_broker_connections"


EMPTY: dict[str, Callable[[], Any]] = {name: tuple for name in MEMORY_VIEWS if name not in SELF_MADE}


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The database `orders`: a service, its queue, and a table of the application."""
    with closing(open_store(tmp_path / "orders ?#.db")) as db:
        put_queue(db, "OrdersQueue", is_receive_enabled=True)
        put_service(db, "//shop/Orders", queues(db)["OrdersQueue"].queue_id, frozenset())
        db.execute("CREATE TABLE customer (name TEXT, card TEXT)")
        db.execute("INSERT INTO customer VALUES ('Ann', '4111')")
        yield db


@pytest.fixture
def dialog(orders: sqlite3.Connection) -> Dialog:
    """A dialog with three messages on their way."""
    dialog = begin_dialog(orders, from_service="//shop/Orders", to_service="//shop/Billing")
    for body in (b"one", b"two", b"\x00\xff"):
        dialog.send(body)
    return dialog


@pytest.fixture
def msdb(tmp_path: Path) -> dict[str, Path]:
    open_store(tmp_path / "msdb.db").close()
    return {"msdb": tmp_path / "msdb.db"}


@pytest.fixture
def views(orders: sqlite3.Connection, msdb: dict[str, Path], tmp_path: Path) -> SystemViews:
    return SystemViews(databases=msdb | {"orders": tmp_path / "orders ?#.db"}, snapshots=EMPTY)


@pytest.fixture
def ask(views: SystemViews) -> Callable[[str], list[tuple[object, ...]]]:
    """The rows of a statement meant for `orders`."""
    return lambda statement: views.select(statement, database="orders").rows


def refused(views: SystemViews, statement: str, database: str = "orders") -> StatementError:
    with pytest.raises(StatementError) as caught:
        views.select(statement, database=database)
    return caught.value


# --- what can be asked --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT TOP 1 message_body FROM sys.transmission_queue ORDER BY message_sequence_number", [("0x6F6E65",)]),
        (
            "SELECT message_body FROM sys.transmission_queue ORDER BY 1 OFFSET 2 ROWS FETCH NEXT 1 ROWS ONLY",
            [("0x74776F",)],
        ),
        ("SELECT message_sequence_number FROM sys.transmission_queue WHERE message_body = 0x00FF", [(2,)]),
        ("SELECT n = name FROM [sys].[services] WITH (NOLOCK) -- x\n/* /* y */ */\n\t go ;\n", [("//shop/Orders",)]),
        (
            "SELECT name FROM sys.services UNION ALL SELECT name FROM sys.service_queues",
            [("//shop/Orders",), ("OrdersQueue",)],
        ),
        ("SELECT 1 FROM sys.transmission_queue WHERE enqueue_time BETWEEN N'2000-01-01' AND '2001-01-01'", []),
        (
            "SELECT CAST(message_body AS VARCHAR(MAX)) FROM sys.transmission_queue WHERE message_sequence_number = 2",
            [("\x00\ufffd",)],
        ),
        (
            (
                "SELECT DISTINCT state_desc FROM sys.transmission_queue t JOIN sys.conversation_endpoints AS e"
                " ON e.conversation_handle = t.conversation_handle"
            ),
            [("CONVERSING",)],
        ),
        ("SELECT ISNULL(lifetime, 'never'), COALESCE(mirror_address, address) FROM sys.routes", [("never", "LOCAL")]),
        ("SELECT COUNT(*) FROM sys.transmission_queue WHERE enqueue_time > '20000101'", [(3,)]),
        ("SELECT COUNT(*) FROM sys.transmission_queue WHERE enqueue_time > '9999-12-31T23:59'", [(0,)]),
        (
            "WITH q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q WHERE n < 9) SELECT COUNT(*), MAX(n) FROM q",
            [(9, 9)],
        ),
        ("WITH Customer AS (SELECT 1 AS a) SELECT COUNT(*) FROM customer", [(1,)]),
        (
            "SELECT (SELECT COUNT(*) FROM sys.routes) FROM sys.services WHERE NOT EXISTS (SELECT 1 FROM OrdersQueue)",
            [(1,)],
        ),
        ("SELECT NAME FROM SYS.SERVICES", [("//shop/Orders",)]),
        ("SELECT name FROM Orders.sys.services", [("//shop/Orders",)]),
        ("SELECT a.name FROM sys.services a, orders.sys.services b WHERE a.name = b.name", [("//shop/Orders",)]),
    ],
)
def test_tsql_is_answered(ask: Any, dialog: Dialog, statement: str, expected: list[tuple[object, ...]]) -> None:
    assert expected == ask(statement)


@pytest.mark.parametrize("view", [*FILE_VIEWS, *MEMORY_VIEWS])
@pytest.mark.parametrize("database", ["orders", "msdb"])
def test_every_view_can_be_read_in_every_database(views: SystemViews, dialog: Dialog, view: str, database: str) -> None:
    result = views.select(f"SELECT * FROM {view}", database=database)

    expected = MEMORY_VIEWS.get(view) or tuple(FILE_VIEWS[view].columns)
    assert expected == result.columns
    assert [(len(result.rows),)] == views.select(f"SELECT COUNT(*) FROM {view}", database=database).rows


@pytest.mark.promise("statements 3")
def test_transmission_status_is_asked_of_a_handle_or_of_each_of_a_column(
    orders: sqlite3.Connection, dialog: Dialog, ask: Callable[[str], list[tuple[object, ...]]]
) -> None:
    quiet = begin_dialog(orders, from_service="//shop/Orders", to_service="//shop/Quiet")
    orders.execute("UPDATE broker_conversation SET transmission_status = 'no route'")

    told = [
        ask(f"SELECT GET_TRANSMISSION_STATUS('{str(one).lower()}') AS status")
        for one in (dialog.conversation_handle, quiet.conversation_handle, uuid.uuid4())
    ]

    assert [[("no route",)], [("",)], [("",)]] == told
    each = "SELECT far_service, Get_Transmission_Status(conversation_handle) FROM sys.conversation_endpoints ORDER BY 1"
    assert [("//shop/Billing", "no route"), ("//shop/Quiet", "")] == ask(each)


@pytest.mark.parametrize(("arguments", "number"), [("", 174), ("'a', 'b'", 174), ("'a'", 8169)])
@pytest.mark.promise("statements 3")
def test_transmission_status_is_of_one_handle(views: SystemViews, arguments: str, number: int) -> None:
    assert number == refused(views, f"SELECT GET_TRANSMISSION_STATUS({arguments})").number


# --- queues -------------------------------------------------------------------------------------------------


@pytest.fixture
def message(orders: sqlite3.Connection, dialog: Dialog) -> None:
    orders.execute(
        "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
        " message_enqueue_time, message_body) VALUES (1, 1, 0, 't', 2.0, ?)",
        (b"body",),
    )


def test_queue_is_read_by_any_of_its_names_and_keeps_its_messages(
    ask: Any, message: None, orders: sqlite3.Connection
) -> None:
    for name in ("OrdersQueue", "[OrdersQueue]", "dbo.ordersqueue", "orders.dbo.OrdersQueue"):
        assert ask(f"SELECT status, service_name, message_body FROM {name}") == [(1, "//shop/Orders", "0x626F6479")]
    put_queue(orders, "ORDERSQUEUE", is_receive_enabled=True)

    counts = [ask(f"SELECT COUNT(*) FROM {name}") for name in ("OrdersQueue", "ORDERSQUEUE")]

    assert counts == [[(1,)], [(0,)]]
    assert [taken.body for taken in receive(orders, queue="OrdersQueue")] == [b"body"]


# --- databases and memory views -----------------------------------------------------------------------------


def test_snapshot_is_taken_only_for_what_is_mentioned_and_once(msdb: dict[str, Path]) -> None:
    calls: list[str] = []

    def provide(name: str) -> dict[Any, Any]:
        calls.append(name)
        return {}

    views = SystemViews(databases=msdb, snapshots={name: partial(provide, name) for name in EMPTY})

    views.select(f"SELECT 1 FROM {CONNECTIONS} a, msdb.{CONNECTIONS} b, sys.databases", database="msdb")

    assert calls == [CONNECTIONS]


def test_statement_reads_so_many_databases_and_no_more(msdb: dict[str, Path], tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(ATTACHED_MAX + 1)]
    for name in names:
        open_store(tmp_path / f"{name}.db").close()
    views = SystemViews(databases=msdb | {name: tmp_path / f"{name}.db" for name in names}, snapshots=EMPTY)
    selects = [f"SELECT name FROM {name}.sys.routes" for name in names]

    assert len(views.select(" UNION ALL ".join(selects[:-1]), database="msdb").rows) == ATTACHED_MAX
    assert refused(views, " UNION ALL ".join(selects), "msdb").number == 102


# --- what is wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "number", "problem"),
    [
        ("SELECT r.adress FROM sys.routes r", 207, "invalid column name 'r.adress'; did you mean address?"),
        ("SELECT nme FROM sys.routes", 207, "invalid column name 'nme'; did you mean name?"),
        ("SELECT * FROM sys.route", 208, "invalid object name 'sys.route'; did you mean sys.routes?"),
        ("SELECT * FROM OrderQueue", 208, "invalid object name 'OrderQueue'; did you mean OrdersQueue?"),
        ("SELECT * FROM ordres.sys.routes", 208, "invalid object name 'ordres.sys.routes'; did you mean orders?"),
        ("SELECT * FROM msdb.dbo.OrdersQueue", 208, "invalid object name 'msdb.dbo.OrdersQueue'"),
        (
            "SELECT * FROM guest.OrdersQueue",
            208,
            "invalid object name 'guest.OrdersQueue'; did you mean dbo.OrdersQueue?",
        ),
        ("SELECT name FROM sys.routes, sys.services", 209, "ambiguous column name 'name': name its table too"),
        ("SELECT SUBSTRING(name) FROM sys.routes", 174, "wrong number of arguments to 'SUBSTRING'"),
        ("SELECT name FROM sys.routes WHERE lifetime > 'soon'", 241, "conversion failed: no date, time or number"),
        ("WITH q AS (SELECT * FROM q) SELECT * FROM q", 252, "the expression 'q' refers to itself without UNION ALL"),
        ("SELECT NEXT VALUE FOR s", 195, "'NEXT VALUE FOR' is not a recognized function name: there are no sequences"),
        (
            "SELECT name FROM sys.databases WHERE database_id = DB_ID('w')",
            195,
            "'DB_ID' is not a recognized function name: compare the name instead, as in WHERE name = 'work'",
        ),
        ("SELECT DATETRUNC(day, lifetime) FROM sys.routes", 195, "'DATETRUNC' is not a recognized function name"),
    ],
)
def test_mistake_is_told_by_number_and_with_the_nearest_name(
    views: SystemViews, statement: str, number: int, problem: str
) -> None:
    error = refused(views, statement)

    assert (number, problem) == (error.number, error.problem)


@pytest.mark.parametrize(
    ("statement", "column", "width"),
    [
        ("SELECT name, weigth FROM sys.routes", 14, 6),
        ("SELECT nix.name FROM nix", 22, 3),
        ("SELECT name FROM msdb.sys.nix AS n", 18, 12),
        ("SELECT name FROM [far].msdb.sys.routes", 18, 21),
        ("SELECT NEXT VALUE FOR s", 8, 4),
        ("SELECT 1, UPPER(REPLICATE(name, 2)) FROM sys.routes", 17, 9),
    ],
)
def test_error_points_at_the_whole_of_what_was_written(
    views: SystemViews, statement: str, column: int, width: int
) -> None:
    span = refused(views, statement).span

    assert span is not None
    assert (column, width) == (span.column, span.length)


def test_unknown_database_of_the_request(views: SystemViews) -> None:
    error = refused(views, "SELECT 1", "order")

    assert (911, "database 'order' does not exist; did you mean orders?") == (error.number, error.problem)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "its file is not there. A daemon that runs may"), (b"", "no database of the broker")],
)
def test_file_that_is_no_store_is_the_machines_fault(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "gone.db"
    if content is not None:
        path.write_bytes(content)
    views = SystemViews(databases={"gone": path}, snapshots=EMPTY)

    with pytest.raises(StoreUnavailableError, match=problem):
        views.select("SELECT * FROM sys.routes", database="gone")

    assert path.exists() == (content is not None)


# --- limits -------------------------------------------------------------------------------------------------


def limited(tmp_path: Path, **limits: Any) -> SystemViews:
    databases = {"orders": tmp_path / "orders ?#.db"}
    return SystemViews(databases=databases, snapshots=EMPTY, limits=QueryLimits(**limits))


@pytest.mark.parametrize(
    ("limit", "rows"),
    [({"rows": 2}, 2), ({"rows": 3}, 3)] + [({"result_bytes": size}, rows) for size, rows in ((1, 1), (8, 1), (9, 2))],
)
def test_result_ends_at_its_limit_of_rows_or_after_the_row_that_passes_its_limit_of_bytes(
    tmp_path: Path, dialog: Dialog, limit: dict[str, int], rows: int
) -> None:
    """`0x6F6E65` has 8 bytes, and so has the second body."""
    result = limited(tmp_path, **limit).select(
        "SELECT message_body FROM sys.transmission_queue ORDER BY message_sequence_number", database="orders"
    )

    assert (rows, rows < 3) == (len(result.rows), result.truncated)


ENDLESS = "WITH q AS (SELECT 1 AS n UNION ALL SELECT n FROM q) SELECT COUNT(*) FROM q"


def peak_bytes() -> int:
    """The most memory that this process has had since its peak was reset."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]  # Linux has the line


def test_statement_that_no_client_waits_for_ends(tmp_path: Path, dialog: Dialog) -> None:
    views = limited(tmp_path, seconds=60.0)
    calls: list[None] = []

    def is_wanted() -> bool:
        calls.append(None)
        return len(calls) < 3

    with pytest.raises(StatementError) as raised:
        views.select(ENDLESS, database="orders", is_wanted=is_wanted)

    assert (8649, 3) == (raised.value.number, len(calls))
    assert "the client has gone" in raised.value.problem


COLUMNS = "sys.system_columns"
GROWING = "REPLACE('" + "a" * 1100 + "', 'a', '" + "b" * 1100 + "')"  # 1.15 MiB out of 2 KiB of text


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        (f"SELECT COUNT(*) FROM {COLUMNS} a, {COLUMNS} b, {COLUMNS} c, {COLUMNS} d", 8649),
        (f"SELECT a.name FROM {COLUMNS} a, {COLUMNS} b, {COLUMNS} c ORDER BY b.name + c.name", 8649),
        (f"SELECT STRING_AGG(REPLACE('{'a' * 100}', 'a', '{'b' * 100}'), ',') FROM {COLUMNS}", 7119),
        (f"SELECT COUNT(*) FROM {', '.join(f'{COLUMNS} t{at}' for at in range(60))}", 8649),
        (f"SELECT COUNT(*) FROM {', '.join(f'{COLUMNS} t{at}' for at in range(70))}", 102),
        ("WITH n AS (SELECT 'xxxxxxxxxxxxxxxxx' AS a UNION ALL SELECT a + a FROM n) SELECT COUNT(*) FROM n", 7119),
        ("SELECT " + "REPLACE(" * 8 + "'aaaaaaaaaa'" + ", 'a', 'aaaaaaaaaa')" * 8, 7119),
        (f"WITH n AS (SELECT {GROWING} AS s) SELECT {', '.join(['s'] * 128)} FROM n", 1105),
        (f"WITH n AS (SELECT {GROWING} AS s) SELECT n.s FROM n, {COLUMNS} a, {COLUMNS} b", None),
        ("SELECT " + ", ".join(["1"] * 129), 102),
        ("SELECT " + "CASE WHEN 1=1 THEN " * 1000 + "1" + " END" * 1000, 191),
        ("SELECT 1 WHERE " + " OR ".join(["1=2"] * 5000), 102),
        (" UNION ALL ".join([f"SELECT name FROM {COLUMNS}"] * 900), 102),
        ("SELECT 1 WHERE '" + "a" * 20000 + "' LIKE '" + "%a" * 10000 + "%b'", 102),
        ("SELECT DATETIME('2020-01-01', '+99999999999 years')", None),
        ("SELECT " + "9" * 60000, None),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else str(value),
)
def test_hostile_statement_ends_with_a_number_or_a_short_answer(
    tmp_path: Path, dialog: Dialog, statement: str, number: int | None
) -> None:
    views = limited(tmp_path, seconds=0.5 if number == 8649 else 20.0)

    if number is None:
        assert len(views.select(statement, database="orders").rows) < 10_000
    else:
        assert number == refused(views, statement).number


X = "REPLACE('" + "b" * 240 + "', 'b', '" + "a" * 240 + "')"  # 57,600 times "a"
Y = "REPLACE('" + "b" * 170 + "', 'b', '" + "a" * 170 + "') + 'b'"
PATTERN = "%" + "a" * 250 + "b"
MANY = f"WITH n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 40), v AS (SELECT {X} AS x, {Y} AS y)"


@pytest.mark.parametrize(
    "asked",
    [
        "COUNT(*) FROM n, n m, v WHERE " + " OR ".join([f"x LIKE '{PATTERN}'"] * 50),
        "COUNT(*) FROM n, n m, v WHERE " + " OR ".join(["x + 'c' LIKE '" + "%a" * 120 + "%b'"] * 50),
        ", ".join(["CHARINDEX(y, x + CAST(i AS VARCHAR(9)))"] * 20) + " FROM n, v",
        ", ".join(["LEN(REPLACE(x, y, 'c'))"] * 20) + " FROM n, v",
        ", ".join(["DATETIME(REPLACE(x, 'a', '9'), '+' + REPLACE(y, 'a', '9') + ' days')"] * 15) + " FROM n, v",
        ", ".join(["LEN(LTRIM(x, REPLACE(y, 'a', 'c') + 'a'))"] * 20) + " FROM n, v",
        ", ".join(["LEN(TRIM(REPLACE(y, 'a', 'c') + 'a' FROM x))"] * 20) + " FROM n, v",
        "x FROM v, n a, n b ORDER BY x, a.i, b.i",
    ],
    ids=lambda asked: asked[-40:],
)
def test_functions_of_large_values_keep_the_limit_of_time(tmp_path: Path, dialog: Dialog, asked: str) -> None:
    """Each took from ten seconds to minutes: one call of a function is one step, and SQLite's own compare naively."""
    views = limited(tmp_path, seconds=0.5)
    started = time.process_time()

    with contextlib.suppress(StatementError):
        views.select(f"{MANY} SELECT {asked}", database="orders")

    assert time.process_time() - started < 10.0


def test_value_has_a_bound_that_depends_on_whether_bodies_are_shown(tmp_path: Path, dialog: Dialog) -> None:
    dialog.send(b"x" * 1_000_000)
    views = limited(tmp_path)
    large = f"SELECT LEN({X} + {X})"

    assert [(115_200,)] == views.select(large, database="orders").rows
    with pytest.raises(StatementError) as raised:
        views.select(large, database="orders", shows_bodies=False)
    told = views.select(
        "SELECT body_bytes, message_body FROM sys.transmission_queue", database="orders", shows_bodies=False
    )

    assert (7119, (1_000_000, None)) == (raised.value.number, told.rows[-1])


def test_memory_and_files_of_a_hostile_statement_have_a_bound(tmp_path: Path, dialog: Dialog) -> None:
    """It would gather some gigabytes."""
    more = "UNION ALL SELECT s, k+1 FROM n UNION ALL SELECT s, k+2 FROM n"
    statement = f"WITH n AS (SELECT {GROWING} AS s, 1 AS k {more}) SELECT COUNT(*) FROM n"
    views = limited(tmp_path, seconds=60.0, spill_bytes=64 * 1024 * 1024)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is reset
    before = peak_bytes()

    error = refused(views, statement)

    assert 1105 == error.number
    assert peak_bytes() - before < 128 * 1024 * 1024


# --- nothing else can be read, nothing can be changed -------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM customer",
        "SELECT * FROM sys.customer",
        "SELECT * FROM database_0.customer",
        "SELECT * FROM database_0.broker_route, sys.routes",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM json_each('[1]')",
        "SELECT * FROM [customer` --]",
        'SELECT * FROM "database_0"."customer"',
        "SELECT 1 FROM sys.routes WHERE EXISTS (SELECT 1 FROM customer)",
        "WITH q AS (SELECT * FROM customer) SELECT * FROM q",
        "WITH customer AS (SELECT 1 AS a) SELECT * FROM dbo.customer",
        "WITH broker_route AS (SELECT 1 AS a) SELECT address FROM broker_route",
        "SELECT load_extension('x')",
        "SELECT hex(name) FROM sys.routes",
        "SELECT 1; ATTACH 'x.db' AS y",
        "ATTACH 'x.db' AS y",
        "VACUUM INTO 'x.db'",
        "DELETE FROM sys.routes",
        "CREATE TABLE x (a INT)",
    ],
)
def test_text_reaches_nothing_but_the_views(views: SystemViews, dialog: Dialog, tmp_path: Path, statement: str) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())

    error = refused(views, statement)

    assert error.number in {102, 195, 207, 208, 259}
    assert "4111" not in str(error)
    assert before == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM database_0.broker_route",
        "SELECT rowid FROM database_0.broker_route",
        "SELECT COUNT(name) FROM database_0.broker_route",
        "SELECT COUNT(*) FROM database_0.customer",
        "WITH customer AS (SELECT 1) SELECT name FROM database_0.customer",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM json_each('[1]')",
        "SELECT load_extension('x')",
        "SELECT hex(1)",
        "DELETE FROM database_0.broker_route",
        "CREATE TEMP VIEW x AS SELECT name FROM database_0.broker_route",
        "ATTACH ':memory:' AS y",
        "PRAGMA writable_schema = 1",
        "BEGIN",
    ],
)
def test_sql_that_was_smuggled_in_is_stopped_by_sqlite(
    views: SystemViews, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """The second wall: SQL given to SQLite as it is, with no reading of T-SQL before it."""
    monkeypatch.setattr("broker.observe.tsql.SelectQuery.render", lambda *_: sql)

    assert refused(views, "SELECT name FROM sys.routes").number in {102, 195, 229}


def test_file_is_attached_read_only(views: SystemViews, dialog: Dialog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third wall: without the guard a write still fails."""
    monkeypatch.setattr("broker.observe.query._guard", lambda _made, _own: None)
    monkeypatch.setattr("broker.observe.tsql.SelectQuery.render", lambda *_: "DELETE FROM database_0.broker_route")

    with pytest.raises(StoreUnavailableError, match="readonly database"):
        views.select("SELECT * FROM sys.routes", database="orders")


def test_reading_does_not_hold_up_a_writer(orders: sqlite3.Connection, dialog: Dialog, tmp_path: Path) -> None:
    """Messages can be sent while a statement's files are attached."""

    def while_reading() -> dict[Any, Any]:
        dialog.send(b"meanwhile")
        return {}

    views = SystemViews(databases={"orders": tmp_path / "orders ?#.db"}, snapshots=EMPTY | {CONNECTIONS: while_reading})

    result = views.select(
        f"SELECT (SELECT COUNT(*) FROM {CONNECTIONS}), COUNT(transmission_status) FROM sys.transmission_queue",
        database="orders",
    )

    assert result.rows == [(0, 4)]
