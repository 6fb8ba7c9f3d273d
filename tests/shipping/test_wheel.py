"""
The source distribution and both wheels: made, looked into, installed apart from the checkout, and put to work there.

Made once for all tests here (half a minute, most of it the compiler's); their needs come from the environment of the
tests, so nothing is asked of an index.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.demo.topology import Topology
from tests.support.loopback import BILLING, ORDERS, file_of, shop
from tests.support.shipping import PROJECT, ROOT, VERSION, program
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
        assert set(PROJECT["license-files"]) == licences


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
    assert f"broker, version {VERSION}\n" == broker(programs, "--version", cwd=tmp_path)


def test_the_installed_package_carries_a_message_over_a_gateway_and_back(
    installed: tuple[str, Path], tmp_path: Path
) -> None:
    kind, programs = installed

    def start(words: Sequence[str], log: Path, _: object) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen([programs / "broker", *words], env=environ(), stdout=output, stderr=output)

    with Topology(tmp_path) as net:
        gateway, orders, billing = shop(net)
        for daemon in net.daemons.values():
            daemon.starter = start
        net.start()

        broker(programs, "send", "-d", file_of(orders), "--from", ORDERS, "--to", BILLING, "seven", cwd=tmp_path)
        words = ("receive", "-d", file_of(billing), "--queue", "Inbox", "--wait", "30")
        found = broker(programs, *words, cwd=tmp_path)
        status = broker(programs, "status", "-c", gateway.config, cwd=tmp_path)
        codes = [daemon.stop() for daemon in (gateway, orders, billing)]

    assert [0, 0, 0] == codes
    assert "seven" in found
    assert ("compiled" if kind == COMPILED else "python") in status
