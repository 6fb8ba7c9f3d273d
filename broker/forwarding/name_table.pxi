"""
Names that a decoder has met, each with its number. Included by `compiled_columns.pyx`.

An open table of hashes; the texts are Python objects that the table keeps alive, so a name that is known is found
without the interpreter's lock. Mostly the next record has the same names, so the last one of each column is tried
first.
"""

cdef inline uint64_t hash_of(const uint8_t* at, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word, hashed = <uint64_t>length * <uint64_t>0x9E3779B97F4A7C15
    while length >= 8:
        memcpy(&word, at, 8)
        hashed = (hashed ^ word) * <uint64_t>0xBF58476D1CE4E5B9
        hashed ^= hashed >> 29
        at, length = at + 8, length - 8
    word = 0
    memcpy(&word, at, length)
    hashed = (hashed ^ word) * <uint64_t>0x94D049BB133111EB
    return hashed ^ hashed >> 31


cdef struct Name:
    const uint8_t* text  # of an object that `Names.known` keeps alive; NULL in a free place
    uint64_t hashed
    int32_t length
    int32_t number


cdef class Names:
    """Names that were seen, each with the number it got then."""

    cdef list known
    cdef Name* places
    cdef Py_ssize_t mask
    cdef Name last[2]  # of each of the two columns: mostly the next record has the same

    def __cinit__(self):
        self.clear()

    def __dealloc__(self):
        free(self.places)

    cdef int clear(self) except -1:
        free(self.places)
        self.places = NULL
        self.known = []
        self.mask = 1023
        self.last[0].text = self.last[1].text = NULL
        self.places = <Name*>calloc(self.mask + 1, sizeof(Name))
        if self.places is NULL:
            raise MemoryError
        return 0

    cdef int32_t number_of(self, const uint8_t* text, int32_t length, int column) except -1 nogil:
        cdef Name* last = &self.last[column]
        cdef Name* place
        cdef uint64_t hashed
        if last.text is not NULL and last.length == length and memcmp(last.text, text, length) == 0:
            return last.number
        hashed = hash_of(text, length)
        place = self.find(hashed, text, length)
        if place.text is NULL:
            with gil:
                place = self.learn(place, hashed, text, length)
        last[0] = place[0]
        return place.number

    cdef Name* find(self, uint64_t hashed, const uint8_t* text, int32_t length) noexcept nogil:
        """Where it is, or the free place for it."""
        cdef Py_ssize_t at = <Py_ssize_t>(hashed & <uint64_t>self.mask)
        cdef Name* place
        while True:
            place = self.places + at
            if place.text is NULL:
                return place
            if place.hashed == hashed and place.length == length and memcmp(place.text, text, length) == 0:
                return place
            at = (at + 1) & self.mask

    cdef Name* learn(self, Name* place, uint64_t hashed, const uint8_t* text, int32_t length) except NULL:
        cdef bytes name = PyBytes_FromStringAndSize(<const char*>text, length)
        if 2 * len(self.known) >= self.mask:
            self.grow()
            place = self.find(hashed, text, length)
        place.text = <const uint8_t*>PyBytes_AS_STRING(name)
        place.hashed = hashed
        place.length = length
        place.number = <int32_t>len(self.known)
        self.known.append(name)
        return place

    cdef int grow(self) except -1:
        cdef Name* before = self.places
        cdef Py_ssize_t at, count = self.mask + 1
        cdef Name* larger = <Name*>calloc(2 * count, sizeof(Name))
        if larger is NULL:
            raise MemoryError
        self.places, self.mask = larger, 2 * count - 1
        for at in range(count):
            if before[at].text is not NULL:
                self.find(before[at].hashed, before[at].text, before[at].length)[0] = before[at]
        free(before)
        return 0
