"""What the rehearsal of the Dockerfile makes of it, and whom it believes; `make rehearsal` carries it out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.shipping.dockerfile import Image, Step, context_files
from tests.shipping.rehearsal import configuration_of, judge, key_of
from tests.support.shipping import FOLDER, call, program

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
        ("process.NoNewPrivs", "0", "no privileges"),
        ("can_write", ["/"], "nothing of the root"),
        ("health.code", 2, "HEALTHCHECK is 0"),
        ("dead.code", 0, "HEALTHCHECK is not 0"),
        ("commands.status.code", 4, "every command"),
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


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", ["a.py", "d/a.py", "d/e/b.txt"]),
        ("*.py", ["d/a.py", "d/e/b.txt"]),
        ("**/*.py", ["d/e/b.txt"]),
        ("d", ["a.py"]),
        ("d/*", ["a.py"]),
        ("*\n!d", ["d/a.py", "d/e/b.txt"]),
        ("*\n!d\nd/e", ["d/a.py"]),
        ("# a remark\n\n*\n!a.py", ["a.py"]),
    ],
)
def test_the_last_rule_that_fits_decides_what_is_in_the_context(
    rules: str, expected: list[str], tmp_path: Path
) -> None:
    """Source: Docker documentation, ".dockerignore files"."""
    for name in ("a.py", "d/a.py", "d/e/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    ignored = tmp_path.parent / f"{tmp_path.name}.ignore"
    ignored.write_text(rules)

    assert expected == sorted(map(str, context_files(tmp_path, ignored, ["a.py", "d"])))


def test_a_step_is_done_again_when_it_or_what_it_copies_changes() -> None:
    run, other = Step("RUN", ("a",), 1), Step("RUN", ("b",), 1)
    copied = Step("COPY", ("LICENSE", "/"), 1)

    assert key_of("", run) == key_of("", run)
    assert 4 == len({key_of("", run), key_of("", other), key_of("before", run), key_of("", copied)})


def test_the_configuration_is_laid_out_with_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "of" / "routes.d").mkdir(parents=True)
    (tmp_path / "of" / "a.toml").write_text("[instance]\n")
    (tmp_path / "of" / "routes.d" / "r.sql").write_text("-- none\n")

    found = configuration_of(tmp_path / "of" / "a.toml", tmp_path)

    assert (found / "broker.toml").read_text().startswith("[instance]\n")
    assert ["r.sql"] == [path.name for path in (found / "routes.d").iterdir()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM debian\nONBUILD RUN x\n", ":2: ONBUILD RUN x: this instruction is not understood"),
        ("FROM debian\nCOPY --chown=1 a b\n", "the flag chown is not understood"),
        ("FROM debian\nCOPY $none b\n", "nothing sets none"),
        ("FROM debian\nENTRYPOINT broker\n", "the shell form needs a shell"),
    ],
)
def test_a_dockerfile_that_is_not_understood_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    program("hadolint")
    (tmp_path / "Dockerfile").write_text(text)

    done = call(str(FOLDER / "python"), "-m", "tests.shipping.dockerfile", tmp_path / "Dockerfile")

    assert 1 == done.returncode
    assert expected in done.stderr
