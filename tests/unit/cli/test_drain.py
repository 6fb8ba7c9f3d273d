"""`broker drain` follows an instance until it has gone, and its exit code says whether anything was left."""

import json
import os
from typing import Any

import pytest

from tests.support.command import run

SERVING = {
    "stage": "serving",
    "sentence": "serving",
    "reason": "",
    "held": 0,
    "unserved": 0,
    "peers": 0,
    "by_hop": {},
    "busy": [],
    "remaining_s": None,
    "clean": None,
    "changes": 0,
    "process": None,
}
LEAVING = SERVING | {"stage": "leaving", "sentence": "draining: 2 held, 1 peer left, 9 s", "changes": 3}
HELD = {"held": 2, "unserved": 1, "peers": 1, "by_hop": {"tcp://north:4022": 2}, "busy": ["orders"]}


def test_every_change_is_told_and_the_end(fake_admin: Any) -> None:
    fake_admin.answers["/v1/drain"] = (200, LEAVING)
    fake_admin.answers["/v1/drain?since=3"] = (200, LEAVING | {"stage": "left", "sentence": "drained", "clean": True})

    result = run("drain", "--socket", fake_admin.path)

    assert (0, "") == (result.exit_code, result.stdout)
    assert ["draining: 2 held, 1 peer left, 9 s", "drained"] == result.stderr.splitlines()
    assert ("POST", "/v1/drain", {}) == fake_admin.asked[0]


def test_what_was_not_sent_or_still_runs_has_its_exit_code(fake_admin: Any) -> None:
    last = LEAVING | HELD | {"stage": "left", "sentence": "not drained: 2 held, 1 peer left", "clean": False}
    fake_admin.answers["/v1/drain"] = (200, last)
    left = run("drain", "--socket", fake_admin.path, "-o", "json")
    fake_admin.answers["/v1/drain"] = fake_admin.answers["/v1/drain?since=3"] = (200, LEAVING | HELD)
    running = run("drain", "--socket", fake_admin.path, "--timeout", "0.1")

    assert (7, last) == (left.exit_code, json.loads(left.stdout))
    assert "the instance ended with 2 held (1 without a connection), 1 peer; the senders" in left.stderr
    assert (7, True) == (running.exit_code, "still there after 0.1 s; draining: 2 held" in running.stderr)


def test_an_instance_that_ends_between_two_questions_has_waited_for_its_databases(fake_admin: Any) -> None:
    def last(_question: Any) -> dict[str, Any]:
        fake_admin.path.unlink()
        return LEAVING | {"busy": ["orders"]}

    fake_admin.answers["/v1/drain"] = (200, last)

    result = run("drain", "--socket", fake_admin.path)

    assert (0, "drained") == (result.exit_code, result.stderr.splitlines()[-1])


@pytest.mark.parametrize("is_other", [False, True], ids=["the listener", "a process of another container"])
def test_only_the_process_at_the_socket_is_waited_for(fake_admin: Any, *, is_other: bool) -> None:
    last = LEAVING | {"stage": "left", "sentence": "drained", "clean": True, "process": os.getpid() + is_other}
    fake_admin.answers["/v1/drain"] = (200, last)

    result = run("drain", "--socket", fake_admin.path, "--timeout", "0.1")

    waited = [f"waiting for process {os.getpid()} to end", "still there after 0.1 s; drained"]
    told = ["drained", *([] if is_other else waited)]
    assert (0 if is_other else 7, told) == (result.exit_code, result.stderr.splitlines())


def test_dry_run_begins_nothing(fake_admin: Any) -> None:
    fake_admin.answers["/v1/drain"] = (200, SERVING | HELD)

    result = run("drain", "--socket", fake_admin.path, "--dry-run")

    assert [("GET", "/v1/drain", None)] == fake_admin.asked
    assert [
        "2 held (1 without a connection), 1 peer",
        "  2 held for tcp://north:4022",
        "  database orders is busy",
    ] == result.stdout.splitlines()


def test_instance_that_cannot_write_it_down_is_told_to_drain_by_a_signal(fake_admin: Any) -> None:
    fake_admin.answers["/v1/drain"] = (503, {"detail": "audit a.jsonl: No space left on device; nothing is changed"})

    result = run("drain", "--socket", fake_admin.path)

    assert 1 == result.exit_code
    assert "No space left on device; nothing is changed; drain it by SIGTERM instead" in result.stderr
