"""
A mirrored pair of real daemons under traffic in both directions: what is sent arrives once, in order, at the principal.

Nothing is ever sent to a partner that has not claimed to be the principal: every frame that passes to it is counted on
its way. The rules are R6.1 to R6.8 of the routing page.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from examples.demo.topology import wait_for
from tests.support.cable import Cut
from tests.support.mirrored import (
    PLAIN,
    SECONDS,
    STATE_CHANGED,
    Form,
    Mirrored,
    becomes,
    fail_over,
    lines,
    mirrored,
    role,
    say,
    stored,
)
from tests.support.traffic import Traffic

HUBS = {"a gateway": True, "the initiator itself": False}
CUTS = {"a gateway, broken": (True, Cut.BROKEN), "the initiator itself, silent": (False, Cut.SILENT)}
CONVERSATIONS = "SELECT count(*) FROM broker_conversation"


class Open(Protocol):
    """Makes a network, started, and its traffic, not started."""

    def __call__(self, form: Form = ...) -> tuple[Mirrored, Traffic]: ...


@pytest.fixture
def open_(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(form: Form = PLAIN) -> tuple[Mirrored, Traffic]:
            made = stack.enter_context(mirrored(tmp_path, form))
            made.start()
            traffic = made.traffic()
            stack.callback(traffic.close)
            return made, traffic

        yield make


def whole(made: Mirrored, traffic: Traffic) -> None:
    """The ledger adds up, and nothing was sent to who was known not to be the principal."""
    traffic.finish()
    assert [] == traffic.faults()
    for daemon in made.billing:
        assert 0 == made.misled(daemon)
    for daemon in made.net.daemons.values():
        if daemon.is_running:
            assert 0 == daemon.status()["forwarding"]["unaccounted"]


@pytest.mark.parametrize("has_gateway", HUBS.values(), ids=HUBS)
@pytest.mark.promise("R6.7", "R6.8")
def test_failing_over_and_back_under_traffic(open_: Open, *, has_gateway: bool) -> None:
    made, traffic = open_(Form(has_gateway=has_gateway))
    first, second = made.billing
    traffic.start()
    traffic.goes_on()

    there = fail_over(first)
    traffic.goes_on()
    back = fail_over(second)
    traffic.goes_on()

    assert [
        f"database billing handed over: {name} is the principal, epoch {epoch}"
        for name, epoch in (("billing-2", 2), ("billing-1", 3))
    ] == [there, back]
    whole(made, traffic)


@pytest.mark.promise("The principal of a mirrored pair is lost", "R6.3")
def test_a_principal_that_is_killed_or_stopped_is_followed_by_its_partner(open_: Open) -> None:
    made, traffic = open_()
    first, second = made.billing
    traffic.start()
    traffic.goes_on()

    first.kill()
    traffic.goes_on()
    first.start()
    second.stop()
    traffic.goes_on()

    assert ("principal", 3) == role(first)
    whole(made, traffic)


@pytest.mark.parametrize(("has_gateway", "how"), CUTS.values(), ids=CUTS)
@pytest.mark.promise("R6.3")
def test_a_principal_cut_off_from_its_askers_only_is_waited_for(open_: Open, how: Cut, *, has_gateway: bool) -> None:
    """R6.3: its partner sees it, and does not claim; so nothing goes anywhere until the cut ends."""
    made, traffic = open_(Form(has_gateway=has_gateway))
    first, second = made.billing
    traffic.start()
    traffic.goes_on()

    made.cut(first, how)
    made.is_asked(second)
    standing = role(first), role(second), made.dialog_frames_to(second)
    made.mend(first)
    traffic.goes_on()

    assert (("principal", 1), ("mirror", 1), 0) == standing
    assert 0 == made.dialog_frames_to(second)
    whole(made, traffic)


@pytest.mark.promise("R6.3", "routing 36")
def test_both_that_deny_are_asked_on_and_the_first_that_claims_has_what_waits(open_: Open) -> None:
    made, traffic = open_(Form(mirroring="command"))
    first, second = made.billing
    say(first, "principal")
    becomes(first, "principal")
    traffic.start()
    traffic.goes_on()

    say(first, "mirror")
    becomes(first, "mirror")
    wait_for(lambda: made.believed is None, seconds=SECONDS, what="nobody known")
    sent = made.dialog_frames_to(first), made.dialog_frames_to(second)
    made.is_asked(first, second)
    still = made.dialog_frames_to(first), made.dialog_frames_to(second)
    say(second, "principal")
    traffic.goes_on()

    assert sent == still
    whole(made, traffic)


def two_files(made: Mirrored) -> None:
    """Both partners have made theirs, and so has each application a file that it can open; both are mirrors then."""
    for daemon in made.billing:
        say(daemon, "principal 1")
        becomes(daemon, "principal", 1)
        say(daemon, "mirror")
        becomes(daemon, "mirror")


@pytest.mark.promise("Two instances claim one database", "R6.4")
def test_a_stale_copy_that_claims_gets_nothing_even_while_it_is_alone(open_: Open) -> None:
    """R6.4: the lower epoch is never believed once the higher one is known."""
    made, traffic = open_(Form(mirroring="command", is_one_file=False))
    first, second = made.billing
    two_files(made)
    say(first, "principal 7")
    becomes(first, "principal", 7)
    traffic.start()
    traffic.goes_on()

    say(second, "principal 3")
    becomes(second, "principal", 3)
    traffic.goes_on()
    made.cut(first, Cut.BROKEN)
    made.is_asked(second)
    alarm = lines(made.asker, STATE_CHANGED)[-1]["alarm"]
    made.mend(first)
    traffic.goes_on()

    assert "with epoch 3 after epoch 7: a stale copy" in alarm
    assert 0 == made.dialog_frames_to(second)
    assert 0 == stored(made.path("billing", second), CONVERSATIONS)
    whole(made, traffic)


@pytest.mark.promise("Two instances claim one database", "R6.4")
def test_the_higher_epoch_has_everything_from_the_moment_it_claims(open_: Open) -> None:
    """R6.4: the other one goes on claiming, and gets nothing more."""
    made, traffic = open_(Form(mirroring="command", is_one_file=False))
    first, second = made.billing
    two_files(made)
    say(first, "principal 3")
    becomes(first, "principal", 3)
    traffic.start()
    traffic.goes_on()
    whole(made, traffic)
    before = made.dialog_frames_to(first), stored(made.path("billing", first), CONVERSATIONS)

    say(second, "principal 7")
    wait_for(lambda: made.believed == made.cables[second.name][0].address, seconds=SECONDS, what="the second believed")
    with made.traffic() as later:
        later.start()
        later.goes_on()
        later.finish()

    assert [] == later.faults()
    assert {made.path("billing", first): 0, made.path("billing", second): 4} == {
        path: len(heard) for path, heard in later.requests.items()
    }
    assert ("principal", 3) == role(first)
    assert before == (made.dialog_frames_to(first), stored(made.path("billing", first), CONVERSATIONS))


@pytest.mark.promise("R6.8")
def test_acknowledgements_and_replies_follow_a_mirrored_initiator(open_: Open) -> None:
    """Both ends are pairs, and each principal fails over while the other goes on."""
    made, traffic = open_(Form(mirrored=("orders", "billing")))
    first, second = made.partners["orders"]
    traffic.start()
    traffic.goes_on()

    fail_over(first, "orders")
    traffic.goes_on()
    made.billing[0].kill()
    traffic.goes_on()
    second.kill()
    traffic.goes_on()

    assert ("principal", 3) == role(first, "orders")
    assert ("principal", 2) == role(made.billing[1])
    whole(made, traffic)
