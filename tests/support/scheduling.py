"""How tests are given to workers: by their files, and so that a worker that dies holds up nobody."""

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK = "tests/spark/"


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """
    As pytest-xdist has it, but for the directory whose tests share a JVM, and for what a dead worker had finished.

    Those files would be handed out once more: whoever gets one has nothing to run and so never asks for more, and when
    all have one the run stands still for good (seen with pytest-xdist 3.8).
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return what the tests of one worker have in common: their file, or the directory that shares a JVM."""
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker. Returns: the test that it was at when it died; None when it had nothing to do any more."""
        work = self.assigned_work[node]
        for file in [name for name, tests in work.items() if all(tests.values())]:
            del work[file]
        at: str | None = super().remove_node(node)
        return at
