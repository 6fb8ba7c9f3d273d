"""The pipeline in containers, which cannot run here: what the files name has to be there."""

import re
import subprocess
import tomllib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import yaml  # type: ignore[import-untyped]  # it tells no types

from broker.cli import main

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes" / "spark").rglob("*.yaml"))
OBJECTS: list[dict[str, Any]] = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
DOCKERFILE = ROOT / "deploy" / "spark" / "Dockerfile"


def pods() -> list[dict[str, Any]]:
    """The specification of every pod."""
    templates = [one["spec"].get("jobTemplate", one)["spec"].get("template") for one in OBJECTS if "spec" in one]
    return [template["spec"] for template in templates if template]


def named(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in OBJECTS if one["kind"] == kind}


CONTAINERS = [container for pod in pods() for container in pod["containers"]]


def test_every_file_is_part_of_the_whole() -> None:
    (whole,) = [one for one in OBJECTS if one["kind"] == "Kustomization"]

    assert {path.name for path in MANIFESTS} == {*whole["resources"], "kustomization.yaml"}
    assert {whole["namespace"]} == {one["metadata"]["namespace"] for one in OBJECTS if "spec" in one}


def test_what_pods_name_is_there() -> None:
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods()
        for volume in pod.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }

    assert claims == named("PersistentVolumeClaim")
    assert {pod["serviceAccountName"] for pod in pods()} == named("ServiceAccount")
    for pod in pods():
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        assert volumes == {mount["name"] for one in pod["containers"] for mount in one.get("volumeMounts", ())}


def test_the_master_is_found_under_the_name_of_its_service() -> None:
    (service,) = [one for one in OBJECTS if one["kind"] == "Service"]
    url = f"spark://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    words = [word for container in CONTAINERS for word in " ".join(container.get("args", ())).split()]

    assert [url, f"--master={url}"] == [word for word in words if "spark://" in word]
    masters = [one for one in OBJECTS if "Deployment" == one["kind"] and "spark-master" == one["metadata"]["name"]]
    selected = [one["spec"]["template"]["metadata"]["labels"] for one in masters]
    assert [service["spec"]["selector"]] == selected


def test_the_command_understands_its_words() -> None:
    """Its shell prints the words that the command gets; they are parsed, and nothing runs."""
    (container,) = [one for one in CONTAINERS if one["command"][0] == "sh"]
    script = container["args"][0].replace("exec broker pipeline run", "printf '%s\\n'")
    words = subprocess.run([*container["command"], script], capture_output=True, text=True, check=True).stdout.split()
    pipeline = main.commands["pipeline"]
    assert isinstance(pipeline, click.Group)

    params = pipeline.commands["run"].make_context("run", words).params

    assert timedelta(hours=1) == params["end"] - params["first"]
    assert timedelta(hours=1) <= datetime.now(UTC) - params["end"] < timedelta(hours=2, minutes=1)
    assert (Path(f"/flows/results/{params['first']:%Y-%m-%dT%H}"), "json") == (params["out"], params["output"])


@pytest.mark.parametrize("container", [one for one in CONTAINERS if one["command"][0] == "spark-class"], ids=str)
def test_the_classes_are_in_this_spark(container: dict[str, Any]) -> None:
    (jar,) = (Path(str(pyspark.__file__)).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(jar) as classes:
        assert container["command"][1].replace(".", "/") + ".class" in classes.namelist()


def test_the_image_is_made_of_what_is_there() -> None:
    text = DOCKERFILE.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]

    assert copied
    assert all((ROOT / name).exists() for name in copied)
    (extra,) = re.findall(r"pip install .*'\.\[(\w+)\]'", text)
    assert extra in project["optional-dependencies"]
    python = re.findall(r"^FROM python:(3\.\d+)", text, re.MULTILINE)
    assert [project["requires-python"].removeprefix(">=")] == python
