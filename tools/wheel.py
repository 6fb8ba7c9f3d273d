"""
`python -m tools.wheel dist`: the source distribution, the wheels with and without the compiled kernel, and their bill.

The files of the checkout (`git ls-files`) are copied with fixed times and modes, the source distribution is made of the
copy, and both wheels of the source distribution, so a file that it lacks is missed here. The same files give the same
bytes: times are those of SOURCE_DATE_EPOCH, or of the last commit. auditwheel chooses the manylinux tag (`make
shipping`). It needs Cython, setuptools and gcc, and no index.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.lock import ROOT

EPOCH_VARIABLE, BUILD_VARIABLE = "SOURCE_DATE_EPOCH", "BROKER_BUILD"
AUDITWHEEL = ROOT / "build" / "shipping" / "bin" / "auditwheel"
_BILL = Path("deploy", "sbom.cdx.json")
_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


class WheelError(Exception):
    """A step that failed, with what it printed."""


def _run(*words: str | Path, cwd: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(  # noqa: S603 - words of the image
        list(map(str, words)),
        cwd=cwd,
        env={**os.environ, **environ},
        umask=0o022,  # modes are part of the bytes
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WheelError(f"{' '.join(map(str, words[:4]))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def epoch() -> int:
    """Return the time of every file of a distribution, UTC seconds. Raises WheelError: no variable, and no commit."""
    return int(os.environ.get(EPOCH_VARIABLE) or _run("git", "log", "-1", "--format=%ct", cwd=ROOT, environ={}).strip())


def copy_checkout(source: Path, target: Path, instant: int) -> None:
    """Copy what belongs to a checkout, each file with the same time and one of two modes."""
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=source, environ={})
    for name in sorted(filter(None, listed.split("\0"))):
        file = source / name
        if file.is_symlink() or not file.is_file():
            continue  # deleted and not yet committed
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        copy.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
        os.utime(copy, (instant, instant))


def pack_again(path: Path, instant: int) -> None:
    """Give the members of a .tar.gz one order, one owner, one time; setuptools leaves that to the machine."""
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = instant, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=instant) as zipped:
        zipped.write(packed.getvalue())


def source_distribution(checkout: Path, target: Path, instant: int) -> Path:
    """Make the source distribution of a copied checkout."""
    _run(sys.executable, "-c", _SDIST, target, cwd=checkout, environ={EPOCH_VARIABLE: str(instant)})
    (made,) = target.glob("*.tar.gz")
    pack_again(made, instant)
    return made


def wheel_of(sdist: Path, target: Path, instant: int, *, build: str) -> Path:
    """
    Make a wheel of a source distribution; `build` is "compiled" or "pure".

    Raises:
        WheelError: it cannot be compiled here, or something is missing in the source distribution.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = (one for one in Path(folder).iterdir() if one.is_dir())
        words = ("-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index")
        environ = {EPOCH_VARIABLE: str(instant), BUILD_VARIABLE: build}
        _run(sys.executable, *words, "--no-build-isolation", "--wheel-dir", made, ".", cwd=tree, environ=environ)
        (wheel,) = made.glob("*.whl")
        if build == "compiled":
            wheel = _tag(wheel, made / "tagged", instant)
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, target / wheel.name))


def _tag(wheel: Path, folder: Path, instant: int) -> Path:
    """Give a wheel the oldest manylinux tag that what it is linked with allows."""
    path = f"{AUDITWHEEL.parent}{os.pathsep}{os.environ['PATH']}"  # it calls patchelf
    environ = {EPOCH_VARIABLE: str(instant), "PATH": path}
    _run(AUDITWHEEL, "repair", "--plat", "auto", "--wheel-dir", folder, wheel, cwd=ROOT, environ=environ)
    (tagged,) = folder.glob("*.whl")
    return tagged


def build_all(tree: Path, target: Path, instant: int, *, builds: Iterable[str] = ("compiled", "pure")) -> list[Path]:
    """Make all of a copied checkout, with hashes as sha256sum writes them, in a folder that is emptied first."""
    target.mkdir(parents=True, exist_ok=True)
    for old in (*target.glob("*.whl"), *target.glob("*.tar.gz"), *target.glob("*.cdx.json")):
        old.unlink()
    sdist = source_distribution(tree, target, instant)
    made = [sdist, *(wheel_of(sdist, target, instant, build=build) for build in builds)]
    made.append(Path(shutil.copyfile(tree / _BILL, target / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json")))
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(made))
    (target / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return made


def main(target: str) -> None:
    """Make all of this checkout, and print names and sizes."""
    with tempfile.TemporaryDirectory() as folder:
        instant = epoch()
        copy_checkout(ROOT, Path(folder), instant)
        for file in build_all(Path(folder), Path(target).resolve(), instant):
            sys.stdout.write(f"{file.stat().st_size:>10,}  {file}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except WheelError as error:
        sys.exit(str(error))
