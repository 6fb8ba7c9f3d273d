"""The outcomes of a frame: their words and numbers are a contract with metrics, views and documentation."""

import re

import pytest

from broker.flow import NUMBER, Disposition


def test_the_words_are_fit_for_a_label_and_a_table() -> None:
    words = [str(disposition) for disposition in Disposition]

    assert [] == [word for word in words if not re.fullmatch(r"[a-z]+( [a-z]+)*", word)]


@pytest.mark.parametrize("disposition", [Disposition.FORWARDED, Disposition.DELIVERED])
def test_what_arrives_has_no_number(disposition: Disposition) -> None:
    assert 0 == disposition.number


def test_every_drop_has_a_number_of_its_own() -> None:
    dropped = set(Disposition) - {Disposition.FORWARDED, Disposition.DELIVERED}

    assert dropped == set(NUMBER)
    assert len(NUMBER) == len(set(NUMBER.values()))


@pytest.mark.parametrize(
    ("disposition", "word", "number"),
    [
        (Disposition.HOPS_EXHAUSTED, "hops exhausted", 11285),
        (Disposition.LIFETIME_EXCEEDED, "lifetime exceeded", 11291),
        (Disposition.EXPIRED_HERE, "expired here", 11290),
        (Disposition.NOT_PERMITTED, "not permitted", 11215),
        (Disposition.NO_ROUTE, "no route", 9798),
        (Disposition.FORWARDING_DISABLED, "forwarding disabled", 9792),
        (Disposition.SERVICE_NOT_HERE, "service not here", 9796),
        (Disposition.INSTANCE_NOT_HERE, "instance not here", 9795),
        (Disposition.ALREADY_HELD, "already held", 11288),
        (Disposition.POOL_LIMIT, "pool limit exceeded", 11289),
        (Disposition.DUPLICATE, "duplicate", 11218),
    ],
)
def test_words_and_numbers_that_others_hold_on_to(disposition: Disposition, word: str, number: int) -> None:
    assert (word, number) == (str(disposition), disposition.number)
