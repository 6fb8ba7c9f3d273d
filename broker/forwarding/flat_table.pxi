"""
Flat table: route key, and conversation id where that has a say, to way and sink. Included by `compiled_kernel.pyx`.

Open addressing, 32 bytes a slot, keys in one piece of memory beside it. The count of a key's frames stands in its slot,
so that a frame costs one or two cache lines whatever the number of destinations. Names come from peers, so the hash is
SipHash-1-3, keyed by the secret of Python's own hash of bytes.
"""

cdef enum:
    FIRST_SLOTS = 64  # a power of two, as every number of slots
    FIRST_KEY_BYTES = 4096

cdef extern from *:
    """
    #define ALWAYS ((uint32_t)1 << 31)
    """
    const uint32_t ALWAYS  # added to the number of a way whose frames are all recorded

cdef uint32_t BY_CONVERSATION = UINT32_MAX  # the sink of a route key for which the conversation id has a say
cdef uint32_t FORGOTTEN = UINT32_MAX - 1  # the sink of a slot that only keeps its key, for the slots after it


cdef struct Slot:
    uint64_t hash
    uint64_t frames  # not tallied yet
    uint32_t at  # of its key in `Table.keys`: route key, and the conversation id where that has a say
    uint32_t way  # number in `Table.ways`, with `ALWAYS` where all frames are recorded
    uint32_t sink  # number in `Runs.sinks`, or BY_CONVERSATION, or FORGOTTEN
    uint16_t length  # of its key; 0 in an empty slot
    uint16_t tag  # kind and FROM_TARGET


cdef inline uint64_t rotate(uint64_t word, int bits) noexcept nogil:
    return word << bits | word >> (64 - bits)


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotate(v[1], 13) ^ v[0]
    v[0] = rotate(v[0], 32)
    v[2] += v[3]
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotate(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


cdef uint64_t sip_hash(uint64_t key_0, uint64_t key_1, const uint8_t* data, size_t length) noexcept nogil:
    """SipHash-1-3. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF"."""
    cdef uint64_t[4] v
    cdef uint64_t word = 0
    cdef size_t rest = length & 7
    cdef const uint8_t* tail = data + (length - rest)
    v[0] = key_0 ^ <uint64_t>0x736F6D6570736575
    v[1] = key_1 ^ <uint64_t>0x646F72616E646F6D
    v[2] = key_0 ^ <uint64_t>0x6C7967656E657261
    v[3] = key_1 ^ <uint64_t>0x7465646279746573
    while data < tail:
        memcpy(&word, data, 8)
        v[3] ^= word
        sip_round(v)
        v[0] ^= word
        data += 8
    word = 0
    memcpy(&word, tail, rest)
    word |= <uint64_t>length << 56
    v[3] ^= word
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline uint8_t bit_of(const uint8_t* name, uint16_t length) noexcept nogil:
    """One of 64 bits, so that most names that differ have different ones: those of a family end differently."""
    return (length + name[length - 1] + 7 * name[length - 2] if length > 1 else name[0]) & 63


cdef class Table:
    """
    What is remembered: route key, and conversation id where that has a say, to way and sink.

    At most every second slot is taken, so a search always ends. A slot stays where it is until `insert` or `clear`.
    """

    cdef Slot* slots
    cdef size_t mask  # number of slots, less one
    cdef size_t used
    cdef bint has_choices  # there may be slots by conversation
    cdef uint8_t* keys
    cdef size_t keys_size
    cdef size_t keys_used
    cdef uint64_t key_0
    cdef uint64_t key_1
    cdef uint64_t hash_mask
    cdef list ways
    cdef dict numbers
    cdef uint32_t* marks  # of the ways, as the ring numbers them, without `ALWAYS`; NULL without a ring
    cdef object ring

    def __cinit__(self, int hash_bits, object ring):
        self.ring = ring
        self.key_0 = <uint64_t>hash(b"broker: route key")
        self.key_1 = <uint64_t>hash(b"broker: conversation")
        self.hash_mask = (<uint64_t>1 << hash_bits) - 1 if hash_bits < 64 else ~<uint64_t>0
        self.clear()

    def __dealloc__(self):
        free(self.slots)
        free(self.keys)
        free(self.marks)

    cdef int clear(self) except -1:
        """Forget everything and give the memory back."""
        free(self.slots)
        free(self.keys)
        self.slots = NULL
        self.keys = NULL
        self.mask = self.used = self.keys_size = self.keys_used = 0
        self.has_choices = False
        self.ways = []
        self.numbers = {}
        self.slots = <Slot*>calloc(FIRST_SLOTS, sizeof(Slot))
        if self.slots is NULL:
            raise MemoryError
        self.mask = FIRST_SLOTS - 1
        return 0

    cdef Slot* probe(self, uint16_t tag, const uint8_t* key, uint16_t length, const uint8_t* conversation) noexcept:
        """The slot of a route key, and of a conversation where one is given; empty where it would have to go."""
        cdef uint64_t hashed = sip_hash(self.key_0 ^ tag, self.key_1, key, length)
        cdef uint16_t whole = length
        cdef size_t at
        cdef Slot* slot
        if conversation is not NULL:
            hashed = sip_hash(self.key_1 ^ hashed, self.key_0, conversation, GUID_BYTES)
            whole += GUID_BYTES
        hashed &= self.hash_mask
        at = hashed & self.mask
        while True:
            slot = &self.slots[at]
            if slot.length == 0:
                slot.hash = hashed
                return slot
            if slot.hash == hashed and slot.length == whole and slot.tag == tag:
                if memcmp(self.keys + slot.at, key, length) == 0 and (
                    conversation is NULL or memcmp(self.keys + slot.at + length, conversation, GUID_BYTES) == 0
                ):
                    return slot
            at = (at + 1) & self.mask

    cdef Slot* find(self, uint16_t tag, const uint8_t* key, uint16_t length, const uint8_t* conversation) noexcept:
        """The slot that tells the way of a frame, or NULL."""
        cdef Slot* slot = self.probe(tag, key, length, NULL)
        if slot.length != 0 and slot.sink == BY_CONVERSATION:
            slot = self.probe(tag, key, length, conversation)
        return slot if slot.length != 0 and slot.sink != FORGOTTEN else NULL

    cdef int insert(self, uint16_t tag, bytes key, bytes conversation, object way, uint32_t sink) except -1:
        """Remember a way and its sink, or, without a way, that the conversation id has a say."""
        cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(key)
        cdef const uint8_t* guid = NULL
        cdef uint32_t number = self.number_of(way)
        cdef Slot* slot
        if conversation is not None:
            guid = <const uint8_t*>PyBytes_AS_STRING(conversation)
        self.make_room()
        slot = self.probe(tag, name, <uint16_t>len(key), guid)
        if slot.length != 0 and slot.sink != FORGOTTEN:
            if not slot.sink == sink == BY_CONVERSATION:
                raise AssertionError("whether the conversation has a say is a matter of the key alone")
            return 0
        if slot.length == 0:
            slot.at = self.keep(key if conversation is None else key + conversation)
            slot.length = <uint16_t>(len(key) + (0 if conversation is None else GUID_BYTES))
            self.used += 1
        slot.tag, slot.way, slot.sink, slot.frames = tag, number, sink, 0
        self.has_choices |= sink == BY_CONVERSATION
        return 0

    cdef int forget(self, object names) except -1:
        """As `SlowPath.forget_services`. Cost: a look at every slot, some 20 ns."""
        cdef uint64_t filter = 0  # a bit for each name: most others are known by theirs
        cdef size_t i
        cdef Slot* slot
        cdef const uint8_t* key
        cdef uint16_t length
        if names is None:
            if not self.has_choices:
                return 0
            self.has_choices = False
        for name in names or ():
            filter |= <uint64_t>1 << bit_of(<const uint8_t*>PyBytes_AS_STRING(name), <uint16_t>len(name))
        for i in range(self.mask + 1):
            slot = &self.slots[i]
            if slot.length == 0 or slot.sink == FORGOTTEN:
                continue
            key = self.keys + slot.at
            length = read_u16(key + GUID_BYTES)
            if names is None:
                if slot.sink != BY_CONVERSATION and slot.length == KEY_HEAD_BYTES + length:
                    continue
            elif (
                not filter >> bit_of(key + KEY_HEAD_BYTES, length) & 1
                or PyBytes_FromStringAndSize(<const char*>key + KEY_HEAD_BYTES, length) not in names
            ):
                continue
            self.settle(slot)
            slot.sink = FORGOTTEN
        return 0

    cdef uint32_t number_of(self, object way) except? 4294967295:
        cdef uint32_t mark = 0
        number = self.numbers.get(way)
        if number is None:
            number = len(self.ways)
            if self.ring is not None:
                if way is not None:
                    mark = self.ring.mark_of(way)
                self.marks = <uint32_t*>grown(self.marks, (number + 1) * sizeof(uint32_t))
                self.marks[<uint32_t>number] = mark & ~ALWAYS
            self.ways.append(way)
            number |= mark & ALWAYS
            self.numbers[way] = number
        return number

    cdef inline object way_of(self, const Slot* slot):
        """The way of a slot."""
        return self.ways[slot.way & ~ALWAYS]

    cdef uint32_t keep(self, bytes key) except? 4294967295:
        """Put a key behind the others; where it is."""
        cdef size_t length = len(key)
        cdef size_t at = self.keys_used
        cdef size_t size = self.keys_size if self.keys_size else FIRST_KEY_BYTES
        if at + length >= UINT32_MAX:
            raise MemoryError
        while size < at + length:
            size *= 2
        if size != self.keys_size:
            self.keys = <uint8_t*>grown(self.keys, size)
            self.keys_size = size
        memcpy(self.keys + at, PyBytes_AS_STRING(key), length)
        self.keys_used = at + length
        return <uint32_t>at

    cdef int make_room(self) except -1:
        """Without the forgotten slots, and twice as many if need be, when another one would fill more than half."""
        cdef size_t count = self.mask + 1
        cdef size_t mask
        cdef Slot* old = self.slots
        cdef Slot* new
        cdef size_t i, at
        if 2 * (self.used + 1) <= count:
            return 0
        self.used = 0
        for i in range(count):
            self.used += old[i].length != 0 and old[i].sink != FORGOTTEN
        mask = (count if 4 * self.used <= count else 2 * count) - 1
        new = <Slot*>calloc(mask + 1, sizeof(Slot))
        if new is NULL:
            raise MemoryError
        for i in range(count):
            if old[i].length != 0 and old[i].sink != FORGOTTEN:
                at = old[i].hash & mask
                while new[at].length != 0:
                    at = (at + 1) & mask
                new[at] = old[i]
        self.slots = new
        self.mask = mask
        free(old)
        return 0

    cdef int tally(self) except -1:
        """Add what was counted to the ways."""
        cdef size_t i
        for i in range(self.mask + 1):
            self.settle(&self.slots[i])
        return 0

    cdef int settle(self, Slot* slot) except -1:
        """Add what was counted in a slot to its way."""
        if slot.frames != 0:
            self.way_of(slot).frames += slot.frames
            slot.frames = 0
        return 0
