"""
What the walk writes into the ring. Included by `compiled_kernel.pyx`.

The same records as `broker.forwarding.ring` writes, with the same verdict on which frames; from the first one of a walk
on the ring's memory is written here, and the ring is told how far that went before anybody else writes to it.
"""

cdef enum:
    TRACE = 0x20
    SAMPLE_SHIFT = 11  # the upper 53 bits of the mix count
    RECORD_HEAD_BYTES = 20


cdef struct Recorder:
    bint is_open
    uint8_t* buffer
    size_t capacity
    size_t used
    uint64_t shed
    uint64_t limit
    uint32_t arrival
    double now


cdef inline uint64_t read_u64(const uint8_t* at) noexcept nogil:
    # In one expression, which compilers know to be one load.
    return (
        <uint64_t>at[0] << 56 | <uint64_t>at[1] << 48 | <uint64_t>at[2] << 40 | <uint64_t>at[3] << 32
        | <uint64_t>at[4] << 24 | <uint64_t>at[5] << 16 | <uint64_t>at[6] << 8 | at[7]
    )


cdef inline uint64_t finish(uint64_t word) noexcept nogil:
    word = (word ^ word >> 30) * <uint64_t>0xBF58476D1CE4E5B9
    word = (word ^ word >> 27) * <uint64_t>0x94D049BB133111EB
    return word ^ word >> 31


cdef inline uint64_t mix(const uint8_t* conversation) noexcept nogil:
    """As `broker.forwarding.ring.mix`."""
    return finish(finish(read_u64(conversation) + <uint64_t>0x9E3779B97F4A7C15) ^ read_u64(conversation + 8))


cdef inline bint is_wanted(const Recorder* ring, const uint8_t* frame, uint32_t way) noexcept nogil:
    """Whether a frame that takes this way is recorded: one in `Table.ways`, with `ALWAYS` where it has that."""
    return (
        way & ALWAYS != 0
        or mix(frame + CONVERSATION_AT) >> SAMPLE_SHIFT < ring.limit
        or frame[5] & TRACE != 0
    )


cdef inline void record(Recorder* ring, const uint8_t* frame, const uint32_t* mark, uint32_t length) noexcept nogil:
    """Write header and names of a frame, `length` bytes; `mark` is read only if there is room."""
    cdef uint32_t size = RECORD_HEAD_BYTES + length
    cdef uint8_t* to
    if size > ring.capacity - ring.used:
        ring.shed += 1
        return
    to = ring.buffer + ring.used
    memcpy(to, &size, 4)
    memcpy(to + 4, mark, 4)
    memcpy(to + 8, &ring.arrival, 4)
    memcpy(to + 12, &ring.now, 8)
    memcpy(to + RECORD_HEAD_BYTES, frame, length)
    ring.used += size


cdef int open_ring(Recorder* recorder, object ring) except -1:
    """Write on where the ring is now; between two of these it may have gone on in other memory."""
    cdef bytearray buffer = ring.buffer
    recorder.buffer = <uint8_t*>PyByteArray_AS_STRING(buffer)
    recorder.capacity = PyByteArray_GET_SIZE(buffer)
    recorder.used = ring.used
    recorder.shed = 0
    recorder.arrival = ring.number_of_arrival()
    recorder.now = ring.now
    recorder.is_open = True
    return 0


cdef int close_ring(Recorder* recorder, object ring) except -1:
    """Tell the ring how far that went, if anything was recorded: mostly nothing was, and lone frames notice calls."""
    if recorder.is_open:
        recorder.is_open = False
        ring.wrote(recorder.used, recorder.shed)
    return 0
