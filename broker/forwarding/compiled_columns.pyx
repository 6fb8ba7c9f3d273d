# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""
The decoder of `broker.forwarding.columns`, compiled: records of a ring to columns without a Python object for a record,
and without the interpreter's lock but for a name that was not seen before.

It reads `data`, the tables it is given and its own memory only, and every size and number is checked before it is used.
Names are numbered in `name_table.pxi`, a part of this module.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport floor
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from broker.forwarding import columns as _plain
from broker.forwarding.ring import HEAD_BYTES as _HEAD_BYTES
from broker.forwarding.ring import TAKEN_BACK as _TAKEN_BACK
from broker.protocol import layout

# As C numbers; `CompiledDecoder` refuses to be made when the modules in Python say otherwise.
cdef enum:
    HEAD_BYTES = 20
    KIND_AT = 4
    HOP_COUNT_AT = 6
    TIME_TO_LIVE_AT = 8
    TIME_CONSUMED_AT = 12
    MESSAGE_ID_AT = 16
    CONVERSATION_AT = 32
    SEQUENCE_AT = 48
    FRAGMENT_AT = 56
    FROM_SERVICE_LENGTH_AT = 76
    FROM_INSTANCE_AT = 80
    TO_INSTANCE_AT = 96
    TO_SERVICE_LENGTH_AT = 112
    HEADER_BYTES = 114
    FIRST_DIALOG_KIND = 0x10
    FROM_TARGET = 0x01
    ENDING_WIDTH = 7
    OUTCOME_HERE = 0
    OUTCOME_ELSEWHERE = 1
    REASON = 2
    CODE = 3
    ROUTE = 4
    ROUTE_TABLE = 5
    ADJACENT_OUT = 6
    IS_FROM_HERE = 1
    HAS_QUEUED = 2
    NOTHING = -1
    OTHER_KIND = 3
    NUMBER_MAX = 0x4000000

cdef uint32_t TAKEN_BACK = 0xFFFFFFFF

_NUMBERS = (
    (HEAD_BYTES, _HEAD_BYTES),
    (TAKEN_BACK, _TAKEN_BACK),
    (KIND_AT, layout.KIND_AT),
    (HOP_COUNT_AT, layout.HOP_COUNT_AT),
    (TIME_TO_LIVE_AT, layout.TIME_TO_LIVE_AT),
    (TIME_CONSUMED_AT, layout.TIME_CONSUMED_AT),
    (MESSAGE_ID_AT, layout.MESSAGE_ID_AT),
    (CONVERSATION_AT, layout.CONVERSATION_AT),
    (SEQUENCE_AT, layout.SEQUENCE_AT),
    (FRAGMENT_AT, layout.FRAGMENT_AT),
    (TO_INSTANCE_AT, layout.ROUTE_KEY_AT),
    (HEADER_BYTES, layout.HEADER_BYTES),
    (FIRST_DIALOG_KIND, layout.FIRST_DIALOG_KIND),
    (ENDING_WIDTH, _plain.ENDING_WIDTH),
    (IS_FROM_HERE, _plain.IS_FROM_HERE),
    (HAS_QUEUED, _plain.HAS_QUEUED),
    (NOTHING, _plain.NOTHING),
    (NUMBER_MAX, _plain.NUMBER_MAX),
    (OTHER_KIND, len(_plain.KINDS) - 1),
)


cdef inline uint16_t read_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>(at[0] << 8 | at[1])


cdef inline uint32_t read_u32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t read_u64(const uint8_t* at) noexcept nogil:
    return <uint64_t>read_u32(at) << 32 | read_u32(at + 4)


cdef inline bint is_guid(const uint8_t* at) noexcept nogil:
    """Whether it is another than the one that says "not specified"."""
    return (read_u64(at) | read_u64(at + 8)) != 0


cdef inline void mark(uint8_t* bits, Py_ssize_t row, bint is_set) noexcept nogil:
    bits[row >> 3] |= <uint8_t>(is_set << (row & 7))


include "name_table.pxi"


ctypedef int64_t* Longs
ctypedef int32_t* Words
ctypedef uint8_t* Bytes


cdef struct Into:  # memory of the columns, in the order in which `room_for` makes it, and that of `queued`
    Longs entered_at, left_at, sequence_number, time_to_live_ms, time_consumed_ms
    Words outcome, kind, fragment_number, hop_count, hop_limit, bytes, to_service, from_service
    Words reason, code, route, route_table, adjacent_in, adjacent_out
    Bytes message_id, conversation_id, to_broker_instance, from_broker_instance, from_target
    Bytes has_reason, has_code, has_route, has_route_table, has_adjacent_in, has_adjacent_out
    Bytes has_to_broker_instance, has_from_broker_instance
    Words queued


cdef inline void put_word(int32_t* words, uint8_t* valid, Py_ssize_t row, int32_t number) noexcept nogil:
    """A word that may be missing."""
    words[row] = number if number >= 0 else 0
    mark(valid, row, number >= 0)


cdef inline int64_t microseconds(double seconds) noexcept nogil:
    return <int64_t>floor(seconds * 1e6 + 0.5)


cdef class CompiledDecoder:
    """As `broker.forwarding.columns.ColumnDecoder`."""

    name = "compiled"

    cdef Names names_seen

    def __init__(self):
        if any(number != value for number, value in _NUMBERS):
            raise AssertionError("the compiled decoder was built with another layout")
        self.names_seen = Names()

    @property
    def names(self):
        """Names of services by number, since the last `forget`."""
        return list(self.names_seen.known)

    def forget(self):
        """Number names anew."""
        self.names_seen.clear()

    def scan(self, const uint8_t[::1] data):
        """As `Decoder.scan`."""
        cdef Py_ssize_t end = data.shape[0]
        cdef Py_ssize_t at = 0, records = 0
        cdef uint32_t size, number, highest = 0
        cdef bint is_sound = True
        cdef const uint8_t* base = &data[0] if end else NULL
        cdef bytearray seen
        cdef uint8_t* flags
        with nogil:
            while at < end:
                if end - at < HEAD_BYTES + HEADER_BYTES:
                    is_sound = False
                    break
                memcpy(&size, base + at, 4)
                memcpy(&number, base + at + 4, 4)
                if not self.is_sound(base + at, size, end - at):
                    is_sound = False
                    break
                if number != TAKEN_BACK:
                    highest = number if number > highest else highest
                    records += 1
                at += size
        if not is_sound:
            raise ValueError(f"no record at byte {at} of {end}")
        if not records:
            return 0, []
        if highest > NUMBER_MAX:
            raise ValueError(f"a way has the number {highest}")
        seen = bytearray(highest + 1)
        flags = <uint8_t*>PyByteArray_AS_STRING(seen)
        at = 0
        with nogil:
            while at < end:
                memcpy(&size, base + at, 4)
                memcpy(&number, base + at + 4, 4)
                if number != TAKEN_BACK:
                    flags[number] = 1
                at += size
        return records, [number for number, is_in in enumerate(seen) if is_in]

    cdef inline bint is_sound(self, const uint8_t* record, uint32_t size, Py_ssize_t room) noexcept nogil:
        cdef const uint8_t* frame = record + HEAD_BYTES
        if size > room:
            return False
        return size == (
            <uint32_t>(HEAD_BYTES + HEADER_BYTES)
            + read_u16(frame + FROM_SERVICE_LENGTH_AT)
            + read_u16(frame + TO_SERVICE_LENGTH_AT)
        )

    def fill(self, const uint8_t[::1] data, Py_ssize_t records, legend):
        """As `Decoder.fill`."""
        cdef const int32_t[::1] endings = legend.endings
        cdef const int64_t[::1] entered = legend.entered
        cdef const int32_t[::1] adjacent_in = legend.adjacent_in
        cdef const int8_t[::1] flags = legend.flags
        cdef const int32_t[::1] table = legend.table
        cdef double offset = legend.offset
        cdef dict values, valid
        values, valid = _plain.room_for(records)
        cdef bytearray queued = bytearray(4 * records)
        cdef Into into = self.into(values, valid, queued)
        cdef Py_ssize_t end = data.shape[0]
        cdef Py_ssize_t known = endings.shape[0] // ENDING_WIDTH
        cdef Py_ssize_t came = min(entered.shape[0], adjacent_in.shape[0], flags.shape[0], table.shape[0])
        cdef Py_ssize_t rows = 0, asked = 0, at = 0
        cdef uint32_t size, number, arrival
        cdef int32_t outcome, route_table
        cdef bint is_here
        cdef double left
        cdef const uint8_t* base = &data[0] if end else NULL
        cdef const int32_t* ending
        with nogil:
            while at < end:
                if end - at < HEAD_BYTES + HEADER_BYTES:
                    break
                memcpy(&size, base + at, 4)
                memcpy(&number, base + at + 4, 4)
                memcpy(&arrival, base + at + 8, 4)
                memcpy(&left, base + at + 12, 8)
                if not self.is_sound(base + at, size, end - at):
                    break
                if number == TAKEN_BACK:
                    at += size
                    continue
                if number >= known or arrival >= came or rows == records:
                    break
                ending = &endings[<Py_ssize_t>number * ENDING_WIDTH]
                is_here = flags[arrival] & IS_FROM_HERE
                outcome = ending[OUTCOME_HERE if is_here else OUTCOME_ELSEWHERE]
                if outcome >= 0:
                    into.outcome[rows] = outcome
                    into.entered_at[rows] = entered[arrival]
                    into.left_at[rows] = microseconds(left + offset)
                    put_word(into.reason, into.has_reason, rows, ending[REASON])
                    put_word(into.code, into.has_code, rows, ending[CODE])
                    put_word(into.route, into.has_route, rows, ending[ROUTE])
                    route_table = ending[ROUTE_TABLE]
                    if is_here:
                        route_table = NOTHING if ending[ROUTE] == NOTHING else table[arrival]
                    put_word(into.route_table, into.has_route_table, rows, route_table)
                    put_word(into.adjacent_in, into.has_adjacent_in, rows, adjacent_in[arrival])
                    put_word(into.adjacent_out, into.has_adjacent_out, rows, ending[ADJACENT_OUT])
                    if flags[arrival] & HAS_QUEUED:
                        into.queued[asked] = <int32_t>rows
                        asked += 1
                    self.put_frame(&into, rows, base + at + HEAD_BYTES)
                    rows += 1
                at += size
        if at != end:
            raise ValueError(f"no record at byte {at} of {end}")
        if rows < records:
            _plain.trim(values, valid, rows)
        return _plain.Columns(rows, values, valid, memoryview(queued).cast("i")[:asked].tolist())

    cdef int put_frame(self, Into* into, Py_ssize_t row, const uint8_t* frame) except -1 nogil:
        """What the header tells."""
        cdef uint64_t sequence = read_u64(frame + SEQUENCE_AT)
        cdef uint32_t number = read_u32(frame + FRAGMENT_AT)
        cdef uint32_t length = read_u32(frame)
        cdef uint16_t to_length = read_u16(frame + TO_SERVICE_LENGTH_AT)
        cdef int32_t kind = frame[KIND_AT] - FIRST_DIALOG_KIND
        into.kind[row] = kind if 0 <= kind < OTHER_KIND else OTHER_KIND
        memcpy(into.message_id + 16 * row, frame + MESSAGE_ID_AT, 16)
        memcpy(into.conversation_id + 16 * row, frame + CONVERSATION_AT, 16)
        mark(into.from_target, row, frame[5] & FROM_TARGET)
        into.sequence_number[row] = <int64_t>sequence if sequence <= <uint64_t>INT64_MAX else INT64_MAX
        into.fragment_number[row] = <int32_t>number if number <= <uint32_t>INT32_MAX else INT32_MAX
        into.hop_count[row] = frame[HOP_COUNT_AT]
        into.hop_limit[row] = frame[HOP_COUNT_AT + 1]
        into.time_to_live_ms[row] = read_u32(frame + TIME_TO_LIVE_AT)
        into.time_consumed_ms[row] = read_u32(frame + TIME_CONSUMED_AT)
        into.bytes[row] = <int32_t>length if length <= <uint32_t>INT32_MAX else INT32_MAX
        into.to_service[row] = self.names_seen.number_of(frame + HEADER_BYTES, to_length, 0)
        into.from_service[row] = self.names_seen.number_of(
            frame + HEADER_BYTES + to_length, read_u16(frame + FROM_SERVICE_LENGTH_AT), 1
        )
        memcpy(into.to_broker_instance + 16 * row, frame + TO_INSTANCE_AT, 16)
        memcpy(into.from_broker_instance + 16 * row, frame + FROM_INSTANCE_AT, 16)
        mark(into.has_to_broker_instance, row, is_guid(frame + TO_INSTANCE_AT))
        mark(into.has_from_broker_instance, row, is_guid(frame + FROM_INSTANCE_AT))
        return 0

    cdef Into into(self, dict values, dict valid, bytearray queued) except *:
        cdef Into into
        cdef char* memory
        columns = [*values.values(), *valid.values(), queued]
        if len(columns) * sizeof(memory) != sizeof(into):
            raise AssertionError("the compiled decoder was built for other columns")
        for at, column in enumerate(columns):
            memory = PyByteArray_AS_STRING(column)
            memcpy(<char*>&into + <Py_ssize_t>at * sizeof(memory), &memory, sizeof(memory))
        return into
