"""
The file for spark-submit: `broker pipeline` with the same arguments.

    spark-submit --master spark://head:7077 .../broker/cli/submit.py paths --journal DIR --out DIR

Master, memory and settings are then those of spark-submit. Importing this module has no effect.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command in the process that spark-submit started."""
    here = Path(__file__).parent  # the first entry of the path when Python runs a file
    sys.path[:] = [name for name in sys.path if not name or Path(name).resolve() != here.resolve()]
    from broker.cli.main import main as command  # noqa: PLC0415

    command(["pipeline", *sys.argv[1:]], prog_name="broker")


if __name__ == "__main__":
    main()
