"""A collector of OpenTelemetry for tests: takes spans by OTLP over HTTP, in a thread of its own."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable
from threading import Event, Thread
from types import TracebackType
from typing import Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATH = "/v1/traces"


class Collector:
    """
    Shape: `spans` in the order in which they came, each with the `service.instance.id` of its resource; `headers` of
    the requests; `url` for OTEL_EXPORTER_OTLP_ENDPOINT.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._serves = Event()
        self._loop = asyncio.new_event_loop()
        self._stopping: asyncio.Event
        self._thread = Thread(target=self._run, name="collector", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._serves.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post(PATH, self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self._serves.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.headers.append(dict(request.headers))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = attributes(resource.resource.attributes)
            self.resources.append({name: str(value) for name, value in told.items()})
            instance = str(told.get("service.instance.id", ""))
            self.spans += [(instance, span) for scope in resource.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")


def attributes(pairs: Iterable[KeyValue]) -> dict[str, str | int | bool]:
    """Attributes as a dictionary."""
    found: dict[str, str | int | bool] = {}
    for pair in pairs:
        value: AnyValue = pair.value
        found[pair.key] = getattr(value, value.WhichOneof("value") or "string_value")
    return found
