"""What the journal says of a plan: the history of one instance, put to its routes as they are and as they would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import NoJournalError, PipelineUnavailableError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.planned_place import ReadPlace
    from broker.pipeline.inventory import Inventory


def history_of(before: ReadPlace, after: ReadPlace, flows: Sequence[Path]) -> dict[str, Any]:
    """
    What would have become of the history of an instance.

    Args:
        before: The instance as it is.
        after: As it would be.
        flows: Directories of journals; those of other instances in them are passed over.

    Returns:
        As `broker.pipeline.plan.summary` tells it, with `files`: what there is to say about them, in sentences.

    Raises:
        NoJournalError: there is nothing of this instance.
        PipelineError: Spark gave up.
        PipelineUnavailableError: Spark is not there, or does not start.
    """
    try:
        from broker.pipeline import entry, inventory, session  # noqa: PLC0415
        from broker.pipeline.plan.answer import answer_of_keys  # noqa: PLC0415
        from broker.pipeline.plan.key import route_keys  # noqa: PLC0415
        from broker.pipeline.plan.site import Change  # noqa: PLC0415
        from broker.pipeline.plan.summary import summarize  # noqa: PLC0415
    except ModuleNotFoundError as error:
        hint = "install the package with its extra: pip install 'broker[pipeline]'"
        raise PipelineUnavailableError(f"the module {error.name} is missing", hint) from None
    name = before.site.name
    found = _of_instance(inventory.take(flows), name)
    if not found.readable:
        raise NoJournalError(", ".join(map(str, flows)), f"no file of the instance {name!r} that can be read")
    request = entry.Request((), tuple(flows), Path(), session=session.SessionOptions(name="broker routes plan"))
    with entry.started(request) as spark:
        visits = inventory.read(spark, (state.path for state in found.readable))
        change = Change({name: before.site}, {name: after.site}, before.names)
        told = summarize(answer_of_keys(route_keys(visits), change), before.names)
    found.look_again()
    return {"files": inventory.told(found.summary())} | told


def _of_instance(found: Inventory, name: str) -> Inventory:
    """Files that say whose they are not: damaged ones stay, for what may be lost with them is told."""
    from broker.pipeline.inventory import Inventory  # noqa: PLC0415

    return Inventory([state for state in found.states if state.instance in {name, ""}])
