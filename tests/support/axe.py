"""
axe-core, which finds what keeps people with disabilities from using a page, as npm has it.

Not vendored, because its licence is another one (MPL-2.0) and only a test needs it: fetched by `npm pack` into a folder
for temporary files, and believed when its hash is the one written here.
"""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

PACKAGE = "axe-core@4.14.1"
INTEGRITY = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="  # SHA-512
SECONDS = 120.0


def axe_source() -> str:
    """The script; skips the test where npm or the registry is not there."""
    kept = Path(tempfile.gettempdir()) / f"{PACKAGE.replace('@', '-')}.tgz"
    if not kept.exists() or _integrity(kept) != INTEGRITY:
        _fetch(kept)
    assert INTEGRITY == _integrity(kept)
    with tarfile.open(kept) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm, which brings axe-core")
    with tempfile.TemporaryDirectory() as directory:
        command = [npm, "pack", PACKAGE, "--silent", "--pack-destination", directory]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        found = list(Path(directory).glob("*.tgz"))
        if done.returncode or not found:
            pytest.skip(f"npm does not bring axe-core: {done.stderr.decode(errors='replace')[-200:]}")
        shutil.copy(found[0], kept)


def _integrity(path: Path) -> str:
    return base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
