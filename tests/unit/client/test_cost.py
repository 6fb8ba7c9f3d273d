"""What a message of 1 KiB costs at each end, when it comes alone: pages of the write-ahead log, and statements."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from broker.client.dialog import get_dialog
from broker.client.receiving import receive
from broker.store.port import Find, WriteBatch
from broker.store.sqlite.database import open_store
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import far_target
from tests.support.shop import Shop

BODY = bytes(1024)
FRAME_BYTES = 24 + 4096  # of the log, for one page
MOST = {
    "SEND": (3, 8),
    "finding": (0, 4),
    "nothing": (0, 2),
    "acknowledgement": (3, 9),
    "delivery": (4, 11),
    "RECEIVE": (3, 10),
}


def cost(db: sqlite3.Connection, path: Path, call: Callable[[], object]) -> tuple[int, int]:
    """The pages that a call writes, and its statements."""
    log, statements = Path(f"{path}-wal"), list[str]()
    before = log.stat().st_size
    db.set_trace_callback(statements.append)
    call()
    db.set_trace_callback(None)
    return (log.stat().st_size - before) // FRAME_BYTES, len(statements)


def test_a_message_costs_few_pages_and_statements(shop: Shop) -> None:
    app = shop.connect(isolation_level=None)
    handle = shop.begin(app).conversation_handle
    with closing(SqliteStore(shop.path, open_store(shop.path), fragment_size=65_536)) as store:
        far = far_target(app, get_dialog(app, handle).conversation_id, far_service="Orders")

        def write(**work: Any) -> tuple[int, int]:
            batch = WriteBatch(now=time.time(), **work)
            return cost(store.connection, shop.path, lambda: store.write_in_writer(batch))

        for number in range(3):
            costs = {
                "SEND": cost(app, shop.path, lambda: get_dialog(app, handle).send(BODY)),
                "finding": write(find=Find.NEW),
                "nothing": write(find=Find.NEW),
                "acknowledgement": write(frames=[far.ack(number + 1, 0)]),
                "delivery": write(frames=[far.message(number, BODY, stored=(number + 1, 0))]),
                "RECEIVE": cost(app, shop.path, lambda: receive(app, queue="OrdersQueue")),
            }

    assert MOST == costs
