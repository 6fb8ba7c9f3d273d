"""How tests are given to workers: by their groups, and so that a worker that dies holds up nobody."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Scheduling(LoadGroupScheduling):  # type: ignore[misc]
    """
    As pytest-xdist has it, but for the groups that a dead worker had finished.

    Those would be handed out once more: whoever gets one has nothing to run and so never asks for more, and when all
    have one the run stands still for good (seen with pytest-xdist 3.8).
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker. Returns: the test that it was at when it died; None when it had nothing to do any more."""
        work = self.assigned_work[node]
        for group in [name for name, tests in work.items() if all(tests.values())]:
            del work[group]
        at: str | None = super().remove_node(node)
        return at
