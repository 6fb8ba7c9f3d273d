"""
Speak with a daemon for so many seconds, one conversation after another, and see that it and its neighbours go on.

    python -m tests.fuzz.converse --seconds 600

Each conversation is made from a number. What was found is told with that number, and the exit code is 1; the daemons'
directories stay then, and their place is told. `--from` says where to begin, so a finding can be tried again.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.stage import Stage

BATCH = 100  # conversations between two looks at the neighbour
WARM = 1000  # conversations after which the daemon is as large as it gets
GROWTH_MAX = 32 * 1024 * 1024


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="about so long; default %(default)s")
    parser.add_argument("--from", dest="first", type=int, default=int(time.time()), help="the first number")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="broker-conversations-"))
    try:
        _run(directory, arguments.first, arguments.seconds)
    except (AssertionError, ExceptionGroup) as error:
        found = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        sys.stdout.write(f"finding: {found}; logs and files are in {directory}\n")
        return 1
    shutil.rmtree(directory)
    return 0


def _run(directory: Path, first: int, seconds: int) -> None:
    deadline = time.monotonic() + seconds
    with Stage(directory) as stage:
        warm = 0
        for batch in itertools.count():
            begin = first + batch * BATCH
            stage.converse(range(begin, begin + BATCH))
            stage.talk(5)
            if (batch + 1) * BATCH <= WARM:
                warm = stage.rss
            elif stage.rss > warm + GROWTH_MAX:
                raise AssertionError(f"{stage.rss >> 20} MiB, and {warm >> 20} MiB after {WARM} conversations")
            if time.monotonic() > deadline:
                break
        stage.check()
        told = dict(sorted(stage.told.items()))
        sys.stdout.write(f"from number {first}: {told}\n")
        sys.stdout.write(f"the neighbour's messages: {stage.steady} each way, all of them once and in order\n")
        early = min(WARM, stage.told["conversations"])
        sys.stdout.write(f"the daemon: {warm >> 20} MiB after {early} conversations, {stage.rss >> 20} MiB at last\n")


if __name__ == "__main__":
    sys.exit(main())
