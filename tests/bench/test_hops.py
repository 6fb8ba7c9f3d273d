"""The benchmarks on real sockets and real daemons, as small as can be: what they count is right."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bench import dialogs, forwarding, haproxy
from bench.forwarding import FLOOD, PING, Scenario
from bench.generator import Generator, GeneratorError, compiler, make_generator, service_names, speaks_tls, traffic
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import decode_dialog
from broker.protocol.layout import FIRST_DIALOG_KIND, MAX_FRAME
from examples.demo.topology import free_port, wait_for

pytestmark = pytest.mark.skipif(compiler() is None, reason="this machine has no C compiler")


@pytest.fixture
def command(tmp_path: Path) -> Sequence[str]:
    """The load generator."""
    return make_generator(tmp_path)


class Tap:
    """A hop of one connection that keeps the bytes it moved."""

    def __init__(self, to: int) -> None:
        self.moved = bytearray()
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(20)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        came, _ = self._listener.accept()
        with came, socket.create_connection(("127.0.0.1", self._to)) as onward:
            while data := came.recv(1 << 16):
                self.moved += data
                onward.sendall(data)


@pytest.fixture
def tap() -> Iterator[Tap]:
    tap = Tap(free_port())
    yield tap
    tap.close()


def test_no_frame_of_a_generator_is_a_copy_of_an_earlier_one(command: Sequence[str], tap: Tap, tmp_path: Path) -> None:
    made = traffic(service_names(2), 4096, connections=1, listeners=1)
    count = 3 * len(made.frames) // made.frame_bytes + 5

    with Generator(
        command, tmp_path, made, port=tap.port, connections=1, listen=[tap._to], is_greeting=True
    ) as generator:
        told = generator.flood(count)

    frames = [frame for frame in FrameDecoder(MAX_FRAME).feed(tap.moved) if frame[4] >= FIRST_DIALOG_KIND]
    headers = [decode_dialog(frame)[0] for frame in frames]
    assert count == told["messages"] == len(frames)
    assert count == len({(header.conversation_id, header.sequence_number) for header in headers})
    assert count == len({header.message_id for header in headers})


def test_a_generator_tells_latencies_in_their_order(command: Sequence[str], tap: Tap, tmp_path: Path) -> None:
    made = traffic(service_names(1), 64, connections=1, listeners=1)

    with Generator(
        command, tmp_path, made, port=tap.port, connections=1, listen=[tap._to], is_greeting=False
    ) as generator:
        answers = [generator.ping(20), generator.flood(100), generator.rate(20, 2000)]

    assert [20, 100, 20] == [told["messages"] for told in answers]
    for told in (answers[0], answers[2]):
        assert 0 < told["p50_us"] <= told["p99_us"] <= told["p999_us"] <= told["max_us"]
    assert answers[2]["seconds"] >= 19 / 2000


def test_a_hop_that_is_not_there_or_goes_away_is_an_error(command: Sequence[str], tmp_path: Path) -> None:
    made = traffic(service_names(1), 64, connections=1, listeners=1)

    def generator(port: int) -> Generator:
        return Generator(command, tmp_path, made, port=port, connections=1, listen=[free_port()], is_greeting=False)

    with pytest.raises(GeneratorError, match="Connection refused"):
        generator(free_port())
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        generator(listener.getsockname()[1]) as connected,
    ):
        listener.accept()[0].close()
        with pytest.raises(GeneratorError, match=r"^load generator: "):
            connected.flood(10)


def test_without_a_compiler_that_works_there_is_no_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho no stdio.h >&2\nexit 1\n")
    failing.chmod(0o755)
    for program, problem in ((failing, "generator.c: no stdio.h"), (tmp_path / "none", "does not run: No such file")):
        monkeypatch.setenv("CC", str(program))

        with pytest.raises(GeneratorError, match=problem):
            make_generator(tmp_path)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GeneratorError, match="no C compiler"):
        make_generator(tmp_path)


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
