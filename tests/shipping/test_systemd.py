"""The unit for systemd, judged by systemd-analyze of this machine."""

import configparser
import re
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from broker.cli.exit_codes import ExitCode
from broker.config.settings import Settings
from tests.support.shipping import DEPLOY, call, program

SYSTEMD = DEPLOY / "systemd"
UNIT = SYSTEMD / "broker.service"
EXPOSURE_MAX = 1.5  # of 10; systemd calls everything below 2.0 "OK"


def directives() -> dict[str, list[str]]:
    """Every key of [Service] with all its values."""
    found: dict[str, list[str]] = defaultdict(list)
    section = UNIT.read_text().partition("[Service]")[2].partition("[Install]")[0]
    for key, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
        found[key].append(value)
    return found


def seconds(key: str) -> float:
    return float(directives()[key][0])


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with its addition, and with a program that is there."""
    program("systemd-analyze")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/broker/bin/broker", "/bin/true"))
    (tmp_path / "broker.service.d").mkdir()
    older = (SYSTEMD / "broker.service.d" / "older.conf").read_text()
    (tmp_path / "broker.service.d" / "older.conf").write_text(older.replace("/opt/broker/bin/broker", "/bin/true"))
    return copy


def test_systemd_understands_every_line(unit: Path) -> None:
    """A systemd before 253 does not know notify-reload, which the addition for it says otherwise."""
    environ = {"SYSTEMD_UNIT_PATH": f"{unit.parent}:/lib/systemd/system", "PATH": "/usr/bin:/bin"}

    done = call("systemd-analyze", "verify", "--man=no", unit.name, env=environ)

    told = [line for line in done.stderr.splitlines() if unit.name in line and "notify-reload" not in line]
    assert (0, []) == (done.returncode, told)


def test_systemd_understands_the_unit_as_a_template_with_its_addition(unit: Path) -> None:
    (unit.parent / "broker@.service").write_text(unit.read_text())
    (unit.parent / "broker@.service.d").mkdir()
    addition = (SYSTEMD / "broker@.service.d" / "instance.conf").read_text()
    (unit.parent / "broker@.service.d" / "instance.conf").write_text(addition)
    environ = {"SYSTEMD_UNIT_PATH": f"{unit.parent}:/lib/systemd/system", "PATH": "/usr/bin:/bin"}

    done = call("systemd-analyze", "verify", "--man=no", "broker@1.service", env=environ)

    told = [line for line in done.stderr.splitlines() if "broker@" in line and "notify-reload" not in line]
    assert (0, []) == (done.returncode, told)
    assert "/var/lib/broker/%i" in addition


def test_it_is_exposed_to_little(unit: Path) -> None:
    environ = {"SYSTEMD_UNIT_PATH": f"{unit.parent}:/lib/systemd/system", "PATH": "/usr/bin:/bin"}

    done = call("systemd-analyze", "security", "--offline=yes", "--no-pager", unit.name, env=environ)

    (exposure,) = re.findall(r"Overall exposure level for broker\.service: ([\d.]+)", done.stdout)
    assert float(exposure) <= EXPOSURE_MAX


def test_it_outlives_a_drain_and_is_not_started_again_behind_one_or_for_a_bad_configuration() -> None:
    """7: something was left behind when the time was up. Whoever had it leave does not want it back."""
    statuses = {
        str(one) for one in (ExitCode.TIMED_OUT, ExitCode.CONFIGURATION, 128 + signal.SIGINT, 128 + signal.SIGTERM)
    }

    assert seconds("TimeoutStopSec") > Settings().drain.timeout
    assert ["mixed"] == directives()["KillMode"]
    assert ["on-failure"] == directives()["Restart"]
    assert statuses == {one for line in directives()["RestartPreventExitStatus"] for one in line.split()}


def test_it_may_write_where_the_default_state_is() -> None:
    assert f"/var/lib/{directives()['StateDirectory'][0]}" == str(Settings().instance.state_dir)
    assert ["strict"] == directives()["ProtectSystem"]


def test_the_addition_is_for_what_an_older_one_does_not_know() -> None:
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / "broker.service.d" / "older.conf")

    assert {"Type": "notify", "ExecReload": "/opt/broker/bin/broker reload"} == dict(parser["Service"])
    assert ["notify-reload"] == directives()["Type"]
