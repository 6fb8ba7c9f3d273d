from collections.abc import Set as AbstractSet
from typing import ClassVar

from broker.forwarding.entry import ForwardingEntry, PassResult
from broker.forwarding.ring import Ring
from broker.forwarding.slow_path import DropWay, Resolve, SlowPath

class CompiledKernel(SlowPath):
    name: ClassVar[str]
    def __init__(
        self,
        *,
        max_frame: int,
        max_hops: int,
        resolve: Resolve,
        drop_way: DropWay,
        ring: Ring | None = None,
        hash_bits: int = 64,
    ) -> None: ...
    def walk(self, slab: bytearray, end: int) -> PassResult: ...
    def tally(self) -> None: ...
    def forget(self) -> None: ...
    def forget_services(self, names: AbstractSet[bytes] | None) -> None: ...
    def _note_hops(self, kind: int, flags: int, hop_count: int, hop_limit: int) -> None: ...
    def _recall(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> ForwardingEntry | None: ...
    def _remember(
        self, key: bytes, conversation: bytes | None, kind: int, is_from_target: bool, way: ForwardingEntry
    ) -> None: ...
