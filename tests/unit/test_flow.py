"""The outcomes of a frame: their words and numbers are a contract with metrics, views and documentation."""

import re

from broker.flow import NUMBER, Disposition


def test_every_drop_has_its_own_number_and_a_word_fit_for_a_label() -> None:
    arrived = {Disposition.FORWARDED, Disposition.DELIVERED}

    assert {0} == {disposition.number for disposition in arrived}
    assert set(Disposition) - arrived == set(NUMBER)
    assert len(NUMBER) == len(set(NUMBER.values()))
    assert [] == [str(one) for one in Disposition if not re.fullmatch(r"[a-z]+( [a-z]+)*", str(one))]
