"""A kernel for each profile: what one of them learnt is no other's, and all together are bounded and counted."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from broker.errors import SettingError
from broker.flow import Disposition
from broker.forwarding import kernels as kernel_choice
from broker.forwarding import kernels as module
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.kernel import Kernel
from broker.forwarding.kernels import KERNELS, KERNELS_MAX, Kernels, choose_kernel
from broker.forwarding.slow_path import SlowPath
from broker.security.grants import OPEN, Grants, Permission, PermissionRule, PermissionState, Profile
from broker.security.principal import parse_principal, who_is
from tests.support.kernel import Walker

# --- kernel choice ---
# Which kernel walks, and that the compiled one is there wherever it can be built.


HEADER = Path(sysconfig.get_path("include"), "Python.h")
COMPILER = shutil.which((os.environ.get("CC") or "cc").split()[0])


@pytest.mark.skipif(COMPILER is None or not HEADER.exists(), reason="no C compiler, or no headers of this Python")
def test_compiled_kernel_is_there_where_a_compiler_is() -> None:
    assert "compiled" in KERNELS, "run `make clean setup`, and look at what the compiler says"


def test_without_the_compiled_kernel_its_twin_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "broker.forwarding.compiled_kernel", None)

    module = runpy.run_path(kernel_choice.__file__)

    assert {"python": Kernel} == module["KERNELS"]
    assert Kernel is module["choose_kernel"]()


@pytest.mark.parametrize("name", list(KERNELS))
def test_each_kernel_can_be_forced(name: str) -> None:
    assert (KERNELS[name], name) == (choose_kernel(name), choose_kernel(name).name)


def test_kernel_that_was_not_built_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "KERNELS", {"python": Kernel})

    assert choose_kernel() is Kernel
    with pytest.raises(SettingError) as caught:
        choose_kernel("compiled")
    assert str(caught.value) == (
        "BROKER_KERNEL: the compiled kernel was not built for this Python; "
        "install with a C compiler at hand (make setup), or leave the variable out"
    )


def test_word_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"BROKER_KERNEL: 'Python' is not a kernel; say compiled or python, or nothing"
    ):
        choose_kernel("Python")


MakeFrame = Callable[..., bytes]


@pytest.fixture(params=list(KERNELS.values()), ids=list(KERNELS))
def walker(request: pytest.FixtureRequest) -> Walker:
    return Walker(make=request.param)


def made(walker: Walker, kind: type[SlowPath]) -> Kernels:
    make = partial(kind, max_frame=65536, max_hops=16, drop_way=walker.way)
    return Kernels(lambda resolve: make(resolve=resolve), walker._resolve, walker.way)


@pytest.fixture
def kernels(walker: Walker) -> Kernels:
    return made(walker, type(walker.kernel))


def profile(*services: str, name: str = "CN=a") -> Profile:
    rules = [
        PermissionRule(Permission.SEND, service, parse_principal(name), PermissionState.GRANT) for service in services
    ]
    return Grants(rules, is_default_deny=True).profile(who_is(name))


def walk(kernels: Kernels, one: Profile, *frames: bytes) -> list[ForwardingEntry]:
    """The ways of frames that somebody with this profile brings."""
    slab = bytearray(b"".join(frames))
    kernel = kernels.of(one)
    for sink in kernel.walk(slab, len(slab)).touched:
        sink.runs.clear()
    return [kernel.entry_of(frame) for frame in frames]


def dispositions(ways: list[ForwardingEntry]) -> list[Disposition]:
    return [way.disposition for way in ways]


def test_permission_is_asked_before_the_route_and_what_is_denied_is_remembered(
    walker: Walker, kernels: Kernels, make_frame: MakeFrame
) -> None:
    frames = [make_frame(to_service="A"), make_frame(to_service="B"), make_frame(to_service="B")]

    ways = walk(kernels, profile("A"), *frames)

    assert [Disposition.FORWARDED, Disposition.NOT_PERMITTED, Disposition.NOT_PERMITTED] == dispositions(ways)
    assert [b"A"] == [key[18:] for key, *_ in walker.asked]


def test_what_one_profile_may_is_not_what_another_may(walker: Walker, kernels: Kernels, make_frame: MakeFrame) -> None:
    frame = make_frame(to_service="A")
    some, none = profile("A"), profile()

    for _ in range(2):
        told = [dispositions(walk(kernels, one, frame)) for one in (some, none, OPEN)]
        assert [[Disposition.FORWARDED], [Disposition.NOT_PERMITTED], [Disposition.FORWARDED]] == told

    assert len(walker.asked) == 2  # once for each that may


def test_frames_of_all_profiles_are_counted_on_the_ways(
    walker: Walker, kernels: Kernels, make_frame: MakeFrame
) -> None:
    frames = [make_frame(to_service=service) for service in "AB" for _ in range(3)]

    for one in (profile("A"), profile("B"), OPEN):
        walk(kernels, one, *frames)
    kernels.tally()

    assert {Disposition.FORWARDED: 12, Disposition.NOT_PERMITTED: 6} == by_disposition(walker)


def by_disposition(walker: Walker) -> dict[Disposition, int]:
    totals: dict[Disposition, int] = {}
    for way in walker.ways.values():
        totals[way.disposition] = totals.get(way.disposition, 0) + way.frames
    return totals


def test_when_there_are_too_many_the_oldest_goes_and_what_it_counted_stays(
    walker: Walker, kernels: Kernels, make_frame: MakeFrame
) -> None:
    profiles = [profile("A", name=f"CN={n}") for n in range(KERNELS_MAX + 3)]

    for one in profiles:
        walk(kernels, one, make_frame(to_service="A"))
    walk(kernels, profiles[0], make_frame(to_service="A"))
    kernels.tally()

    assert len(kernels._by_profile) == KERNELS_MAX
    assert OPEN in kernels._by_profile
    assert {Disposition.FORWARDED: KERNELS_MAX + 4} == by_disposition(walker)


def test_all_together_remember_no_more_than_one_may(
    walker: Walker, kernels: Kernels, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX_BYTES", 0)
    may, may_not = profile("A", "B"), profile()

    for _ in range(2):
        walk(kernels, may, make_frame(to_service="A"))
        walk(kernels, may_not, make_frame(to_service="A"))

    assert [b"A"] * 2 == [key[18:] for key, *_ in walker.asked]


def test_what_is_forgotten_is_asked_again(walker: Walker, kernels: Kernels, make_frame: MakeFrame) -> None:
    one = profile("A")
    walk(kernels, one, make_frame(to_service="A"))

    kernels.forget()
    walk(kernels, one, make_frame(to_service="A"))

    assert len(walker.asked) == 2


def test_what_holds_for_one_frame_only_is_asked_for_every_time(
    walker: Walker, kernels: Kernels, make_frame: MakeFrame
) -> None:
    frame = make_frame(to_service="A")
    walker.ways["A", frame[4]] = walker.way(Disposition.ASKING_FOR_ROUTE, frame[4])

    walk(kernels, OPEN, frame)

    assert len(walker.asked) == 2


def test_they_are_made_anew_and_what_they_counted_is_told(
    walker: Walker, kernels: Kernels, make_frame: MakeFrame
) -> None:
    """Nothing that one of them knows by heart, such as the bound on hops, survives."""
    frame = make_frame(to_service="A")
    [way] = walk(kernels, profile("A"), frame)
    before = kernels.of(OPEN)

    kernels.remake()

    assert (1, True) == (way.frames, kernels.of(OPEN) is not before)
    walk(kernels, profile("A"), frame)
    assert 2 == len(walker.asked)


def test_name_that_is_no_text_is_left_to_whoever_calls_it_malformed() -> None:
    assert module._is_permitted(profile("A"), bytes(16) + b"\0\2\xff\xfe")
    assert not module._is_permitted(profile("A"), bytes(16) + b"\0\1B")


def test_every_profile_that_is_open_takes_the_same(kernels: Kernels) -> None:
    assert kernels.of(Profile(frozenset(), is_open=True)) is kernels.of(OPEN)
    assert kernels.name == kernels.of(OPEN).name
