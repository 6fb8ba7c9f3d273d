"""The words for how far a link is, which views show."""

from broker.net.link import LinkState


def test_states_are_told_in_the_order_in_which_a_link_goes_through_them() -> None:
    assert ["CONNECTED", "LOGGED_IN", "DRAINING", "LINGERING", "CLOSED"] == [str(state) for state in LinkState]
