"""
Mutation testing: change one place of a module, run the tests of its package, see whether one fails.

    make mutants MUTANTS=30 ONLY=broker/store

Needs cosmic-ray (requirements/mutation.txt), which makes the changes. Places are drawn with a fixed seed, which does
not depend on the name of the module; a place is changed once. Annotations, strings and the order of statements are not
changed, and no statement is removed. Everything runs in copies of this tree. The copies and the temporary files of the
tests are in memory where /dev/shm exists. The exit code is 0 when every mutant was run, however many survived.
"""

import ast
import multiprocessing
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

ROOT = Path(__file__).parents[2]
SEED = 1
PROCESSES = 2
PYTHON = f"{ROOT}/.venv/bin/python"
PYTEST = f"{PYTHON} -m pytest -x -q -p no:randomly -p no:cacheprovider --keep-duplicates"
say = partial(print, flush=True)

# Modules and the tests that are run against each of them; of both, paths with blanks between.
TABLE = {
    "broker/protocol/decoder.py": "tests/unit/protocol tests/property/test_wire.py tests/property/test_decoders.py",
    "broker/conversation/outbound.py broker/conversation/frames.py broker/conversation/window.py": (
        "tests/unit/conversation tests/property/test_conversation.py"
    ),
    "broker/routing/decide.py": (
        "tests/unit/routing tests/property/test_routing.py tests/property/test_conformance_cases.py"
        " tests/property/test_explain.py tests/property/test_oracle.py"
    ),
    "broker/routing/mirrored.py": "tests/unit/routing/test_mirrored.py tests/property/test_mirrored_route.py",
    "broker/forwarding/kernel.py broker/forwarding/slow_path.py": (
        "tests/unit/forwarding tests/property/test_kernels.py tests/property/test_forwarding.py"
        " tests/property/test_forwarding_relay.py"
    ),
    "broker/store/sqlite/receive.py broker/store/sqlite/verify.py"
    " broker/store/sqlite/reassembly.py broker/store/sqlite/failure.py broker/store/sqlite/quarantine.py"
    " broker/store/sqlite/file_identity.py broker/store/sqlite/role_file.py"
    " broker/store/sqlite/inspect.py broker/store/sqlite/transaction.py": (
        "tests/unit/store tests/property/test_reception.py tests/property/test_exchanged_fields.py"
    ),
}
# `is` for `==` and the like: the same for small integers, so no test could tell.
_MEANINGLESS = re.compile(r"Comparison\w*_(Is|IsNot)_(?!Is)|Comparison\w*_(?!Is)[A-Z]\w*_(Is|IsNot)$")


def sample(module: str, size: int) -> list[MutationSpec]:
    """At most `size` mutations of a module, each of another place, in the order of the places."""
    code = Path(module).read_text()
    hints = [
        ((hint.lineno, hint.col_offset), (hint.end_lineno, hint.end_col_offset))
        for node in ast.walk(ast.parse(code))
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if hint is not None
    ]
    database = WorkDB(":memory:", WorkDB.Mode.create)
    init([Path(module)], database, {})
    found = [item.mutations[0] for item in database.work_items]
    found.sort(key=lambda it: (tuple(it.start_pos), it.operator_name, it.occurrence))
    random.Random(SEED).shuffle(found)
    places: dict[tuple[int, int], MutationSpec] = {}
    for mutation in found:
        place = line, column = mutation.start_pos[0], mutation.start_pos[1]
        is_marker = code.splitlines()[line - 1].startswith("*,", column)  # of a signature: no multiplication
        is_hint = any(start <= place < end for start, end in hints)
        if not is_marker and not is_hint and not _MEANINGLESS.search(mutation.operator_name):
            places.setdefault(place, mutation)
    return [mutation for _place, mutation in sorted(list(places.items())[:size])]


def command(module: str, tests: str) -> str:
    """How the tests are run: the file that is named after the module, if there is one, and then all of them."""
    own = Path(tests.split(maxsplit=1)[0], f"test_{Path(module).stem}.py")
    return f"{PYTEST} {own if own.exists() else ''} {tests}"


def run_unchanged(tests: str) -> float:
    """Seconds that the tests take when nothing is changed; they must pass, and must import this copy."""
    show = [PYTHON, "-c", "import broker; print(broker.__file__)"]
    assert Path(subprocess.run(show, stdout=subprocess.PIPE, check=True, text=True).stdout).is_relative_to(Path.cwd())
    start = time.monotonic()
    subprocess.run(shlex.split(f"{PYTEST} {tests}"), stdout=sys.stderr, check=True)
    return time.monotonic() - start


def print_row(name: str, results: list[WorkResult]) -> None:
    """Print one row of the table."""
    assert all(result.test_outcome != TestOutcome.INCOMPETENT for result in results), results
    killed, made = sum(result.is_killed for result in results), len(results)
    late = sum(result.output == "timeout" for result in results)
    say(f"| {name} | {made} | {killed} | {late} | {made - killed} | {100 * killed / made:.0f} |")


def report(runs: dict[str, list[Future[WorkResult]]]) -> None:
    """Print a row for each module as soon as it is done, then what each survivor has changed."""
    say("| Module | mutants | killed | of these by time-out | survived | killed, % |\n|---|---|---|---|---|---|")
    done: list[WorkResult] = []
    for module, futures in runs.items():
        results = [future.result() for future in futures]
        print_row(module, results)
        done += results
    print_row("all", done)
    for diff in (result.diff for result in done if not result.is_killed):
        path, _, lines = diff.partition("+++ b/")[2].partition("\n@@ -")
        say(f"\n{path}:{int(lines.split(',')[0]) + 3}")  # three lines of context
        say(*(text for text in lines.split("\n")[1:] if text.startswith(("-", "+"))), sep="\n")


def main(size: int, only: str) -> None:
    """Run the sample, the mutants of a module `PROCESSES` at a time, each process in a copy of the tree."""
    chosen = {it: tests for modules, tests in TABLE.items() for it in modules.split() if re.search(only, it)}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as temporary:
        left_out = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "build", "dist", "site")
        first = shutil.copytree(ROOT, Path(temporary, "0"), ignore=left_out)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the unchanged code is compiled once, before it is copied
        os.environ |= {"TMPDIR": temporary, "CI": "true"}  # CI: Hypothesis draws the same each time and keeps nothing
        os.chdir(first)
        seconds = {tests: run_unchanged(tests) for tests in dict.fromkeys(chosen.values())}
        free: multiprocessing.Queue[Path] = multiprocessing.Queue()
        for number in range(1, PROCESSES + 1):
            free.put(shutil.copytree(first, Path(temporary, str(number))))
        with ProcessPoolExecutor(PROCESSES, initializer=lambda: os.chdir(free.get())) as pool:
            runs = {
                module: [
                    pool.submit(mutate_and_test, [mutation], command(module, tests), 30 + 3 * seconds[tests])
                    for mutation in sample(module, size)
                ]
                for module, tests in chosen.items()
            }
            report(runs)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
