"""Real daemons write down what really happened, whatever ends them, and send it to a collector as one trace."""

import contextlib
import gzip
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import broker
from broker.forwarding.ring import Sample
from broker.journal.files import files_of
from broker.journal.spans import trace_id
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.identities import identity_files
from tests.support.loopback import BILLING, ORDERS, PATIENCE, long_shop, receive, send, wait_acknowledged

Row = dict[str, Any]


def journalled(net: Topology, **journal: Any) -> tuple[Daemon, Daemon]:
    """Sender, two gateways, target; all with a journal, and started; the sender and the target."""
    ends = long_shop(net, {"journal": {"directory": "flows", **journal}})
    net.start()
    return ends


def say(orders: Daemon, dialogs: int, messages: int) -> None:
    for _ in range(dialogs):
        send(orders, *(f"message {number}" for number in range(messages)))


def rows(daemon: Daemon) -> list[Row]:
    """Everything in the files of an instance."""
    found: list[Row] = []
    for path in files_of(daemon.directory / "flows", daemon.name):
        with pq.ParquetFile(path) as file:
            found += file.read().to_pylist()
    return found


@pytest.mark.timeout(240)
@pytest.mark.promise("The journal lacks records")
def test_sampled_dialogs_are_the_same_everywhere_and_drops_are_always_there(net: Topology) -> None:
    orders, billing = journalled(net, sample=0.3)
    say(orders, dialogs=40, messages=1)
    receive(billing, 40)
    wait_acknowledged(orders)
    net.daemons["west"].admin.sql("DROP ROUTE ToBilling;")
    say(orders, dialogs=20, messages=1)
    wait_for(
        lambda: sum(net.daemons["west"].status()["forwarding"]["dropped"].values()) >= 20,
        seconds=PATIENCE,
        what="drops",
    )
    for daemon in net.daemons.values():
        daemon.stop()

    sample = Sample(0.3)
    seen = {
        name: {row["conversation_id"] for row in rows(daemon) if row["outcome"] != "dropped"}
        for name, daemon in net.daemons.items()
    }
    assert seen["orders"] == seen["east"] > seen["west"] >= seen["billing"]
    assert all(conversation in sample for each in seen.values() for conversation in each)
    dropped = [row for row in rows(net.daemons["west"]) if row["outcome"] == "dropped"]
    lost = {row["conversation_id"] for row in dropped if row["reason"] == "service not here"}
    assert len(lost) >= 20
    # Later frames of the dialogs before name the instance that has them.
    assert {"service not here", "instance not here"} >= {row["reason"] for row in dropped}


@pytest.mark.timeout(240)
@pytest.mark.promise("The journal lacks records")
def test_killed_instance_leaves_whole_files_and_at_most_one_other(net: Topology) -> None:
    orders, billing = journalled(net, file_age="1s")
    east = net.daemons["east"]
    say(orders, dialogs=1, messages=20)
    receive(billing, 20)
    wait_for(lambda: east.status()["journal"]["files"] > 0, seconds=PATIENCE, what="a file")
    say(orders, dialogs=1, messages=20)
    receive(billing, 20)
    wait_for(lambda: east.status()["journal"]["pending"] > 0 or rows(east), seconds=PATIENCE, what="records")

    east.kill()

    flows = east.directory / "flows"
    left = [path for path in flows.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert len(left) <= 1
    assert len(rows(east)) > 0  # each of its files can be read
    east.start()
    wait_for(lambda: not any(path.exists() for path in left), seconds=PATIENCE, what="leftovers gone")


# --- spans ---


class Collector(ThreadingHTTPServer):
    """
    Takes spans by OTLP over HTTP.

    Shape: `spans` in the order in which they came, each with the `service.instance.id` of its resource; `url` for
    OTEL_EXPORTER_OTLP_ENDPOINT.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taker)
        self.spans: list[tuple[str, Span]] = []
        self.resources: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Taker(BaseHTTPRequestHandler):
    """One request to the collector."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = attributes(resource.resource.attributes)
            self.server.resources.append({name: str(value) for name, value in told.items()})
            instance = str(told.get("service.instance.id", ""))
            self.server.spans += [(instance, span) for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(pairs: Iterable[KeyValue]) -> dict[str, str | int | bool]:
    """Attributes as a dictionary."""
    found: dict[str, str | int | bool] = {}
    for pair in pairs:
        value: AnyValue = pair.value
        found[pair.key] = getattr(value, value.WhichOneof("value") or "string_value")
    return found


TRACE, PARENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{PARENT_SPAN}-01"
TRACED: dict[str, dict[str, Any]] = {"journal": {"directory": "flows", "sample": 0.0}, "tracing": {"enabled": True}}
OUTCOME = "broker.outcome"
KINDS = {"PRODUCER": 4, "INTERNAL": 1, "CONSUMER": 5}


def traced(net: Topology, environ: Mapping[str, str], keys: Path | None) -> tuple[Daemon, Daemon]:
    """Sender, two gateways, target, all of which trace, and started; the sender and the target."""
    settings, own = TRACED, {}
    if keys is not None:
        both = (("orders", "billing"), ("billing", "orders"))
        settings = TRACED | {f"databases.{name}": identity_files(keys, name, other) for name, other in both}
        own["orders"] = f"CREATE REMOTE SERVICE BINDING b TO SERVICE '{BILLING}' WITH USER = [billing];\n"
        own["billing"] = f"GRANT SEND ON SERVICE::[{BILLING}] TO [CN=orders];\n"
    ends = long_shop(net, settings, **own)
    for daemon in net.daemons.values():
        daemon.environ |= {"OTEL_BSP_SCHEDULE_DELAY": "100", **environ}
    net.start()
    return ends


def receive_messages(daemon: Daemon, count: int) -> list[broker.Message]:
    got: list[broker.Message] = []
    with contextlib.closing(daemon.connect(daemon.name)) as db:
        while len(got) < count:
            with db:
                came = broker.receive(db, queue="Inbox", top=100, wait=PATIENCE)
            assert came, f"{len(got)} of {count} came"
            got += came
    return got


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "sealed"])
def test_one_trace_leads_from_the_sender_over_two_gateways_to_the_target(
    net: Topology, tmp_path: Path, *, is_sealed: bool
) -> None:
    with collecting() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_RESOURCE_ATTRIBUTES": "deployment=test"}
        orders, billing = traced(net, environ, tmp_path / "keys" if is_sealed else None)
        with contextlib.closing(orders.connect("orders")) as db, db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
            dialog.send(b"not traced")
            dialog.send(b"traced", headers={"traceparent": PARENT})
            dialog.send(bytes(200_000), headers={"traceparent": PARENT})
        messages = receive_messages(billing, 3)
        wait_for(lambda: len(by_role(collector, 1, dialog)) == 4, seconds=PATIENCE, what="four spans of one message")
        wait_for(lambda: len(by_role(collector, 2, dialog)) == 4, seconds=PATIENCE, what="four spans of the other")

    assert [{}, {"traceparent": PARENT}, {"traceparent": PARENT}] == [one.headers for one in messages]
    one = by_role(collector, 1, dialog)
    assert [("send", "orders"), ("forward", "east"), ("forward", "west"), ("deliver", "billing")] == list(one)
    spans = list(one.values())
    assert [b"", *(span.span_id for span in spans[:-1])] == [span.parent_span_id for span in spans]
    assert ["PRODUCER", "INTERNAL", "INTERNAL", "CONSUMER"] == [
        next(name for name, number in KINDS.items() if number == span.kind) for span in spans
    ]
    assert [[(TRACE, PARENT_SPAN)], [], [], [(TRACE, PARENT_SPAN)]] == [
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] for span in spans
    ]
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    told = [told_of(span) for span in spans]
    assert [0, 0, 1, 2] == [one["broker.hop_count"] for one in told]
    assert {(BILLING, str(dialog.conversation_id))} == {
        (one["messaging.destination.name"], one["messaging.message.conversation_id"]) for one in told
    }
    assert told[0][OUTCOME] in {"sent", "resent"}
    assert ["forwarded", "forwarded", "delivered"] == [one[OUTCOME] for one in told[1:]]
    assert {trace_of(dialog, 1), trace_of(dialog, 2)} == {span.trace_id for _, span in collector.spans}
    assert {("broker", "test")} == {(one["service.name"], one["deployment"]) for one in collector.resources}


def trace_of(dialog: broker.Dialog, number: int) -> bytes:
    return trace_id(dialog.conversation_id.bytes, number, is_from_target=False).to_bytes(16, "big")


def by_role(collector: Collector, number: int, dialog: broker.Dialog) -> dict[tuple[str, str], Any]:
    """The spans of the copy that was delivered, in the order of the way, by what was done and by whom."""
    found: dict[tuple[str, str], Any] = {}
    mine = [(instance, span) for instance, span in list(collector.spans) if span.trace_id == trace_of(dialog, number)]
    firsts = [one for one in mine if not told_of(one[1])["broker.fragment_number"]]
    copies = {told_of(span)["messaging.message.id"] for _, span in firsts if told_of(span)[OUTCOME] == "delivered"}
    order = {"send": 0, "forward": 1, "deliver": 2}
    for instance, span in sorted(
        firsts, key=lambda one: (order[one[1].name.split()[0]], told_of(one[1])["broker.hop_count"])
    ):
        if told_of(span)["messaging.message.id"] in copies:
            found[span.name.split()[0], instance] = span
    return found


def told_of(span: Span) -> dict[str, str | int | bool]:
    return attributes(span.attributes)
