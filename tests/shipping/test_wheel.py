"""
The source distribution and both wheels: made, looked into, installed apart from the checkout, and put to work there.

Made once for all tests here (half a minute, most of it the compiler's); their needs come from the environment of the
tests, so nothing is asked of an index.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.cli.health import HealthState, ask
from tests.support.loopback import SECONDS
from tests.support.shipping import ROOT, program
from tools.wheel import build_all, copy_checkout, epoch, source_distribution, wheel_of

pytestmark = pytest.mark.timeout(600)
PURE, COMPILED = "py3-none-any", "compiled"


@dataclass(frozen=True)
class Made:
    """What was made, in `folder`, of a copy of the checkout."""

    tree: Path
    folder: Path
    sdist: Path
    compiled: Path
    pure: Path
    bill: Path

    def wheel(self, kind: str) -> Path:
        return self.compiled if kind == COMPILED else self.pure


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    program("auditwheel")
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    copy_checkout(ROOT, tree, epoch())
    sdist, compiled, pure, bill = build_all(tree, folder, epoch())
    return Made(tree, folder, sdist, compiled, pure, bill)


@pytest.fixture(scope="module", params=[COMPILED, PURE])
def installed(request: pytest.FixtureRequest, made: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A new environment with one of the wheels; its kind and its folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needs.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n"
    )  # a .pth in there, of this checkout, is not read
    wheel = made.wheel(request.param)
    pinned = folder / "pinned.txt"
    pinned.write_text(
        f"service-broker @ {wheel.as_uri()} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    )
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([folder / "bin" / "python", *words, "--require-hashes", "-r", pinned], check=True, env=environ())
    return request.param, folder / "bin"


def environ() -> dict[str, str]:
    """Nothing of this one that leads back to the checkout."""
    return {"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1", "HOME": "/nonexistent"}


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def version() -> str:
    return str(project()["version"])


def test_only_one_has_the_compiled_kernel(made: Made) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    expected = {f"broker/forwarding/{name}{suffix}" for name in ("compiled_kernel", "compiled_columns")}

    assert expected == {name for name in names(made.compiled) if name.endswith(".so")}
    assert set() == {name for name in names(made.pure) if name.endswith(".so")}


def test_everything_that_is_read_at_run_time_is_in_both(made: Made) -> None:
    wanted = {
        str(path.relative_to(made.tree))
        for path in (made.tree / "broker").rglob("*")
        if path.is_file() and path.suffix not in {".pyx", ".pxi"}
    }
    wanted -= {name for name in wanted if re.fullmatch(r"broker/forwarding/compiled_\w+\.(c|so)", name)}

    for wheel in (made.compiled, made.pure):
        assert set() == wanted - names(wheel)
        licences = {name.rpartition("/")[2] for name in names(wheel) if re.search(r"/licenses/.", name)}
        assert set(project()["license-files"]) == licences


def test_the_same_files_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    """From another folder, at another time, with another mask of modes."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(made.tree, elsewhere, ignore=shutil.ignore_patterns("*.egg-info"))
    mask = os.umask(0o077)
    try:
        sdist = source_distribution(elsewhere, tmp_path / "again", epoch())
        pure = wheel_of(sdist, tmp_path / "again", epoch(), build="pure")
    finally:
        os.umask(mask)

    digests = [
        [hashlib.sha256(one.read_bytes()).hexdigest() for one in two]
        for two in ((made.sdist, made.pure), (sdist, pure))
    ]
    assert digests[0] == digests[1]


def broker(programs: Path, *words: str | Path, cwd: Path) -> str:
    """What the installed program says."""
    done = subprocess.run(
        [programs / "broker", *words], cwd=cwd, env=environ(), capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_the_installed_package_is_not_the_checkout(installed: tuple[str, Path], tmp_path: Path) -> None:
    kind, programs = installed
    script = "import broker.forwarding.kernels as it; print(it.__file__, it.choose_kernel().name)"

    done = subprocess.run(
        [programs / "python", "-c", script], cwd=tmp_path, env=environ(), capture_output=True, text=True, check=True
    )

    path, kernel = done.stdout.split()
    assert Path(path).is_relative_to(programs.parent)
    assert ("compiled" if kind == COMPILED else "python") == kernel
    assert f"broker, version {version()}\n" == broker(programs, "--version", cwd=tmp_path)


@contextmanager
def serving(programs: Path, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An instance, ready; ended at the end, and it has to end well."""
    with (config.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "broker", "serve", "-c", config], cwd=config.parent, env=environ(), stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 12 * SECONDS
        port = tomllib.loads(config.read_text())["observe"]["listen"].rpartition(":")[2]
        while ask("127.0.0.1", int(port), "ready", timeout=SECONDS).state > HealthState.WARNING:
            assert process.poll() is None, (config.parent / "log").read_text()
            assert time.monotonic() < deadline, (config.parent / "log").read_text()
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        code = process.wait(timeout=60)
    assert 0 == code, (config.parent / "log").read_text()


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(number)]


def endpoint(folder: Path, name: str, port: int, observe: int, script: str, *, forwarding: bool = False) -> Path:
    """Write one instance down; the path of its configuration."""
    folder.mkdir()
    section = (
        f'[routes]\nfiles = ["{name}.sql"]'
        if forwarding
        else f'[databases.{name}]\npath = "{name}.db"\nscripts = ["{name}.sql"]'
    )
    (folder / f"{name}.sql").write_text(script)
    config = folder / f"{name}.toml"
    config.write_text(f"""
[instance]
name = "{name}"
state_dir = "state"
[endpoint]
listen = ["127.0.0.1:{port}"]
message_forwarding = {"true" if forwarding else "false"}
{section}
[observe]
listen = "127.0.0.1:{observe}"
""")
    return config


def test_the_installed_package_carries_a_message_over_a_gateway_and_back(
    installed: tuple[str, Path], tmp_path: Path
) -> None:
    kind, programs = installed
    orders, gateway, billing, *observed = free_ports(6)
    over = "CREATE ROUTE [{0}] WITH SERVICE_NAME = N'//shop/{0}', ADDRESS = N'tcp://127.0.0.1:{1}';\n"
    service = "CREATE QUEUE [{0}Queue];\nCREATE SERVICE [//shop/{0}] ON QUEUE [{0}Queue];\n"
    both = over.format("Orders", orders) + over.format("Billing", billing)
    ordering = service.format("Orders") + over.format("Billing", gateway)
    charging = service.format("Billing") + over.format("Orders", gateway)
    configs = [
        endpoint(tmp_path / "g", "gateway", gateway, observed[0], both, forwarding=True),
        endpoint(tmp_path / "o", "orders", orders, observed[1], ordering),
        endpoint(tmp_path / "b", "billing", billing, observed[2], charging),
    ]
    with ExitStack() as stack:
        for config in configs:
            stack.enter_context(serving(programs, config))

        their = [
            str(tmp_path / name / "state" / f"{database}.db") for name, database in (("o", "orders"), ("b", "billing"))
        ]
        services = ("--from", "//shop/Orders", "--to", "//shop/Billing")
        broker(programs, "send", "-d", their[0], *services, "seven", cwd=tmp_path)
        found = broker(programs, "receive", "-d", their[1], "--queue", "BillingQueue", "--wait", "30", cwd=tmp_path)
        status = broker(programs, "status", "-c", configs[0], cwd=tmp_path)

    assert "seven" in found
    assert ("compiled" if kind == COMPILED else "python") in status
