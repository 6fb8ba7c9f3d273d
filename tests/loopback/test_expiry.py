"""A route that expires under a running daemon: ignored from then on, still listed, and brought back by ALTER ROUTE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for

SECONDS = 30.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def lifetime(daemon: Daemon) -> datetime:
    [row] = daemon.query("SELECT lifetime FROM sys.routes WHERE name = 'to'")
    return datetime.fromisoformat(row["lifetime"]).replace(tzinfo=UTC)


def statuses(daemon: Daemon) -> list[str]:
    return [
        row["transmission_status"] for row in daemon.query("SELECT transmission_status FROM sys.transmission_queue")
    ]


def test_a_route_that_expires_is_ignored_stays_listed_and_comes_back_by_alter_route(net: Topology) -> None:
    """The dialog was begun and its target fixed while the route was live."""
    target = net.add("target", databases=["target"])
    source = net.add("source", databases=["source"])
    back = f"CREATE ROUTE back WITH SERVICE_NAME = 'Source', ADDRESS = '{source.address}';"
    net.script("target", "target", f"CREATE QUEUE Inbox; CREATE SERVICE Target ON QUEUE Inbox; {back}")
    net.script("source", "source", "CREATE QUEUE Inbox; CREATE SERVICE Source ON QUEUE Inbox;")
    net.start()
    route = f"CREATE ROUTE [to] WITH SERVICE_NAME = 'Target', LIFETIME = 3600, ADDRESS = '{target.address}';"
    source.admin.sql(f"DROP ROUTE AutoCreatedLocal; {route}", "source")

    with closing(source.connect("source")) as db:
        with db:
            dialog = broker.begin_dialog(db, from_service="Source", to_service="Target")
            dialog.send("in time")
        wait_for(lambda: statuses(source) == [], seconds=SECONDS, what="the first message acknowledged")
        source.admin.sql("ALTER ROUTE [to] WITH LIFETIME = 1;", "source")
        wait_for(lambda: lifetime(source) <= datetime.now(UTC), seconds=SECONDS, what="the route expired")
        with db:
            dialog.send("too late")
    wait_for(lambda: "no route" in str(statuses(source)), seconds=SECONDS, what="a status that says so")
    source.admin.sql("ALTER ROUTE [to] WITH LIFETIME = 3600;", "source")

    bodies: list[str] = []
    with closing(target.connect("target")) as db:
        while len(bodies) < 2:
            with db:
                messages = broker.receive(db, queue="Inbox", wait=SECONDS)
                bodies += [message.body.decode() for message in messages]
            assert messages
    assert ["in time", "too late"] == bodies
