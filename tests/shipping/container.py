"""
What a container engine does with an image, done to a tree of files: the part that runs in namespaces of its own.

    unshare --mount --pid --net --uts --ipc --fork python -m tests.shipping.container SPECIFICATION.json

Read-only root, what may be written mounted on it, an empty /dev, no capability, no new privileges, a network with
nothing but loopback, a numeric user without an entry in /etc/passwd, and no shell: a program that needs one fails. The
image's command is started as process of that user, asked for readiness, its HEALTHCHECK run, its view of the world
looked at, and then stopped by its own signal. What was found goes to standard output as JSON.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NO_NEW_PRIVS, _DROP_BOUND = 38, 24  # PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, linux/prctl.h
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SHELLS = ("bin/sh", "bin/bash", "bin/dash", "usr/bin/perl")
_DEADLINE_SECONDS = 60.0
_STATUS_KEYS = ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs")


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def prepare(tree: Path, volumes: dict[str, str], folders: dict[str, str]) -> None:
    """
    Mount what a container has.

    Shape: `volumes` that may be written, `folders` that may be read, each the path inside and that outside.
    """
    _mount("--make-rprivate", "/")
    _mount("--bind", tree, tree)
    for inside, outside in volumes.items():
        _mount("--bind", outside, tree / inside.lstrip("/"))
    for inside, outside in folders.items():
        _mount("--bind", outside, tree / inside.lstrip("/"))
        _mount("-o", "remount,bind,ro", tree / inside.lstrip("/"))
    _mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", tree / "proc")
    _mount("-t", "tmpfs", "-o", "size=16m,mode=1777,nosuid,nodev,noexec", "tmpfs", tree / "tmp")
    _mount("-t", "tmpfs", "-o", "size=64k,mode=755,nosuid", "tmpfs", tree / "dev")
    for name in _DEVICES:
        (tree / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", tree / "dev" / name)
    for shell in _SHELLS:  # nothing may need them
        if (tree / shell).exists():
            _mount("--bind", "/dev/null", (tree / shell).resolve())
    _mount("-o", "remount,bind,ro", tree)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def entering(tree: Path, user: str, folder: str) -> Callable[[], None]:
    """What a child does before its program: into the tree, and down to the user."""
    uid, _, gid = user.partition(":")
    libc = ctypes.CDLL(None, use_errno=True)

    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))

    def enter() -> None:
        os.chroot(tree)
        os.chdir(folder)
        for capability in range(last + 1):
            libc.prctl(_DROP_BOUND, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(int(gid), int(gid), int(gid))
        os.setresuid(int(uid), int(uid), int(uid))
        os.umask(0o022)
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")

    return enter


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def _until_ready(url: str, process: subprocess.Popen[bytes]) -> tuple[int, str, float]:
    began = time.monotonic()
    while True:
        status, text = _get(url)
        passed = time.monotonic() - began
        if status == 200 or process.poll() is not None or passed > _DEADLINE_SECONDS:
            return status, text, passed
        time.sleep(0.02)


def _run(words: list[str], enter: Callable[[], None], environ: dict[str, str], timeout: float) -> dict[str, Any]:
    began = time.monotonic()
    done = subprocess.run(
        words, preexec_fn=enter, env=environ, capture_output=True, text=True, timeout=timeout, check=False
    )
    spent = time.monotonic() - began
    return {"code": done.returncode, "text": done.stdout + done.stderr, "seconds": round(spent, 3)}


def _is_writable(path: Path) -> bool:
    """For root, whom no mode keeps from it: only a read-only mount does."""
    try:
        (path / ".probe").touch()
    except OSError:
        return False
    (path / ".probe").unlink()
    return True


def play(told: dict[str, Any]) -> dict[str, Any]:
    """Run the image of a specification from start to stop, and tell what was seen."""
    tree, image = Path(told["tree"]), told["image"]
    prepare(tree, told["volumes"], told["folders"])
    enter = entering(tree, image["user"], image["folder"])
    environ = {**image["environ"], "HOME": "/"}
    path = {"PATH": image["environ"]["PATH"]}
    words = [_found(tree, image["entrypoint"][0], path["PATH"]), *image["entrypoint"][1:]]
    with Path(told["log"]).open("wb") as log:
        process = subprocess.Popen(
            [*words, *image["command"]],
            preexec_fn=enter,  # noqa: PLW1509 - there are no threads
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        found: dict[str, Any] = {}
        status, text, seconds = _until_ready(f"{told['observe']}/readyz?verbose", process)
        found["ready"] = {"status": status, "text": text, "seconds": round(seconds, 3)}
        if process.poll() is None:
            found["process"] = _process(process.pid)
            check = [_found(tree, image["health"][0], path["PATH"]), *image["health"][1:]]
            found["health"] = _run(check, enter, environ, image["health_timeout"])
            found["commands"] = {name: _run([*words, *name.split()], enter, environ, 30.0) for name in told["commands"]}
            found["can_write"] = [
                name for name in ("/", "/etc/broker", "/opt", "/usr") if _is_writable(tree / name[1:])
            ]
            began = time.monotonic()
            process.send_signal(getattr(signal, image["stop_signal"]))
            found["stopped"] = {"code": process.wait(told["grace"]), "seconds": round(time.monotonic() - began, 3)}
            found["dead"] = _run(check, enter, environ, image["health_timeout"])
    return found


def _process(pid: int) -> dict[str, str]:
    """What the kernel says of a process; and its peak of memory."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {name: status[name] for name in (*_STATUS_KEYS, "VmHWM")}


def _found(tree: Path, program: str, path: str) -> str:
    """Where a program is inside the tree: a child looks for it only once it is in there."""
    for folder in path.split(":"):
        if os.path.lexists(tree / folder.lstrip("/") / program):
            return f"{folder}/{program}"
    raise FileNotFoundError(program)


def main(arguments: list[str]) -> int:
    """Play a specification; 1 when there is nothing to tell."""
    (specification,) = arguments
    found = play(json.loads(Path(specification).read_text(encoding="utf-8")))
    json.dump(found, sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
