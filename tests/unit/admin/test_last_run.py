"""What was changed while nothing ran is in the audit of the next start, once."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.admin.last_run import RECORD
from broker.admin.server import STEERING_THREADS
from broker.daemon import serve
from tests.support.certificates import make

TLS = """
encryption = "required"
certificate = "one.pem"
private_key = "one.key"
trust = ["one.pem"]
authentication = "certificate"
"""


async def start(configuration: Path) -> list[dict[str, Any]]:
    """Start and stop; what the audit says of starts then."""
    async with serve(configuration):
        pass
    path = configuration.parent / "audit.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in told if line["operation"] == "start"]


def change(configuration: Path, old: str, new: str) -> None:
    text = configuration.read_text()
    assert old in text
    configuration.write_text(text.replace(old, new))


async def test_settings_that_were_changed_between_two_runs_are_told_once_with_both_values(configuration: Path) -> None:
    first = await start(configuration)
    change(configuration, "message_forwarding = true", 'message_forwarding = false\nheartbeat = "5s"')
    change(configuration, "[databases.orders]", "[databases.other]")

    [line] = second = await start(configuration)
    third = await start(configuration)

    assert ([], second) == (first, third)
    assert ("configuration files", "while nothing ran", "configuration", "done") == (
        *(line["who"], line["from"], line["target"], line["outcome"]),
    )
    before, after = line["before"], line["after"]
    assert ("true", '"15s"') == (before["endpoint.message_forwarding"], before["endpoint.heartbeat"])
    assert ("false", '"5s"') == (after["endpoint.message_forwarding"], after["endpoint.heartbeat"])
    path = f'"{configuration.parent / "orders.db"}"'
    assert {"databases.orders.path": path} == {key: value for key, value in before.items() if key.endswith(".path")}
    assert {"databases.other.path": path} == {key: value for key, value in after.items() if key.endswith(".path")}


async def test_what_a_reload_has_changed_is_not_told_again_by_the_next_start(configuration: Path) -> None:
    async with serve(configuration) as instance:
        change(configuration, "message_forwarding = true", "message_forwarding = false")
        await instance.reloads.reload()

    assert [] == await start(configuration)


async def test_what_still_waits_for_a_thread_when_an_instance_stops_is_kept_and_written_down(
    configuration: Path,
) -> None:
    is_free = threading.Event()
    async with serve(configuration) as instance:
        threads = instance.admin._parts.executor
        assert isinstance(threads, ThreadPoolExecutor)

        def free_late() -> None:
            while not threads._shutdown:
                time.sleep(0.01)
            is_free.set()

        change(configuration, "message_forwarding = true", "message_forwarding = false")
        await instance.reloads.reload()
        busy = [threads.submit(is_free.wait) for _ in range(STEERING_THREADS)]
        instance.admin.on_certificates("endpoint", {"trust": ["CN=gone"]}, {"trust": ["CN=come"]})
        (configuration.parent / RECORD).unlink(missing_ok=True)
        late = threading.Thread(target=free_late)
        late.start()
    late.join()

    assert all(one.done() for one in busy)
    assert "CN=come" in (configuration.parent / "audit.jsonl").read_text()
    assert "false" == json.loads((configuration.parent / RECORD).read_text())["settings"]["endpoint.message_forwarding"]


async def test_certificates_that_were_exchanged_between_two_runs_are_told(configuration: Path) -> None:
    change(configuration, "message_forwarding = true", TLS)
    make("before", "127.0.0.1").store(configuration.parent, "one")
    await start(configuration)
    make("after", "127.0.0.1").store(configuration.parent, "one")

    [line] = await start(configuration)

    assert "certificates of the endpoint" == line["target"]
    named = {
        side: {setting: name.partition(" ")[0] for setting, [name] in line[side].items()}
        for side in ("before", "after")
    }
    assert named == {
        "before": {"certificate": "CN=before", "trust": "CN=before"},
        "after": {"certificate": "CN=after", "trust": "CN=after"},
    }


async def test_what_cannot_be_written_down_is_told_by_the_next_start(configuration: Path) -> None:
    await start(configuration)
    change(configuration, "message_forwarding = true", "message_forwarding = false")
    audit = configuration.parent / "audit.jsonl"
    audit.mkdir()
    with capture_logs() as logs:
        async with serve(configuration):
            pass
    audit.rmdir()

    [line] = await start(configuration)

    assert "audit unavailable" in [entry["event"] for entry in logs]
    assert {"endpoint.message_forwarding": "false"} == line["after"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"settings": 3, "certificates": {}}', '{"settings": {}, "certificates": {"trust": 5}}', "[" * 100_000],
    ids=["cut", "no map", "no maps", "no names", "nested"],
)
async def test_a_record_that_nobody_can_read_is_told_and_written_anew(configuration: Path, text: str) -> None:
    record = configuration.parent / RECORD
    record.write_text(text)

    with capture_logs() as logs:
        told = await start(configuration)

    assert ([], ["last run unknown"]) == (told, [entry["event"] for entry in logs if "last run" in entry["event"]])
    assert "true" == json.loads(record.read_text())["settings"]["endpoint.message_forwarding"]


async def test_a_record_that_cannot_be_written_keeps_nobody_from_starting(configuration: Path) -> None:
    (configuration.parent / RECORD).mkdir()

    with capture_logs() as logs:
        await start(configuration)

    assert ["last run unknown", "last run not kept"] == [
        entry["event"] for entry in logs if "last run" in entry["event"]
    ]


async def test_a_key_of_another_release_is_no_change(configuration: Path) -> None:
    await start(configuration)
    record = configuration.parent / RECORD
    kept = json.loads(record.read_text())
    kept["settings"]["endpoint.of_another_release"] = "1"
    del kept["settings"]["endpoint.max_hops"]
    record.write_text(json.dumps(kept))

    assert [] == await start(configuration)
