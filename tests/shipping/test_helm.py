"""The Helm chart, rendered by Helm for several values, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it tells no types

from broker.config.load import load_settings
from tests.shipping.test_kubernetes import configuration_of
from tests.support.command import run
from tests.support.shipping import (
    DEPLOY,
    KUBERNETES_VERSIONS,
    ROOT,
    VERSION,
    call,
    objects,
    operator_violations,
    pod_of,
    violations,
)

CHART = DEPLOY / "helm" / "broker"
ROUTES = "CREATE ROUTE [Orders] WITH SERVICE_NAME = N'//shop/Orders', ADDRESS = N'tcp://orders:4022';\n"
PLAIN: dict[str, Any] = {"tls": {"insecure": True}}
GATEWAY: dict[str, Any] = {
    "tls": {"secretName": "gateway-tls"},
    "replicas": 3,
    "scripts": {"shop.sql": ROUTES},
    "endpoint": {"advertise": ["tcp://broker.example:4022"], "messageForwardSizeMiB": 256, "links": 1000},
    "configuration": "[journal]\ndirectory = 'flows'\n",
    "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"release": "p"}}, "rules": {"enabled": True}},
    "networkPolicy": {"monitoring": {"team": "monitoring"}},
    "service": {"type": "LoadBalancer", "annotations": {"example/internal": "true"}},
    "topologySpread": {"whenUnsatisfiable": "DoNotSchedule"},
    "podLabels": {"team": "a"},
    "podAnnotations": {"b": "c"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "PYTHONFAULTHANDLER", "value": "1"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
ENDPOINT: dict[str, Any] = {
    "mode": "endpoint",
    "tls": {"secretName": "orders-tls"},
    "database": {"name": "orders", "brokerInstance": "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"},
    "scripts": {"orders.sql": "CREATE QUEUE [OrdersQueue];\n"},
    "persistence": {"size": "20Gi", "storageClassName": "fast"},
    "extraContainers": [{"name": "application", "image": "shop:1"}],
}
CASES = {"plain": PLAIN, "gateway": GATEWAY, "endpoint": ENDPOINT}


def render(values: dict[str, Any], folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, manifests and complaint of `helm template`."""
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    done = call("helm", "template", "release", CHART, "--values", path, *words)
    return done.returncode, done.stdout, done.stderr


def rendered(values: dict[str, Any], folder: Path) -> str:
    code, text, complaint = render(values, folder)
    assert (0, "") == (code, complaint)
    return text


def workload_of(text: str) -> dict[str, Any]:
    (found,) = [one for one in objects(text) if one["kind"] in {"Deployment", "StatefulSet"}]
    return found


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_every_object_fits_the_schema(name: str, version: str, tmp_path: Path) -> None:
    assert [] == violations(rendered(CASES[name], tmp_path), version, tmp_path)


def test_the_objects_of_the_operator_fit_its_models(tmp_path: Path) -> None:
    text = rendered(GATEWAY, tmp_path)

    assert {"ServiceMonitor", "PrometheusRule"} <= {one["kind"] for one in objects(text)}
    assert "" == operator_violations(text)


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_is_good(name: str, tmp_path: Path) -> None:
    text = rendered(CASES[name], tmp_path)
    config = configuration_of(workload_of(text), objects(text), tmp_path / "etc")

    result = run("check", "--offline", "-c", config)

    assert 0 == result.exit_code, result.stderr
    settings = load_settings(config, environ={})
    assert ("endpoint" != name) == settings.endpoint.message_forwarding
    assert pod_of(workload_of(text))["terminationGracePeriodSeconds"] > settings.drain.timeout
    if "gateway" == name:
        assert 256 * 2**20 == settings.endpoint.message_forward_size
        assert ROUTES == (tmp_path / "etc" / "scripts.d" / "shop.sql").read_text()


def test_a_change_of_configuration_or_scripts_rolls_the_pods(tmp_path: Path) -> None:
    def annotations(values: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = workload_of(rendered(values, tmp_path))["spec"]["template"]["metadata"]["annotations"]
        return found

    before = annotations(GATEWAY)

    assert before == annotations(GATEWAY)
    assert (
        before["checksum/scripts"] != annotations({**GATEWAY, "scripts": {"shop.sql": "-- none"}})["checksum/scripts"]
    )
    assert before["checksum/configuration"] != annotations({**GATEWAY, "logLevel": "debug"})["checksum/configuration"]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "broker:VERSION"),
        ({"tag": "1.2"}, "broker:1.2"),
        ({"registry": "r.example:5000/a"}, "r.example:5000/a/broker:VERSION"),
        ({"repository": "b", "digest": "sha256:" + "0" * 64, "tag": "1"}, "b@sha256:" + "0" * 64),
    ],
)
def test_every_part_of_the_reference_to_the_image_can_be_set(
    image: dict[str, str], expected: str, tmp_path: Path
) -> None:
    pod = pod_of(workload_of(rendered({**PLAIN, "image": image}, tmp_path)))

    assert expected.replace("VERSION", VERSION) == pod["containers"][0]["image"]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [({}, 354), ({"messageForwardSizeMiB": 1024}, 1554), ({"links": 1000}, 1549)],
)
def test_memory_is_reckoned_from_what_is_held(endpoint: dict[str, int], expected: int, tmp_path: Path) -> None:
    """1.25 x (112 MiB + pool + links x 17/16 MiB): docs/deploying.md."""
    pod = pod_of(workload_of(rendered({**PLAIN, "endpoint": endpoint}, tmp_path)))

    assert f"{expected}Mi" == pod["containers"][0]["resources"]["limits"]["memory"]
    assert f"{expected} MiB" in (ROOT / "docs" / "deploying.md").read_text() or endpoint


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "name the Secret of the certificate in tls.secretName, or spell plain text out: tls.insecure=true"),
        ({"tls": {"insecure": True, "secretName": "x"}}, "exclude each other"),
        (
            {**PLAIN, "terminationGracePeriodSeconds": 25},
            "terminationGracePeriodSeconds (25) must be above drain.timeoutSeconds (25): Kubernetes would kill",
        ),
        ({**PLAIN, "terminationGracePeriodSeconds": 10}, "terminationGracePeriodSeconds (10) must be above"),
        ({**PLAIN, "drain": {"announceSeconds": 25}}, "drain.timeoutSeconds (25) must be above"),
        ({**PLAIN, "drain": {"announceSeconds": 5}}, "must be above readinessProbe.periodSeconds (5)"),
        ({**PLAIN, "mode": "endpoint"}, "an endpoint hosts a database: name it in database.name"),
        ({**PLAIN, "configuration": "[drain]\ntimeout = '1h'\n"}, "the chart writes the section [drain] itself"),
        ({**PLAIN, "replica": 3}, "additional properties 'replica' not allowed"),
        ({**PLAIN, "mode": "router"}, "must be one of 'gateway', 'endpoint'"),
        ({**PLAIN, "image": {"digest": "latest"}}, "does not match pattern"),
        ({**PLAIN, "scripts": {"../x": "y"}}, "invalid propertyName"),
        ({**PLAIN, "replicas": 0}, "minimum: got 0, want 1"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(values: dict[str, Any], expected: str, tmp_path: Path) -> None:
    code, text, complaint = render(values, tmp_path)

    assert (1, "") == (code, text)
    assert expected in complaint


def test_every_value_is_in_the_schema_and_on_the_page_of_values() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(values) == set(schema) - {"global"}
    for name, section in schema.items():
        if section.get("additionalProperties") is False:
            assert set(values[name]) == set(section["properties"]), name


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (VERSION, VERSION) == (chart["version"], chart["appVersion"])
    assert KUBERNETES_VERSIONS[0] == re.findall(r">=(\d+\.\d+)", chart["kubeVersion"])[0]
