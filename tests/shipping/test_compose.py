"""deploy/compose.yaml: its form, what it shuts, and the configurations that it mounts."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it tells no types

from broker.cli import main
from broker.config.load import load_settings
from broker.config.settings import Settings
from tests.support.command import run
from tests.support.shipping import DEPLOY, FOLDER, VERSION, program

PATH = DEPLOY / "compose.yaml"
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", PATH.read_text())
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
INSTANCES = ("gateway-a", "gateway-b", "orders", "billing")
CONFIGURATIONS = [DEPLOY / "compose" / f"{name}.toml" for name in INSTANCES]
_PARSE = """
import sys, compose_spec
found = compose_spec.PyOptions(apply_merge=True).from_yaml(sys.stdin.read())
print(*sorted(found.service_names()))
"""


def mounts(name: str) -> dict[str, str]:
    """What is mounted, by the path inside."""
    return {words[1]: words[0] for words in (one.split(":") for one in SERVICES[name]["volumes"])}


def test_it_is_a_compose_file() -> None:
    program("compose-lint")

    done = subprocess.run(
        [str(FOLDER / "python"), "-c", _PARSE], input=TEXT, capture_output=True, text=True, check=False
    )

    assert ("", sorted(SERVICES)) == (done.stderr, done.stdout.split())


@pytest.mark.parametrize("name", [*INSTANCES, "prometheus", "grafana"])
def test_nothing_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", [*INSTANCES, "prometheus", "grafana"])
def test_what_is_mounted_from_here_is_there_and_read_only(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        source, _, rest = volume.partition(":")
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in yaml.safe_load(TEXT)["volumes"]


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_finds_its_configuration_and_keeps_its_state(name: str) -> None:
    settings = load_settings(DEPLOY / "compose" / f"{name}.toml", environ={})

    assert f"./compose/{name}.toml" == mounts(name)["/etc/broker/broker.toml"]
    assert name == mounts(name)[str(settings.instance.state_dir)] == settings.instance.name
    assert [f"tcp://{name}:4022"] == [str(one) for one in settings.endpoint.advertise]
    inside = tomllib.loads((DEPLOY / "compose" / f"{name}.toml").read_text())
    patterns = [
        *inside.get("routes", {}).get("files", []),
        *inside.get("databases", {}).get(name, {}).get("scripts", []),
    ]
    assert [f"/etc/broker/{Path(one).parent}" for one in patterns] == [
        one for one in mounts(name) if one.endswith(".d")
    ]


@pytest.mark.parametrize("name", INSTANCES)
def test_health_is_a_command_of_the_program(name: str) -> None:
    kind, word, command, question = SERVICES[name]["healthcheck"]["test"]

    assert ("CMD", "broker") == (kind, word)
    main.commands[command].make_context(command, [question])


def test_the_configurations_are_good_together() -> None:
    result = run("check", "--offline", *(word for path in CONFIGURATIONS for word in ("-c", path)))

    assert 0 == result.exit_code, result.stderr
    told = [line for line in result.stderr.splitlines() if "unencrypted" not in line and "offline" not in line.lower()]
    assert [] == [line for line in told if line.startswith(("warning: ", "error"))]


def test_prometheus_asks_every_instance_where_it_answers() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {one for job in scraped for static in job["static_configs"] for one in static["targets"]}

    assert {f"{name}:{Settings().observe.listen.port}" for name in INSTANCES} <= targets  # type: ignore[union-attr]


def test_the_image_is_that_of_this_version() -> None:
    assert {f"broker:{VERSION}"} == {SERVICES[name]["image"] for name in INSTANCES}
    assert VERSION == SERVICES["gateway-a"]["build"]["args"]["VERSION"]
