"""
One kernel for each profile of permissions, so that a permission costs a frame nothing.

What a kernel remembers of a route key was permitted to those of its profile, or is the way of a drop; links of the same
profile share one. The permission is asked on a miss, before the route. All kernels together remember no more than one
may, and there are never more than `KERNELS_MAX`: past it the oldest goes, and is made anew when somebody needs it.
Loop-only.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import SettingError
from broker.flow import Disposition
from broker.forwarding.columns import ColumnDecoder, PlainDecoder
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.kernel import Kernel
from broker.forwarding.slow_path import REMEMBERED_MAX_BYTES, REMEMBERED_OVERHEAD, DropWay, Resolve, SlowPath
from broker.protocol.layout import HEADER_BYTES, ROUTE_KEY_AT
from broker.security.grants import OPEN, Profile

# --- kernel_choice ---
# Which kernel walks: the compiled one where it was built, else its twin in plain Python.
#
# Both do the same (tests/property/test_kernels.py); which one runs is in `broker status`. Chosen once, when an
# instance
# starts. `BROKER_KERNEL=python` or `BROKER_KERNEL=compiled` forces one.


try:
    from broker.forwarding.compiled_kernel import CompiledKernel
except ImportError:
    KERNELS: dict[str, type[SlowPath]] = {Kernel.name: Kernel}
else:
    KERNELS = {CompiledKernel.name: CompiledKernel, Kernel.name: Kernel}

KERNEL_VARIABLE = "BROKER_KERNEL"
_NAMES = ("compiled", "python")


def choose_kernel(forced: str = "") -> type[SlowPath]:
    """
    The kernel of this name; when it is empty, the fastest there is.

    Raises:
        SettingError: there is no such kernel, or it was not built here.
    """
    if not forced:
        return next(iter(KERNELS.values()))
    if forced not in _NAMES:
        raise SettingError(KERNEL_VARIABLE, f"'{forced}' is no kernel", hint="say compiled or python, or nothing")
    if forced not in KERNELS:
        hint = "install with a C compiler at hand (make setup), or leave the variable out"
        raise SettingError(KERNEL_VARIABLE, "the compiled kernel was not built for this Python", hint=hint)
    return KERNELS[forced]


KERNELS_MAX = 256  # a few KiB each; what all of them remember is bounded together

_NAME_AT = HEADER_BYTES - ROUTE_KEY_AT


class Kernels:
    """
    Args:
        make: A kernel that resolves so.
        resolve: Whatever is permitted.
        drop_way: The way of a drop.
    """

    def __init__(self, make: Callable[[Resolve], SlowPath], resolve: Resolve, drop_way: DropWay) -> None:
        self._make = make
        self._resolve = resolve
        self._drop_way = drop_way
        self._remembered_bytes = 0
        self._by_profile: dict[Profile, SlowPath] = {OPEN: make(self._counted)}

    @property
    def name(self) -> str:
        """Which kind walks: `compiled` or `python`."""
        return self._by_profile[OPEN].name

    def of(self, profile: Profile) -> SlowPath:
        """The kernel of a profile. Cost: one look-up, each read."""
        return self._by_profile.get(profile) or self._add(profile)

    def tally(self) -> None:
        """Bring `frames` of every way up to date; whoever reads them calls it first."""
        for kernel in self._by_profile.values():
            kernel.tally()

    def forget(self) -> None:
        """Drop every remembered way; may be called in the middle of a walk."""
        for kernel in self._by_profile.values():
            kernel.forget()
        self._remembered_bytes = 0

    def remake(self) -> None:
        """Make all of them anew, as what makes them does it now; what they counted is told. Never in a walk."""
        self.tally()
        self.forget()
        self._by_profile = {OPEN: self._make(self._counted)}

    def _add(self, profile: Profile) -> SlowPath:
        if profile.is_open:
            return self._by_profile[OPEN]
        if len(self._by_profile) >= KERNELS_MAX:
            oldest = next(one for one in self._by_profile if one is not OPEN)
            self._by_profile.pop(oldest).forget()

        def resolve(
            key: bytes,
            conversation: bytes,
            kind: int,
            is_from_target: bool,  # noqa: FBT001 - as `Resolve`
        ) -> tuple[ForwardingEntry, bool | None]:
            if _is_permitted(profile, key):
                return self._counted(key, conversation, kind, is_from_target)
            self._count(key)
            return self._drop_way(Disposition.NOT_PERMITTED, kind), False

        kernel = self._by_profile[profile] = self._make(resolve)
        return kernel

    def _counted(
        self,
        key: bytes,
        conversation: bytes,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - as `Resolve`
    ) -> tuple[ForwardingEntry, bool | None]:
        found = self._resolve(key, conversation, kind, is_from_target)
        if found[1] is not None:
            self._count(key)
        return found

    def _count(self, key: bytes) -> None:
        """One more way is about to be remembered."""
        if self._remembered_bytes > REMEMBERED_MAX_BYTES:
            self.forget()
        self._remembered_bytes += len(key) + REMEMBERED_OVERHEAD


def _is_permitted(profile: Profile, key: bytes) -> bool:
    """Whether messages with this route key may come; one that names no service is malformed, which comes first."""
    try:
        return profile.permits(key[_NAME_AT:].decode())
    except UnicodeDecodeError:
        return True


# --- decoder_choice ---
# Which decoder makes columns of records: the compiled one where it was built, else its twin in plain Python.
#
# Both do the same (tests/property/test_decoders.py). Whoever forces the kernel in plain Python forces this one as
# well.


try:
    from broker.forwarding.compiled_columns import CompiledDecoder
except ImportError:
    DECODERS: dict[str, type[ColumnDecoder]] = {PlainDecoder.name: PlainDecoder}
else:
    DECODERS = {CompiledDecoder.name: CompiledDecoder, PlainDecoder.name: PlainDecoder}


def make_decoder(forced: str = "") -> ColumnDecoder:
    """The decoder of this name; when it is empty or there is none of it, the fastest there is."""
    return DECODERS.get(forced, next(iter(DECODERS.values())))()
