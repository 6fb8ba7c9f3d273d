"""
The few tests that failed among all the others, once more, alone in a fresh process.

Thousands of tests with real processes share a machine whose speed nobody vouches for. One that fails among them and
passes by itself is a flaw to mend, of the test or of what it tests, and is told as one; it does not cost the whole run.
Many at once are no accident and are not tried again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TESTS_MAX = 4
_GROUP = re.compile(r"@[^\]]*$")  # what pytest-xdist puts behind the name of a test that has a group


def failed_tests(cache: Path) -> list[str]:
    """The names of the tests that failed in the last run. Shape: `cache` the directory of pytest's cache."""
    remembered = cache / "v" / "cache" / "lastfailed"
    return sorted({_GROUP.sub("", name) for name in json.loads(remembered.read_text())})


def main(cache: Path) -> int:
    """Run them. Returns: 0 when all passed now, else what pytest returned, and 1 for too many."""
    tests = failed_tests(cache)
    if not 0 < len(tests) <= TESTS_MAX:
        sys.stderr.write(f"{len(tests)} tests failed: at most {TESTS_MAX} are run once more\n")
        return 1
    sys.stdout.write(f"once more, alone: {' '.join(tests)}\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-n0", *tests]  # with pytest-xdist there: its markers are in use
    outcome = subprocess.run(command, check=False).returncode  # noqa: S603 - names that pytest wrote
    verdict = "failed twice" if outcome else "FLAKY, to be mended"
    sys.stdout.writelines(f"{verdict}: {test}\n" for test in tests)
    return outcome


if __name__ == "__main__":
    sys.exit(main(Path(".pytest_cache")))
