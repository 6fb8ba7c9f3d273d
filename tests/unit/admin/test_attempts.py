from __future__ import annotations

from broker.admin.attempts import ADDRESSES_MAX, BURST, REFILL_SECONDS, Attempts


def _failed(attempts: Attempts, address: str, times: int, *, now: float = 0.0) -> None:
    for _ in range(times):
        attempts.fail(address, now=now)


def test_the_first_failures_are_free() -> None:
    attempts = Attempts()
    _failed(attempts, "192.0.2.1", BURST - 1)

    waits = attempts.wait_s("192.0.2.1", now=0.0)

    assert 0.0 == waits


def test_after_a_burst_an_address_waits_until_one_more_is_free() -> None:
    attempts = Attempts()
    _failed(attempts, "192.0.2.1", BURST)

    waits = [attempts.wait_s("192.0.2.1", now=now) for now in (0.0, REFILL_SECONDS / 2, REFILL_SECONDS)]

    assert [REFILL_SECONDS, REFILL_SECONDS / 2, 0.0] == waits


def test_other_addresses_do_not_wait() -> None:
    attempts = Attempts()
    _failed(attempts, "192.0.2.1", BURST)

    assert 0.0 == attempts.wait_s("192.0.2.2", now=0.0)


def test_an_hour_later_the_burst_is_free_again_and_no_more() -> None:
    attempts = Attempts()
    _failed(attempts, "192.0.2.1", 3 * BURST)

    _failed(attempts, "192.0.2.1", BURST - 1, now=3600.0)
    before = attempts.wait_s("192.0.2.1", now=3600.0)
    _failed(attempts, "192.0.2.1", 1, now=3600.0)

    assert (0.0, REFILL_SECONDS) == (before, attempts.wait_s("192.0.2.1", now=3600.0))


def test_the_addresses_of_one_network_of_version_6_are_one() -> None:
    """Else one machine would have 2**64 attempts."""
    attempts = Attempts()
    for number in range(BURST):
        attempts.fail(f"2001:db8::{number + 1:x}", now=0.0)

    waits = [attempts.wait_s(address, now=0.0) for address in ("2001:db8::ffff", "2001:db8:0:1::1")]

    assert [REFILL_SECONDS, 0.0] == waits


def test_the_table_is_bounded_and_forgets_who_failed_the_longest_ago() -> None:
    attempts = Attempts()
    _failed(attempts, "user 1000", BURST)
    _failed(attempts, "user 1001", BURST, now=1.0)

    for number in range(ADDRESSES_MAX - 1):
        attempts.fail(f"10.0.{number // 256}.{number % 256}", now=2.0)

    assert ADDRESSES_MAX == len(attempts)
    assert (0.0, True) == (attempts.wait_s("user 1000", now=2.0), attempts.wait_s("user 1001", now=2.0) > 0)
