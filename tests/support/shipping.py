"""The programs that judge what is handed on, from `make shipping`, and what they say."""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it tells no types

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
FOLDER = ROOT / "build" / "shipping" / "bin"
KUBERNETES_VERSIONS = ("1.27", "1.33", "1.37")  # the oldest that the manifests are for, and the newest there is


def program(name: str) -> str:
    """Its path; the test is skipped where `make shipping` has not been run, unless BROKER_TEST_COMPLETE says no."""
    found = shutil.which(name, path=f"{FOLDER}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        if os.environ.get("BROKER_TEST_COMPLETE"):
            pytest.fail(f"no {name}: run make shipping")
        pytest.skip(f"no {name}: run make shipping")
    return found


def call(name: str, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a program says to these words."""
    return subprocess.run([program(name), *words], capture_output=True, text=True, check=False, cwd=ROOT, **options)


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a stream of YAML."""
    return [one for one in yaml.safe_load_all(text) if one]


def violations(manifests: str, version: str, folder: Path) -> list[str]:
    """What the schemas of one version of Kubernetes have against manifests; objects of the operator are left out."""
    known = [one for one in objects(manifests) if not one["apiVersion"].startswith("monitoring.coreos.com/")]
    path = folder / f"manifests-{version}.yaml"
    path.write_text(yaml.safe_dump_all(known))
    done = call("kubernetes-validate", "--kubernetes-version", version, "--strict", path)
    passed = [line for line in done.stdout.splitlines() if " passed for resource " in line]
    assert len(known) == len(passed) or done.returncode
    return [line for line in (done.stdout + done.stderr).splitlines() if " passed for resource " not in line]


_MODELS = """
import json, sys
from cloudcoil.models.prometheus_operator import v1
for one in json.load(sys.stdin):
    read = getattr(v1, one["kind"]).model_validate(one)
    again = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    assert again == one, (again, one)  # what a model does not know it drops
"""


def operator_violations(manifests: str) -> str:
    """What the models of the Prometheus operator have against its objects in manifests."""
    program("auditwheel")  # of the same installation
    its = [one for one in objects(manifests) if one["apiVersion"] == "monitoring.coreos.com/v1"]
    words = [str(FOLDER / "python"), "-c", _MODELS]
    done = subprocess.run(words, input=json.dumps(its), capture_output=True, text=True, check=False)
    return done.stderr


def pod_of(one: dict[str, Any]) -> dict[str, Any]:
    """The specification of the pods that an object makes."""
    pod: dict[str, Any] = one["spec"]["template"]["spec"]
    return pod
