"""What the rehearsal of the Dockerfile makes of it, and whom it believes; `make rehearsal` carries it out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.shipping.dockerfile import Image
from tests.shipping.rehearsal import judge

IMAGE = Image(
    environ={},
    folder="/",
    user="65532:65532",
    entrypoint=("broker",),
    command=("serve",),
    health=("broker", "health", "live"),
    health_timeout=5.0,
    start_period=30.0,
    stop_signal="SIGTERM",
    labels={"org.opencontainers.image.version": "0.1.0"},
    ports=(4022,),
    volumes=(),
)
FINE = {"code": 0, "text": "broker, version 0.1.0; the compiled kernel", "seconds": 0.1}
GOOD: dict[str, Any] = {
    "ready": {"status": 200, "text": "ok", "seconds": 1.0},
    "process": {
        "Uid": "65532\t65532\t65532\t65532",
        "CapEff": "0" * 16,
        "CapPrm": "0" * 16,
        "CapBnd": "0" * 16,
        "NoNewPrivs": "1",
    },
    "health": dict(FINE),
    "dead": {"code": 2, "text": "", "seconds": 0.1},
    "commands": {"--version": dict(FINE), "status": dict(FINE)},
    "can_write": [],
    "stopped": {"code": 0, "seconds": 0.1},
}


def test_a_container_that_is_as_it_must_be_is_believed() -> None:
    assert [] == judge(GOOD, IMAGE)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("ready.status", 503, "did not become ready"),
        ("process.Uid", "0\t0\t0\t0", "user 65532"),
        ("process.CapEff", "00000000a80425fb", "no capability"),
        ("health.code", 2, "HEALTHCHECK is 0"),
        ("dead.code", 0, "HEALTHCHECK is not 0"),
        ("commands.status.text", "the python kernel", "compiled kernel"),
        ("commands.--version.text", "broker, version 9", "version of its label"),
        ("stopped.code", -9, "ends with 0 on SIGTERM"),
    ],
)
def test_a_container_that_is_not_as_it_must_be_is_told(path: str, value: object, expected: str) -> None:
    found = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    inner = found
    for name in way:
        inner = inner[name]
    inner[last] = value

    (sentence,) = judge(found, IMAGE)

    assert expected in sentence
