"""The benchmarks on real sockets and real daemons, as small as can be: what they count is right."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bench import dialogs, forwarding, haproxy
from bench.forwarding import FLOOD, PING, Scenario
from bench.generator import compiler, make_generator, speaks_tls
from examples.demo.topology import wait_for

pytestmark = pytest.mark.skipif(compiler() is None, reason="this machine has no C compiler")


def test_every_hop_forwards_every_message_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PINGS", 20)
    monkeypatch.setattr(forwarding, "RATE_SECONDS", 0.05)
    monkeypatch.setattr(forwarding, "WARM_UP_BYTES", 1 << 20)
    scenario = Scenario(256, destinations=4, next_hops=2, connections=3, modes=(FLOOD, PING, 1000))

    rivals = [haproxy.haproxy] if haproxy.program() else []
    rows = forwarding.measure([scenario], repeats=1, flood_seconds=0.01, rivals=rivals)

    hops = 1 + len(rivals) + len(forwarding.gateways())
    assert 3 * hops == len(rows) == len({row.key for row in rows})
    assert 3 == sum(row.is_yardstick for row in rows)
    assert all(row.values["cpu_us"] > 0 and row.values["peak_mib"] > 0 for row in rows)


def test_tls_is_measured_where_the_generator_has_it_and_left_out_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(forwarding, "PINGS", 20)
    monkeypatch.setattr(forwarding, "WARM_UP_BYTES", 1 << 20)
    has_tls = speaks_tls(make_generator(tmp_path))
    told: list[str] = []

    rows = forwarding.measure(
        [Scenario(1024, connections=3, modes=(FLOOD, PING), is_tls=True)],
        repeats=1,
        flood_seconds=0.01,
        tell=told.append,
    )

    hops = 1 + len(forwarding.gateways())
    assert (2 * hops if has_tls else 0) == len(rows)
    assert has_tls is not any("left out" in text for text in told)


def test_dialogs_arrive_and_have_their_yardstick() -> None:
    rows = dialogs.measure(repeats=1, messages=2 * dialogs.BATCH, count=100, backlogs=(5_000,), mib=2)

    assert [True, False, True, False, True, False, True, False, False] == [row.is_yardstick for row in rows]
    assert all(row.figure > 0 for row in rows)


def test_sealed_dialogs_are_sealed_to_the_other_side_and_signed() -> None:
    with dialogs.ends(is_sealed=True) as net, closing(sqlite3.connect(net.orders)) as db:
        dialogs.begin(db, 1)[0].send(b"a text")
        db.commit()
        with closing(sqlite3.connect(net.billing)) as far:
            query = "SELECT security, far_principal FROM broker_session_key WHERE NOT is_initiator"
            keys = wait_for(lambda: far.execute(query).fetchall(), seconds=30, what="the key of the far side")

    assert [("FULL", "CN=orders")] == keys
