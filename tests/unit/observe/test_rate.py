from __future__ import annotations

from broker.observe.stream import Rates


def test_the_first_look_knows_no_rate() -> None:
    rates = Rates()

    assert ({"a": None}, 0.0) == (rates.look({"a": 5}, 100.0), rates.seconds)


def test_a_rate_is_what_a_counter_grew_by_a_second() -> None:
    rates = Rates()
    rates.look({"a": 5, "b": 0}, 100.0)

    assert {"a": 10.0, "b": 0.0} == rates.look({"a": 25, "b": 0}, 102.0)
    assert 2.0 == rates.seconds


def test_a_new_counter_grew_from_nothing() -> None:
    rates = Rates()
    rates.look({}, 100.0)

    assert {"a": 3.0} == rates.look({"a": 3}, 101.0)


def test_a_counter_that_began_anew_has_grown_by_all_of_it() -> None:
    rates = Rates()
    rates.look({"a": 1000}, 100.0)

    assert {"a": 7.0} == rates.look({"a": 7}, 101.0)


def test_two_looks_at_one_instant_know_no_rate() -> None:
    rates = Rates()
    rates.look({"a": 1}, 100.0)

    assert ({"a": None}, 0.0) == (rates.look({"a": 2}, 100.0), rates.seconds)


def test_what_the_caller_does_with_its_counters_later_is_not_seen() -> None:
    rates, counters = Rates(), {"a": 1.0}
    rates.look(counters, 100.0)  # type: ignore[arg-type]  # str is hashable
    counters["a"] = 50.0

    assert {"a": 1.0} == rates.look({"a": 2}, 101.0)
