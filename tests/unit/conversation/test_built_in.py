"""What every database has without any statement."""

from __future__ import annotations

from broker.conversation.message_types import (
    CONTRACT_NAMES,
    CONTRACTS,
    DEFAULT,
    DIALOG_TIMER,
    END_DIALOG,
    ERROR,
    MESSAGE_TYPE_NAMES,
    MESSAGE_TYPES,
    SentBy,
)
from broker.dialog.inquiry import CONTRACT, MISSING_BINDING, MISSING_ROUTE
from broker.store.metadata import DEFAULT_TYPE_ID, FIRST_ID


def test_types_and_contracts_of_the_broker_itself_are_there() -> None:
    assert {DEFAULT, END_DIALOG, ERROR, DIALOG_TIMER, MISSING_ROUTE, MISSING_BINDING} == MESSAGE_TYPE_NAMES
    assert {DEFAULT, CONTRACT} == CONTRACT_NAMES


def test_numbers_are_below_those_that_statements_make_and_differ() -> None:
    types = {one.message_type_id: one.name for one in MESSAGE_TYPES}
    contracts = {one.service_contract_id for one in CONTRACTS}

    assert (len(MESSAGE_TYPES), len(CONTRACTS)) == (len(types), len(contracts))
    assert max(*types, *contracts) < FIRST_ID
    assert types[DEFAULT_TYPE_ID] == DEFAULT


def test_contract_default_lets_both_sides_send_the_type_default() -> None:
    default = next(one for one in CONTRACTS if one.name == DEFAULT)

    assert {DEFAULT_TYPE_ID: SentBy.ANY} == default.message_types
