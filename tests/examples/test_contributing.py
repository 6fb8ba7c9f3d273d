"""What CONTRIBUTING.md and contributors/adding.md name is there: files, make targets, names in modules."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = "\n".join(
    (ROOT / page).read_text(encoding="utf-8") for page in ("CONTRIBUTING.md", "docs/contributors/adding.md")
)
PATHS = sorted(set(re.findall(r"`((?:broker|tests|docs|examples|deploy|config|\.ci)/[\w/.-]*[\w/])`", PAGE)))
PLACEHOLDERS = {"broker/x/y.py", "tests/unit/x/test_y.py"}


def test_files_and_targets_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", PAGE, re.MULTILINE))

    assert [] == [path for path in PATHS if path not in PLACEHOLDERS and not (ROOT / path).exists()]
    assert len(named) > 10
    assert set() == named - targets
