"""
One kernel for each profile of permissions, so that a permission costs a frame nothing.

What a kernel remembers of a route key was permitted to those of its profile, or is the way of a drop; links of the same
profile share one. The permission is asked on a miss, before the route. All kernels together remember no more than one
may, and there are never more than `KERNELS_MAX`: past it the oldest goes, and is made anew when somebody needs it.
Loop-only.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.flow import Disposition
from broker.forwarding.careful import REMEMBERED_MAX_BYTES, REMEMBERED_OVERHEAD, DropWay, Resolve, SlowPath
from broker.forwarding.way import ForwardingEntry
from broker.protocol.layout import HEADER_BYTES, ROUTE_KEY_AT
from broker.security.grants import OPEN, Profile

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
