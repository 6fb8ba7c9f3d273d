"""Visits of a synthetic history as rows of the journal."""

import numpy as np
import pyarrow as pa

from broker.flow import Disposition
from broker.journal.schema import JOURNAL
from broker.pipeline.synthetic.dialogs import make_dialogs
from broker.pipeline.synthetic.rows import START_US, Rows, guids, route_of
from broker.pipeline.synthetic.sending import Sending
from broker.pipeline.synthetic.world import Scenario, make_world


def made() -> pa.Table:
    scenario = Scenario(messages=800, instances=9, seed=8, hours=1, dropped=0.05)
    world = make_world(scenario)
    dialogs = make_dialogs(scenario, world)
    sent = Sending(dialogs, world, scenario, np.random.default_rng(7)).between(0, scenario.duration)
    return Rows(dialogs, world).table(sent.visits, sent.frames)


def test_rows_have_the_schema_of_the_journal() -> None:
    """Column by column; Arrow refuses a null where there must be none."""
    table = made()

    table.validate(full=True)
    assert JOURNAL == table.schema
    assert all(table[field.name].null_count == 0 for field in JOURNAL if not field.nullable)


def test_a_dropped_frame_has_the_number_of_its_reason() -> None:
    """And no other frame has one."""
    rows = made().select(["outcome", "reason", "code"]).to_pylist()

    drops = [row for row in rows if row["outcome"] == "dropped"]
    assert drops
    assert all(Disposition(row["reason"]).number == row["code"] for row in drops)
    assert not any(row["reason"] or row["code"] for row in rows if row["outcome"] != "dropped")


def test_a_frame_that_went_on_has_its_route() -> None:
    """Endpoints follow the routes of their database, gateways those of msdb; the route is that of the service."""
    for row in made().to_pylist():
        if row["outcome"] in {"sent", "resent", "forwarded"}:
            assert route_of(row["to_service"]) == row["route"]
            table = "msdb" if row["instance"].startswith("gateway") else row["instance"].split("-")[0]
            assert table == row["route_table"]
            assert row["adjacent_out"].startswith("tcp://")
        elif row["outcome"] in {"delivered", "duplicate", "acknowledged"}:
            assert (None, None) == (row["route"], row["adjacent_out"])


def test_ids_are_big_endian_and_may_be_missing() -> None:
    """The first word first."""
    made_of = guids(np.array([[1, 2], [3, 4]]), np.array([False, True]))

    assert [(1).to_bytes(8, "big") + (2).to_bytes(8, "big"), None] == made_of.to_pylist()


def test_each_instance_tells_its_own_time() -> None:
    """The clock's error is added."""
    scenario = Scenario(messages=10, instances=3, seed=1, clocks_apart=60)
    world = make_world(scenario)
    rows = Rows(make_dialogs(scenario, world), world)

    assert [START_US + 5 + int(world.clock_us[0])] == rows.observed(np.array([0]), np.array([5])).tolist()
    assert abs(int(world.clock_us[0])) > 59_000_000
