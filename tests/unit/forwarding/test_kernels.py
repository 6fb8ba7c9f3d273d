"""A kernel for each profile: what one of them learnt is no other's, and all together are bounded and counted."""

import os
import runpy
import shutil
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from broker.errors import SettingError
from broker.flow import Disposition
from broker.forwarding import kernels as module
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.kernel import Kernel
from broker.forwarding.kernels import KERNELS, KERNELS_MAX, Kernels, choose_kernel
from broker.forwarding.slow_path import SlowPath
from broker.security.grants import OPEN, Grants, Permission, PermissionRule, PermissionState, Profile
from broker.security.principal import parse_principal, who_is
from tests.support.forwarding import make_frame
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

    found = runpy.run_path(module.__file__)

    assert {"python": Kernel} == found["KERNELS"]
    assert Kernel is found["choose_kernel"]()


@pytest.mark.parametrize("name", list(KERNELS))
def test_each_kernel_can_be_forced(name: str) -> None:
    assert (KERNELS[name], name) == (choose_kernel(name), choose_kernel(name).name)


def test_kernel_that_was_not_built_or_is_none_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KERNELS", {"python": Kernel})

    assert choose_kernel() is Kernel
    with pytest.raises(SettingError, match="was not built for this Python; install with a C compiler at hand"):
        choose_kernel("compiled")
    with pytest.raises(SettingError, match=r"BROKER_KERNEL: 'Python' is not a kernel; say compiled or python"):
        choose_kernel("Python")


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


def test_permission_is_asked_before_the_route_and_what_is_denied_is_remembered(
    walker: Walker, kernels: Kernels
) -> None:
    frames = [make_frame(to_service="A"), make_frame(to_service="B"), make_frame(to_service="B")]

    ways = walk(kernels, profile("A"), *frames)

    told = [Disposition.FORWARDED, Disposition.NOT_PERMITTED, Disposition.NOT_PERMITTED]
    assert told == [way.disposition for way in ways]
    assert [b"A"] == [key[18:] for key, *_ in walker.asked]


def test_what_one_profile_may_is_not_what_another_may(walker: Walker, kernels: Kernels) -> None:
    frame = make_frame(to_service="A")
    expected = {profile("A"): Disposition.FORWARDED, profile(): Disposition.NOT_PERMITTED, OPEN: Disposition.FORWARDED}

    for _ in range(2):
        assert expected == {one: walk(kernels, one, frame)[0].disposition for one in expected}

    assert len(walker.asked) == 2  # once for each that may


def test_when_there_are_too_many_the_oldest_goes_and_what_it_counted_stays(walker: Walker, kernels: Kernels) -> None:
    profiles = [profile("A", name=f"CN={n}") for n in range(KERNELS_MAX + 3)]

    for one in (*profiles, profiles[0]):
        walk(kernels, one, make_frame(to_service="A"), make_frame(to_service="B"))
    kernels.tally()

    assert (KERNELS_MAX, True) == (len(kernels._by_profile), OPEN in kernels._by_profile)
    counts = {way.disposition: way.frames for way in walker.ways.values()}
    assert {Disposition.FORWARDED: KERNELS_MAX + 4, Disposition.NOT_PERMITTED: KERNELS_MAX + 4} == counts


def test_all_together_remember_no_more_than_one_may(
    walker: Walker, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MAX_BYTES", 0)
    may, may_not = profile("A", "B"), profile()

    for _ in range(2):
        walk(kernels, may, make_frame(to_service="A"))
        walk(kernels, may_not, make_frame(to_service="A"))

    assert [b"A"] * 2 == [key[18:] for key, *_ in walker.asked]


def test_they_are_made_anew_and_what_they_counted_is_told(walker: Walker, kernels: Kernels) -> None:
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
