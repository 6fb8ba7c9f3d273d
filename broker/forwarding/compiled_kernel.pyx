# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""
The kernel, compiled: the same walk as `broker.forwarding.kernel`, in C, with no Python object for a frame.

The loop is here; what it remembers by is in `flat_table.pxi`, where runs lead in `run_list.pxi`, what it records in
`ring.pxi`: one module for the compiler, which has to see all of it at once.

Rules of these files: they read and write `slab[:end]`, the ring and their own memory only, and every length is checked
before it is used. Whatever is not plain goes the careful path that both kernels share. Nothing here is public but
`CompiledKernel`.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport UINT32_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from broker.forwarding.entry import PassResult
from broker.forwarding.slow_path import SlowPath
from broker.forwarding.ring import ALWAYS as _ALWAYS
from broker.forwarding.ring import HEAD_BYTES as _RECORD_HEAD_BYTES
from broker.forwarding.ring import SAMPLE_BITS as _SAMPLE_BITS
from broker.protocol import layout

# The layout as C numbers; `CompiledKernel` refuses to be made when layout.py says otherwise.
cdef enum:
    TIME_TO_LIVE_AT = 8
    TIME_CONSUMED_AT = 12
    FROM_SERVICE_LENGTH_AT = 76
    CONVERSATION_AT = 32
    ROUTE_KEY_AT = 96
    TO_SERVICE_LENGTH_AT = 112
    HEADER_BYTES = 114
    MIN_DIALOG_FRAME = 116
    KEY_HEAD_BYTES = 18  # broker instance and name length, before the name
    GUID_BYTES = 16
    NAME_MAX_BYTES = 512
    FIRST_DIALOG_KIND = 0x10
    FROM_TARGET = 0x01

_LAYOUT = {
    "TIME_TO_LIVE_AT": TIME_TO_LIVE_AT,
    "TIME_CONSUMED_AT": TIME_CONSUMED_AT,
    "CONVERSATION_AT": CONVERSATION_AT,
    "ROUTE_KEY_AT": ROUTE_KEY_AT,
    "TO_SERVICE_AT": HEADER_BYTES,
    "HEADER_BYTES": HEADER_BYTES,
    "MIN_DIALOG_FRAME": MIN_DIALOG_FRAME,
    "GUID_BYTES": GUID_BYTES,
    "NAME_MAX_BYTES": NAME_MAX_BYTES,
    "FIRST_DIALOG_KIND": FIRST_DIALOG_KIND,
}


cdef inline uint16_t read_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>(at[0] << 8 | at[1])


cdef inline uint32_t read_u32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint16_t tag_of(uint8_t kind, bint is_from_target) noexcept nogil:
    return <uint16_t>(kind << 1 | is_from_target)


cdef void* grown(void* memory, size_t size) except NULL:
    """The same memory, so large now."""
    cdef void* larger = realloc(memory, size)
    if larger is NULL:
        raise MemoryError
    return larger


include "flat_table.pxi"
include "run_list.pxi"
include "ring.pxi"


cdef class Walk:
    """The walk itself, and what it needs."""

    cdef Table table
    cdef Runs runs
    cdef Py_ssize_t max_frame
    cdef uint8_t max_hops
    cdef uint32_t[256] received
    cdef uint8_t highest  # kind that was received
    cdef bint is_walking
    cdef bint is_unknown  # the frame at which `plain` has ended is plain, but for its way
    cdef object ring
    cdef Recorder recorder

    def __cinit__(self, Py_ssize_t max_frame, uint8_t max_hops, int hash_bits, object ring):
        self.table = Table(hash_bits, ring)
        self.runs = Runs()
        self.ring = ring
        if ring is not None:
            self.recorder.limit = ring.limit
        self.max_frame = max_frame
        self.max_hops = max_hops

    def forget(self):
        """Remember nothing; what was counted is told first. In the middle of a walk its sinks are still needed."""
        self.table.tally()
        self.table.clear()
        if not self.is_walking:
            self.runs.forget()

    def forget_services(self, names):
        """As `SlowPath.forget_services`."""
        self.table.forget(names)

    def tally(self):
        """Add what was counted to the ways."""
        self.table.tally()

    def recall(self, bytes key, bytes conversation, uint8_t kind, bint is_from_target):
        """The way that is remembered, or None."""
        cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(key)
        cdef const uint8_t* guid = <const uint8_t*>PyBytes_AS_STRING(conversation)
        cdef Slot* slot = self.table.find(tag_of(kind, is_from_target), name, <uint16_t>len(key), guid)
        return None if slot is NULL else self.table.way_of(slot)

    def remember(self, bytes key, bytes conversation, uint8_t kind, bint is_from_target, object way):
        """Remember a way, for this conversation alone where one is given."""
        cdef uint16_t tag = tag_of(kind, is_from_target)
        if conversation is not None:
            self.table.insert(tag, key, None, None, BY_CONVERSATION)
        self.table.insert(tag, key, conversation, way, self.runs.number_of(way.sink))

    def walk(self, object kernel, bytearray slab, Py_ssize_t end):
        """As `Kernel.walk`."""
        cdef Py_ssize_t pos = 0
        cdef Py_ssize_t stop
        cdef int kind
        # While there is a view of it, nobody can move the slab.
        view = PyMemoryView_FromObject(slab)
        if not 0 <= end <= PyByteArray_GET_SIZE(slab):
            raise AssertionError(f"a walk of {end} bytes in a slab of {len(slab)}")
        cdef uint8_t* base = <uint8_t*>PyByteArray_AS_STRING(slab)
        batch = PassResult()
        self.runs.begin()
        if self.highest:  # an earlier walk has failed
            memset(self.received, 0, sizeof(self.received))
            self.highest = 0
        self.recorder.is_open = False
        self.is_walking = True
        try:
            while True:
                pos = self.plain(base, pos, end)
                close_ring(&self.recorder, self.ring)
                if pos == end:
                    break
                if self.is_unknown and batch.care_left:
                    batch.care_left -= 1
                    way, stop = self.learn(kernel, slab, base + pos, pos), pos + read_u32(base + pos)
                else:
                    stop, way = kernel.careful(slab, pos, end, batch)
                if stop == pos:
                    break
                if way is not None:
                    self.runs.add(self.runs.number_of(way.sink), pos, stop)
                pos = stop
            self.runs.hand_out(batch, view, base)
        finally:
            self.is_walking = False
        received = <dict>batch.received
        for kind in range(FIRST_DIALOG_KIND, self.highest + 1):
            if self.received[kind] != 0:
                received[kind] = received.get(kind, 0) + self.received[kind]
                self.received[kind] = 0
        self.highest = 0
        batch.consumed = pos
        return batch

    cdef object learn(self, object kernel, bytearray slab, uint8_t* frame, Py_ssize_t pos):
        """The way of the frame at `pos`, which is plain but for that; it is cached, and the frame counted."""
        cdef uint16_t length = KEY_HEAD_BYTES + read_u16(frame + TO_SERVICE_LENGTH_AT)
        key = PyBytes_FromStringAndSize(<char*>frame + ROUTE_KEY_AT, length)
        conversation = PyBytes_FromStringAndSize(<char*>frame + CONVERSATION_AT, GUID_BYTES)
        way = kernel.learn(key, conversation, frame[4], frame[5] & FROM_TARGET != 0)
        frame[6] += 1
        if self.ring is not None:
            self.ring.enter(slab, pos, way, frame[6] - 1)
        way.frames += 1
        self.count(frame[4])
        return way

    cdef inline void count(self, uint8_t kind) noexcept:
        self.received[kind] += 1
        if kind > self.highest:
            self.highest = kind

    cdef Py_ssize_t plain(self, uint8_t* slab, Py_ssize_t pos, Py_ssize_t end) except -1:
        """Pass on the plain frames from `pos` on; where the first other one begins."""
        cdef Py_ssize_t start = pos
        cdef Py_ssize_t length
        cdef uint16_t from_length, to_length, key_length, tag
        cdef uint16_t last_length = 0
        cdef uint8_t* frame
        cdef uint8_t* last = NULL
        cdef Slot* slot = NULL
        cdef Slot* other
        cdef Recorder* recorder = &self.recorder
        self.is_unknown = False
        while end - pos >= MIN_DIALOG_FRAME:
            frame = slab + pos
            length = read_u32(frame)
            if length > end - pos or length > self.max_frame or frame[4] < FIRST_DIALOG_KIND:
                break
            from_length, to_length = read_u16(frame + FROM_SERVICE_LENGTH_AT), read_u16(frame + TO_SERVICE_LENGTH_AT)
            if not (1 <= from_length <= NAME_MAX_BYTES and 1 <= to_length <= NAME_MAX_BYTES):
                break
            if HEADER_BYTES + from_length + to_length > length:
                break
            if frame[6] >= frame[7] or frame[6] >= self.max_hops:
                break
            if read_u32(frame + TIME_CONSUMED_AT) >= read_u32(frame + TIME_TO_LIVE_AT):
                break
            tag, key_length = tag_of(frame[4], frame[5] & FROM_TARGET), KEY_HEAD_BYTES + to_length
            if (
                slot is NULL
                or slot.tag != tag
                or last_length != key_length
                or memcmp(frame + ROUTE_KEY_AT, last + ROUTE_KEY_AT, key_length) != 0
                or (slot.length != key_length and memcmp(frame + CONVERSATION_AT, last + CONVERSATION_AT, GUID_BYTES))
            ):
                other = self.table.find(tag, frame + ROUTE_KEY_AT, key_length, frame + CONVERSATION_AT)
                if other is NULL:
                    self.is_unknown = True
                    break
                if slot is not NULL and slot.sink != other.sink:
                    self.runs.add(slot.sink, start, pos)
                    start = pos
                slot, last, last_length = other, frame, key_length
            if self.ring is not None and is_wanted(recorder, frame, slot.way):
                if not recorder.is_open:
                    open_ring(recorder, self.ring)
                record(recorder, frame, &self.table.marks[slot.way & ~ALWAYS], HEADER_BYTES + from_length + to_length)
            frame[6] += 1
            slot.frames += 1
            self.count(frame[4])
            pos += length
        if slot is not NULL:
            self.runs.add(slot.sink, start, pos)
        return pos


class CompiledKernel(SlowPath):
    """
    Walks slabs in C. Counts beside the route keys until `tally` is called.

    Shape: see `SlowPath`; `hash_bits` 0 .. 64 that are used, fewer only so that a test can make keys collide.
    """

    name = "compiled"

    def __init__(self, *, max_frame, max_hops, resolve, drop_way, ring=None, hash_bits=64):
        super().__init__(max_frame=max_frame, max_hops=max_hops, resolve=resolve, drop_way=drop_way, ring=ring)
        for constant, value in _LAYOUT.items():
            if getattr(layout, constant) != value:
                raise AssertionError(f"{constant} is not what the compiled kernel was built with")
        if (_RECORD_HEAD_BYTES, _ALWAYS, _SAMPLE_BITS) != (RECORD_HEAD_BYTES, ALWAYS, 64 - SAMPLE_SHIFT):
            raise AssertionError("the ring is not what the compiled kernel was built with")
        self._walk = Walk(max_frame, max_hops, hash_bits, ring)

    def walk(self, slab, end):
        """Walk the whole frames in `slab[:end]`. Cost: no Python object for a plain frame."""
        return self._walk.walk(self, slab, end)

    def tally(self):
        """Add what was counted to the ways."""
        self._walk.tally()

    def forget(self):
        """See `SlowPath`."""
        self._walk.forget()

    def forget_services(self, names):
        """See `SlowPath`."""
        self._walk.forget_services(names)

    def _note_hops(self, kind, flags, hop_count, hop_limit):
        """The walk looks at hops itself."""

    def _recall(self, key, conversation, kind, is_from_target):
        return self._walk.recall(key, conversation, kind, is_from_target)

    def _remember(self, key, conversation, kind, is_from_target, way):
        self._walk.remember(key, conversation, kind, is_from_target, way)
