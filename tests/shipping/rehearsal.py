"""
The Dockerfile without a container engine: its steps in a bare Debian tree, and the daemon in what comes of it.

    python -m tests.shipping.rehearsal Dockerfile build/rehearsal

The base image is made by debootstrap, thinned as Debian's `slim` images are, and kept for the next run. Every RUN goes
into the tree by chroot, with namespaces of its own for mounts and processes, and the environment and folder that the
Dockerfile gives it; every COPY takes from the context that .dockerignore leaves, or from another stage. What the
machine needs to reach its package indexes (resolver, CA, pip's configuration, proxy variables) is lent to each step
and is not in the result. The last stage is then run by `tests.shipping.container`.

Not the same as an engine: no layers, no cache, no seccomp profile, no cgroup; times and sizes are those of the tree.
Needs root, debootstrap and the packages of `requirements/shipping.txt`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.shipping.dockerfile import Stage, Step, context_files, parse
from tools.lock import ROOT

SUITE = "bookworm"
GRACE_SECONDS = 35.0  # terminationGracePeriodSeconds of deploy/kubernetes
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CA = "/run/lent-authorities.crt"  # apart from where the package ca-certificates writes its own
_LENT = {
    "/etc/resolv.conf": "/etc/resolv.conf",
    "/etc/hosts": "/etc/hosts",
    "/etc/pip.conf": "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt": _CA,
}
# Source: debuerreotype, slimify-excludes and minimizing-config.
_THINNED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/groff",
    "usr/share/lintian",
)
_EXCLUDES = "".join(f"path-exclude /{folder}/*\n" for folder in _THINNED) + "path-include /usr/share/doc/*/copyright\n"
_CLEAN = """\
APT::Install-Suggests "false";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""


class RehearsalError(Exception):
    """A step that failed, or a thing that is not as it must be."""


def _run(words: list[str], **options: Any) -> None:
    done = subprocess.run(words, check=False, **options)
    if done.returncode:
        raise RehearsalError(f"{' '.join(words)[:200]} ended with {done.returncode}")


def base_tree(folder: Path) -> Path:
    """A bare Debian, made once, for every stage to begin with."""
    tree = folder / "base"
    if not (tree / "etc" / "debian_version").exists():
        shutil.rmtree(tree, ignore_errors=True)
        _run(["debootstrap", "--variant=minbase", SUITE, str(tree)], stdout=subprocess.DEVNULL)
        (tree / "etc/dpkg/dpkg.cfg.d/docker").write_text(_EXCLUDES, encoding="ascii")
        (tree / "etc/apt/apt.conf.d/docker").write_text(_CLEAN, encoding="ascii")
        for name in (*_THINNED, "var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
            shutil.rmtree(tree / name, ignore_errors=True)
            (tree / name).mkdir()
        (tree / "var/cache/apt/archives/partial").mkdir()
    return tree


@contextmanager
def lent(tree: Path, folder: Path) -> Iterator[list[str]]:
    """Shell lines that mount what the machine lends; where it had to make a file for that, it takes it away again."""
    made, lines = [], [f"mount -t proc proc {tree}/proc", f"mount --rbind /dev {tree}/dev"]
    lending = folder / "lent"
    lending.mkdir(exist_ok=True)
    for name, inside in _LENT.items():
        if not Path(name).exists():
            continue
        source, target = lending / Path(name).name, tree / inside.lstrip("/")
        shutil.copyfile(name, source)
        if not target.exists():
            made += [one for one in (target, *target.parents) if not one.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        lines.append(f"mount --bind {source} {target}")
    try:
        yield lines
    finally:
        for one in made:
            if one.is_dir():
                if not any(one.iterdir()):
                    one.rmdir()
            elif not one.stat().st_size:  # else a package has put its own there
                one.unlink()


def run_step(step: Step, tree: Path, folder: Path) -> None:
    """RUN in the tree, as root unless the Dockerfile says otherwise."""
    environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **step.environ}
    environ |= {name: os.environ[name] for name in _PROXIES if name in os.environ}
    environ |= {"PIP_CERT": _CA, "DEBIAN_FRONTEND": "noninteractive", "PIP_ROOT_USER_ACTION": "ignore"}
    environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    user = [f"--userspec={step.user}"] if step.user else []
    inner = ["chroot", *user, str(tree), "/usr/bin/env", "-i", f"--chdir={step.folder}"]
    inner += [f"{name}={value}" for name, value in environ.items()] + list(step.words)
    (tree / step.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    with lent(tree, folder) as mounts:
        script = "set -e; " + "; ".join(mounts) + '; exec "$@"'
        log = (folder / "build.log").open("ab")
        with log:
            words = ["unshare", "--mount", "--pid", "--fork", "--propagation=private", "sh", "-c", script, "sh", *inner]
            _run(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def copy_step(step: Step, tree: Path, stages: Mapping[str, Path]) -> None:
    """COPY, out of the context or of another stage."""
    *sources, target = step.words
    is_folder = target.endswith("/") or len(sources) > 1
    inside = tree / str(Path(step.folder, target)).lstrip("/")
    if step.source:
        for source in sources:
            _run(["cp", "--archive", "--no-target-directory", f"{stages[step.source]}{source}", str(inside)])
        return
    copied = 0
    for source in sources:
        for name in context_files(ROOT, ROOT / ".dockerignore", [source]):
            rest = name.relative_to(source)
            goal = inside / name.name if is_folder and rest == Path() else inside / rest
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, goal)
            goal.chmod(0o644)
            copied += 1
        if not copied:
            raise RehearsalError(f"line {step.line}: {source} is not in the context: see .dockerignore")


def build(stages: list[Stage], folder: Path) -> Path:
    """All stages in order; the tree of the last."""
    trees: dict[str, Path] = {}
    tree = base = base_tree(folder)
    for number, stage in enumerate(stages):
        if stage.base not in trees and stage.base != f"debian:{SUITE}-slim":
            raise RehearsalError(f"{stage.base} cannot be made here")
        tree = folder / f"stage-{number}"
        shutil.rmtree(tree, ignore_errors=True)
        _run(["cp", "--archive", str(trees.get(stage.base, base)), str(tree)])
        trees[stage.name] = trees[str(number)] = tree
        for step in stage.steps:
            sys.stderr.write(f"stage {stage.name}, line {step.line}: {step.kind}\n")
            if step.kind == "RUN":
                run_step(step, tree, folder)
            else:
                copy_step(step, tree, trees)
    return tree


def play(tree: Path, image: Stage, folder: Path, configuration: Path) -> dict[str, Any]:
    """The image as a container, with this configuration; what was seen."""
    volumes = {}
    for volume in image.volumes:
        # As an engine makes it: empty here, with the owner and mode that the image has it with.
        outside = folder / "volume" / volume.replace("/", "_")
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir(parents=True)
        like = (tree / volume.lstrip("/")).stat()
        os.chown(outside, like.st_uid, like.st_gid)
        outside.chmod(like.st_mode & 0o7777)
        volumes[volume] = str(outside)
    specification = folder / "container.json"
    told = {
        "tree": str(tree.resolve()),
        "image": asdict(image),
        "volumes": {name: str(Path(path).resolve()) for name, path in volumes.items()},
        "folders": {"/etc/broker": str(configuration.resolve())},
        "observe": "http://127.0.0.1:9423",
        "commands": ["--version", "status", "health ready", "config show"],
        "grace": GRACE_SECONDS,
        "log": str((folder / "container.log").resolve()),
    }
    specification.write_text(json.dumps(told, indent=2), encoding="utf-8")
    words = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*words, sys.executable, "-m", "tests.shipping.container", str(specification)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RehearsalError(f"the container could not be played\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def configuration_of(source: Path, folder: Path) -> Path:
    """A folder as /etc/broker has it: `source` as broker.toml, with a journal, and its scripts."""
    target = folder / "etc"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    text = source.read_text(encoding="utf-8") + '\n[journal]\ndirectory = "flows"\n'  # so that pyarrow has to work
    (target / "broker.toml").write_text(text, encoding="utf-8")
    for scripts in sorted(source.parent.glob("*.d")):
        shutil.copytree(scripts, target / scripts.name)
    return target


def size_of(tree: Path) -> int:
    """Bytes on the disk, as `du` counts them."""
    told = subprocess.run(["du", "-sx", "--block-size=1", str(tree)], capture_output=True, text=True, check=True)
    return int(told.stdout.split()[0])


def judge(found: dict[str, Any], image: Stage) -> list[str]:
    """What is not as it must be, a sentence each; the kernel's words are those of proc(5)."""
    ready, process = found["ready"], found.get("process")
    if ready["status"] != 200 or process is None:
        return [f"it did not become ready: {ready}"]
    uid = image.user.partition(":")[0]
    commands = found["commands"]
    expected = {
        f"it runs as user {uid}": {uid} == set(process["Uid"].split()),
        "it has no capability": {"0" * 16} == {process["CapEff"], process["CapPrm"], process["CapBnd"]},
        "it may get no privileges": process["NoNewPrivs"] == "1",
        "nothing of the root can be written": found["can_write"] == [],
        "HEALTHCHECK is 0 while it runs": found["health"]["code"] == 0,
        "HEALTHCHECK is not 0 once it has gone": found["dead"]["code"] != 0,
        "every command succeeds": all(one["code"] == 0 for one in commands.values()),
        "it runs the compiled kernel": "compiled" in commands["status"]["text"],
        "it is the version of its label": image.labels["org.opencontainers.image.version"]
        in commands["--version"]["text"],
        f"it ends with 0 on {image.stop_signal}": found["stopped"]["code"] == 0,
    }
    return [f"not so: {sentence}" for sentence, is_so in expected.items() if not is_so]


def main(arguments: list[str]) -> int:
    """Build, run, judge; 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--configuration", type=Path, default=ROOT / "deploy" / "compose" / "gateway-a.toml")
    parser.add_argument("--run-only", action="store_true", help="the tree of the last build")
    told = parser.parse_args(arguments)
    told.folder.mkdir(parents=True, exist_ok=True)
    folder = told.folder.resolve()
    stages = parse(told.dockerfile)
    image = stages[-1]
    try:
        tree = folder / f"stage-{len(stages) - 1}" if told.run_only else build(stages, folder)
        found = play(tree, image, folder, configuration_of(told.configuration, folder))
    except RehearsalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    mebibytes = {name: round(size_of(one) / 2**20) for name, one in (("image", tree), ("base", folder / "base"))}
    report = {"mebibytes": mebibytes, **found}
    (folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    wrong = judge(found, image)
    sys.stderr.write("".join(f"{one}\n" for one in wrong) or "all as it must be\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
