"""deploy/kubernetes, built by kustomize and judged by the schemas of Kubernetes."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from broker.config.load import load_settings
from tests.support.certificates import authority, make
from tests.support.command import run
from tests.support.shipping import DEPLOY, KUBERNETES_VERSIONS, ROOT, VERSION, call, objects, pod_of, violations
from tools.pages.site import files

KUBERNETES = DEPLOY / "kubernetes"
BUILT = ("gateway", "endpoint", "overlays/production", "overlays/trial", "spark")
HALF_AN_HOUR = 1800  # seconds
OURS = BUILT[:-1]
WORKLOADS = ("Deployment", "StatefulSet")


@cache
def built(folder: str) -> str:
    """What kustomize makes of a folder."""
    done = call("kubectl", "kustomize", KUBERNETES / folder)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def of_kind(folder: str, *kinds: str) -> list[dict[str, Any]]:
    return [one for one in objects(built(folder)) if one["kind"] in kinds]


def configuration_of(workload: dict[str, Any], among: list[dict[str, Any]], folder: Path) -> Path:
    """Lay out what a pod finds in /etc/broker, certificates of the test among it; the path of broker.toml."""
    maps = {one["metadata"]["name"]: one["data"] for one in among if one["kind"] == "ConfigMap"}
    (volume,) = [one for one in pod_of(workload)["volumes"] if one["name"] == "configuration"]
    ca = authority()
    its = make("gateway", "gateway", by=ca)
    secret = {"tls.crt": its.pem, "tls.key": its.key_pem(), "ca.crt": ca.pem}
    for source in volume["projected"]["sources"]:
        one = source.get("configMap") or source["secret"]
        data = maps[one["name"]] if "configMap" in source else secret
        for item in one.get("items") or [{"key": key, "path": key} for key in data]:
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            content = data[item["key"]]
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            path.chmod(0o600)
    return folder / "broker.toml"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("folder", BUILT)
def test_every_object_fits_the_schema(folder: str, version: str, tmp_path: Path) -> None:
    assert [] == violations(built(folder), version, tmp_path)


@pytest.mark.parametrize("folder", OURS)
def test_what_pods_name_is_there(folder: str) -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in objects(built(folder))}

    for workload in of_kind(folder, *WORKLOADS):
        pod = pod_of(workload)
        assert ("ServiceAccount", pod["serviceAccountName"]) in names
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        claims = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())}
        assert mounted == {volume["name"] for volume in pod["volumes"]} | claims
        for volume in pod["volumes"]:
            for source in volume.get("projected", {}).get("sources", ()):
                if "configMap" in source:
                    assert ("ConfigMap", source["configMap"]["name"]) in names


@pytest.mark.parametrize("folder", OURS)
def test_every_selector_finds_pods(folder: str) -> None:
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(folder, *WORKLOADS)]
    selecting = of_kind(folder, "Service", "PodDisruptionBudget", "NetworkPolicy")

    for one in selecting:
        found = one["spec"].get("selector", one["spec"].get("podSelector"))
        labels = found if one["kind"] == "Service" else found["matchLabels"]
        assert labels
        assert [pod for pod in pods if labels.items() <= pod.items()], one["metadata"]["name"]


@pytest.mark.parametrize("folder", OURS)
def test_a_pod_may_do_nothing_but_its_work(folder: str) -> None:
    """What the Pod Security Standard `restricted` asks for, and a read-only root."""
    for workload in of_kind(folder, *WORKLOADS):
        pod = pod_of(workload)
        assert (True, 65532) == (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"])
        assert "RuntimeDefault" == pod["securityContext"]["seccompProfile"]["type"]
        assert (False, False) == (pod["automountServiceAccountToken"], pod["enableServiceLinks"])
        assert {"projected", "emptyDir"} >= {key for volume in pod["volumes"] for key in volume if key != "name"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (False, True) == (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"])
            assert ["ALL"] == context["capabilities"]["drop"]
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("folder", OURS)
def test_the_configuration_is_good_and_the_pod_outlives_its_drain(folder: str, tmp_path: Path) -> None:
    for number, workload in enumerate(of_kind(folder, *WORKLOADS)):
        config = configuration_of(workload, objects(built(folder)), tmp_path / str(number))

        result = run("check", "--offline", "-c", config)

        assert 0 == result.exit_code, result.stderr
        settings = load_settings(config, environ={})
        pod = pod_of(workload)
        assert pod["terminationGracePeriodSeconds"] > settings.drain.timeout
        (container,) = pod["containers"]
        assert settings.drain.announce > container["readinessProbe"]["periodSeconds"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {"broker": settings.endpoint.listen[0].port, "observe": settings.observe.listen.port}  # type: ignore[union-attr]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert str(settings.instance.state_dir) in mounted
        assert ("overlays/trial" == folder) == (settings.endpoint.encryption == "disabled")


def test_an_endpoint_has_time_to_bring_its_database_up_to_a_new_release() -> None:
    """Ended halfway it would begin anew, for ever."""
    (workload,) = of_kind("endpoint", "StatefulSet")
    (container,) = pod_of(workload)["containers"]
    probe = container["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] >= HALF_AN_HOUR


def test_routes_and_endpoint_name_each_other() -> None:
    text = (KUBERNETES / "gateway" / "routes.sql").read_text()
    database = tomllib.loads((KUBERNETES / "endpoint" / "broker.toml").read_text())["databases"]["orders"]
    (workload,) = of_kind("endpoint", "StatefulSet")
    (service,) = of_kind("endpoint", "Service")
    address = (
        f"tcp://{workload['metadata']['name']}-0.{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    )

    assert [database["broker_instance"]] == re.findall(r"BROKER_INSTANCE = N'([^']+)'", text)
    assert [address] == re.findall(r"ADDRESS = N'([^']+)'", text)
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    (gateway,) = of_kind("gateway", "Service")
    way = f"tcp://{gateway['metadata']['name']}:{gateway['spec']['ports'][0]['port']}"
    assert way in (KUBERNETES / "endpoint" / "orders.sql").read_text()


def test_the_monitor_finds_every_service_and_calls_the_job_broker() -> None:
    (monitor,) = of_kind("overlays/production", "ServiceMonitor")
    services = of_kind("overlays/production", "Service")
    selector = monitor["spec"]["selector"]["matchLabels"]

    assert 2 == len([one for one in services if selector.items() <= one["metadata"]["labels"].items()])
    assert {"broker"} == {one["metadata"]["labels"][monitor["spec"]["jobLabel"]] for one in services}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert all(endpoint["port"] in {port["name"] for port in one["spec"]["ports"]} for one in services)


def test_the_image_is_that_of_this_version() -> None:
    images = {pod_of(one)["containers"][0]["image"] for folder in OURS for one in of_kind(folder, *WORKLOADS)}

    assert {f"broker:{VERSION}"} == images


def test_the_rules_are_those_of_prometheus() -> None:
    for path, text in files().items():
        assert text == path.read_text(encoding="utf-8"), f"run make docs: {path.relative_to(ROOT)} is old"
