"""The benchmarks on real sockets and real daemons, as small as can be: what they count is right."""

import pytest

from bench import dialogs, forwarding, haproxy
from bench.forwarding import FLOOD, PING, Scenario
from bench.generator import compiler

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


def test_dialogs_arrive_and_have_their_yardstick() -> None:
    rows = dialogs.measure(repeats=1, messages=2 * dialogs.BATCH, count=100, backlogs=(5_000,), mib=2)

    assert [True, False, True, False, True, False, True, False, False] == [row.is_yardstick for row in rows]
    assert all(row.figure > 0 for row in rows)
