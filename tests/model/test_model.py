"""The formal models hold in every state that their bounds let them reach, and fail when a fault is put into them."""

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from broker.conversation.state import ConversationState
from broker.routing.mirrored import TRANSITIONS
from tests.model.spin import MODELS, check, needs_spin
from tools.pages.site import standing_pml

DIALOG, MIRROR, COMMAND = "dialog.pml", "mirror.pml", "command.pml"


@needs_spin
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("model", "claim", "bounds"),
    [
        (DIALOG, "", {}),
        (DIALOG, "", {"IS_ENDING_EARLY": 1}),
        (DIALOG, "both_close", {}),
        (DIALOG, "both_close", {"MESSAGES": 1, "IS_ENDING_EARLY": 1}),
        (DIALOG, "replies_are_heard", {}),
        (MIRROR, "", {}),
        (MIRROR, "all_arrives", {}),
        (COMMAND, "", {}),
        (COMMAND, "", {"IS_STOPPED_IN_COMMIT": 2, "SLOW": 2}),
        (COMMAND, "", {"FAILOVERS": 2, "SLOW": 0}),
        (COMMAND, "all_arrives", {"SLOW": 0}),
    ],
    ids=str,
)
@pytest.mark.promise(7, "The principal of a mirrored pair is lost")
def test_what_is_promised_holds_in_every_state(tmp_path: Path, model: str, claim: str, bounds: dict[str, int]) -> None:
    assert [] == check(tmp_path, model, claim=claim, **bounds)


@needs_spin
@pytest.mark.parametrize(
    ("model", "claim", "fault", "error"),
    [
        (DIALOG, "both_close", 1, "acceptance cycle"),
        (DIALOG, "", 2, "assertion violated"),
        (DIALOG, "", 3, "assertion violated"),
        (DIALOG, "", 4, "assertion violated"),
        (DIALOG, "", 5, "assertion violated (made==1)"),
        (MIRROR, "", 1, "assertion violated ((file_owner==me)"),
        (MIRROR, "all_arrives", 2, "acceptance cycle"),
        (MIRROR, "", 3, "assertion violated (number<=stored)"),
        (COMMAND, "all_arrives", 8, "acceptance cycle"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, model: str, claim: str, fault: int, error: str) -> None:
    small: dict[str, Any] = {"MESSAGES": 1} if claim else {}
    small |= {"SLOW": 0} if model == COMMAND else {}

    errors = check(tmp_path, model, claim=claim, FAULT=fault, **small)

    assert [True] == [one.startswith(error) for one in errors], errors


@needs_spin
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"FAULT": 1}, "assertion violated ((last==me)"),
        ({"FAULT": 2, "IS_STOPPED_IN_COMMIT": 2}, "assertion violated (found<=file[last].stored)"),
        ({"FAULT": 3}, "assertion violated ((last==me)"),
        ({"FAULT": 4}, "assertion violated ((last==me)"),
        ({"FAULT": 5}, "assertion violated (found<=file[last].stored)"),
        ({"FAULT": 6}, "assertion violated (file[me].rows==file[me].stored)"),
        ({"FAULT": 7}, "assertion violated ( !((role[me]"),
        ({"IS_STOPPED_IN_COMMIT": 1}, "assertion violated ((last==me)"),
        ({"DISORDER": 1}, "assertion violated"),
        ({"DISORDER": 2}, "assertion violated"),
        ({"DISORDER": 3}, "assertion violated"),
        ({"DISORDER": 4}, "assertion violated"),
    ],
    ids=str,
)
def test_a_fault_of_a_pair_with_two_files_is_found(tmp_path: Path, wrong: dict[str, Any], error: str) -> None:
    """A fault of the product, one of whoever decides and copies, and a stop within COMMIT, which nobody can see."""
    errors = check(tmp_path, COMMAND, **wrong)

    assert [True] == [one.startswith(error) for one in errors], errors


def test_the_table_in_the_model_is_the_one_that_runs() -> None:
    assert standing_pml() == (MODELS / "standing.pml").read_text(encoding="utf-8")
    assert len(TRANSITIONS) == 7 * 10


def test_the_states_in_the_model_are_those_of_a_conversation() -> None:
    line = re.search(r"mtype = \{ (.*) \};", (MODELS / DIALOG).read_text(encoding="utf-8"))

    assert line is not None
    assert {"ABSENT", *(state.value for state in ConversationState)} - {"ER"} == set(line[1].split(", "))


@pytest.mark.parametrize("model", [DIALOG, MIRROR, COMMAND])
def test_every_name_beside_the_model_is_in_the_code(model: str) -> None:
    text = (MODELS / model).read_text(encoding="utf-8")
    names = set(re.findall(r"\bbroker(?:\.\w+)+", text[: text.index("*/")]))

    assert len(names) > 4
    for name in names:
        resolve_name(name)
