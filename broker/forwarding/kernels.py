"""
Which kernel and which decoder are used, and one kernel for each profile of permissions.

The compiled kernel is used where it was built, otherwise its twin in plain Python; `BROKER_KERNEL=compiled` or
`=python` forces one when an instance starts, and `broker status` shows which. Both do the same
(tests/property/test_kernels.py). The same holds for the decoder of the ring's records
(tests/property/test_decoders.py).

A permission costs a frame nothing: a kernel has cached entries only of sends that its profile permits, or of drops, and
links of one profile share a kernel. The permission is checked on a miss, before the route. All kernels together cache
at most as much as one may, and there are at most `KERNELS_MAX`: at the bound the oldest is dropped, and made again when
it is needed. Loop-only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial

from broker.errors import SettingError
from broker.flow import Disposition
from broker.forwarding.columns import ColumnDecoder, PlainDecoder
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.kernel import Kernel
from broker.forwarding.slow_path import DropWay, Resolve, SlowPath
from broker.protocol.layout import HEADER_BYTES, ROUTE_KEY_AT
from broker.security.grants import OPEN, Profile

try:
    from broker.forwarding.compiled_kernel import CompiledKernel
except ImportError:
    KERNELS: dict[str, type[SlowPath]] = {Kernel.name: Kernel}
else:
    KERNELS = {CompiledKernel.name: CompiledKernel, Kernel.name: Kernel}

try:
    from broker.forwarding.compiled_columns import CompiledDecoder
except ImportError:
    DECODERS: dict[str, type[ColumnDecoder]] = {PlainDecoder.name: PlainDecoder}
else:
    DECODERS = {CompiledDecoder.name: CompiledDecoder, PlainDecoder.name: PlainDecoder}

KERNEL_VARIABLE = "BROKER_KERNEL"
KERNELS_MAX = 256  # a few KiB each; what all of them cache is bounded together
REMEMBERED_MAX_BYTES = 128 * 1024 * 1024  # of all cached entries; above it all are forgotten: peers may invent names
REMEMBERED_OVERHEAD = 360  # bytes of one entry besides its route key, at worst, in either kernel, as measured

_NAMES = ("compiled", "python")
_NAME_AT = HEADER_BYTES - ROUTE_KEY_AT


def choose_kernel(forced: str = "") -> type[SlowPath]:
    """
    The kernel of this name; when it is empty, the fastest there is.

    Raises:
        SettingError: there is no such kernel, it was not built here, or for an older version.
    """
    if not forced:
        chosen = next(iter(KERNELS.values()))
        if inspect.isabstract(chosen):
            raise SettingError(KERNEL_VARIABLE, "the compiled kernel is older than this version", hint="run make setup")
        return chosen
    if forced not in _NAMES:
        raise SettingError(KERNEL_VARIABLE, f"'{forced}' is not a kernel", hint="say compiled or python, or nothing")
    if forced not in KERNELS:
        hint = "install with a C compiler at hand (make setup), or leave the variable out"
        raise SettingError(KERNEL_VARIABLE, "the compiled kernel was not built for this Python", hint=hint)
    return KERNELS[forced]


def make_decoder(forced: str = "") -> ColumnDecoder:
    """A decoder of this name; when it is empty or there is none of it, the fastest there is."""
    return DECODERS.get(forced, next(iter(DECODERS.values())))()


class Kernels:
    """
    The kernels in use, by profile.

    Args:
        make: Makes a kernel that resolves by this function.
        resolve: Decides a miss, permissions apart.
        drop_entry: The entry of a drop.
    """

    def __init__(self, make: Callable[[Resolve], SlowPath], resolve: Resolve, drop_entry: DropWay) -> None:
        self._make = make
        self._resolve = resolve
        self._drop_entry = drop_entry
        self._remembered_bytes = 0
        self._by_profile: dict[Profile, SlowPath] = {OPEN: make(partial(self._resolve_for, OPEN))}

    def of(self, profile: Profile) -> SlowPath:
        """The kernel of a profile. Cost: one look-up, each read."""
        return self._by_profile.get(profile) or self._add(profile)

    def tally(self) -> None:
        """Bring `frames` of every entry up to date; to be called before they are read."""
        for kernel in self._by_profile.values():
            kernel.tally()

    def forget(self) -> None:
        """Empty all caches; may be called in the middle of a walk."""
        for kernel in self._by_profile.values():
            kernel.forget()
        self._remembered_bytes = 0

    def forget_services(self, names: AbstractSet[bytes] | None) -> None:
        """As `SlowPath.forget_services`; these still count as cached, as their slots and keys stay until `forget`."""
        for kernel in self._by_profile.values():
            kernel.forget_services(names)

    def remake(self) -> None:
        """Make all of them again, with the limits that hold now. Never in a walk."""
        self.tally()
        self.forget()
        self._by_profile = {OPEN: self._make(partial(self._resolve_for, OPEN))}

    def _add(self, profile: Profile) -> SlowPath:
        if profile.is_open:
            return self._by_profile[OPEN]
        if len(self._by_profile) >= KERNELS_MAX:
            oldest = next(one for one in self._by_profile if one is not OPEN)
            self._by_profile.pop(oldest).forget()
        kernel = self._by_profile[profile] = self._make(partial(self._resolve_for, profile))
        return kernel

    def _resolve_for(
        self, profile: Profile, key: bytes, conversation: bytes, kind: int, is_from_target: bool
    ) -> tuple[ForwardingEntry, bool | None]:
        """As `Resolve`, where the profile permits it; what is about to be cached is counted."""
        if profile.is_open or _is_permitted(profile, key):
            resolved = self._resolve(key, conversation, kind, is_from_target)
        else:
            resolved = self._drop_entry(Disposition.NOT_PERMITTED, kind), False
        if resolved[1] is not None:
            if self._remembered_bytes > REMEMBERED_MAX_BYTES:
                self.forget()
            self._remembered_bytes += len(key) + REMEMBERED_OVERHEAD
        return resolved


def _is_permitted(profile: Profile, key: bytes) -> bool:
    """Whether frames with this route key may pass; one without a valid name is malformed, which is decided later."""
    try:
        return profile.permits(key[_NAME_AT:].decode())
    except UnicodeDecodeError:
        return True
