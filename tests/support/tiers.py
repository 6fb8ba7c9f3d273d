"""
The two tiers of tests: `make test` runs the fast one, in minutes, and `make test-all` everything.

The marker `long` is for what needs minutes, many processes, or other programs (a browser, a cluster, a compiler), and
for tests of test tools. Modules and directories of which all is long are listed here by their beginning below `tests/`;
single tests carry the marker. Properties are tried on fewer examples in the fast tier.
"""

import os

IS_COMPLETE = os.environ.get("BROKER_TEST_ALL") == "1"
EXAMPLES_MAX = 50  # of a property in the fast tier

LONG = (
    "bench/",
    "browser/",
    "chaos/",  # real daemons under faults, and the tests of what judges them
    "docs/test_examples",
    "docs/test_reference",  # executes tutorial, how-tos, and commands of other pages
    "examples/",
    "fuzz/test_conversation",
    "loopback/test_admin_attack",
    "loopback/test_admin_bytes",
    "loopback/test_bench",
    "loopback/test_crowd",
    "loopback/test_dynamic_routing",
    "loopback/test_handshake_memory",
    "loopback/test_journal",
    "loopback/test_memory",
    "loopback/test_multiple_routes",
    "loopback/test_nothing_leaks",
    "loopback/test_progress",
    "loopback/test_rotation",
    "loopback/test_route_errors",
    "model/",  # spin, and gcc for each
    "prometheus/",
    "shipping/",  # wheels, images, charts
    "simulation/test_fleet",
    "spark/report/test_file",
    "spark/report/test_page",
    "spark/report/test_tables",
    "spark/test_cluster",
    "spark/test_jobs",
    "spark/test_routes",
    "unit/support/",  # of a test tool
)
# Tests that break the product to see that the simulation notices.
LONG_NAMES = ("found_out",)


def is_long(path: str, name: str) -> bool:
    """Whether a test is of the long tier by where it is, below `tests/`, and by its name."""
    return path.startswith(LONG) or (path.startswith("simulation/") and any(part in name for part in LONG_NAMES))


def examples(count: int) -> int:
    """How many examples a property is tried on in this run, of `count` in a complete one."""
    return count if IS_COMPLETE else min(count, EXAMPLES_MAX)
