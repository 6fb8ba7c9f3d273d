"""
Where the frames of one walk lead. Included by `compiled_kernel.pyx`.

The loop notes each run in C. At the end every sink gets one buffer: a slice of the slab where its frames were
neighbours, else a copy of all of them, which its one write would have to make anyway.
"""

cdef enum:
    FIRST_RUNS = 64

cdef uint32_t NO_RUN = UINT32_MAX


cdef struct Run:
    Py_ssize_t start
    Py_ssize_t stop
    uint32_t next  # of the same sink


cdef struct SinkRuns:
    Py_ssize_t size  # of all its runs
    uint32_t first
    uint32_t last
    uint32_t runs


cdef class Runs:
    """Where the frames of one walk lead, by sink, in the order of arrival. The numbers of sinks outlive a walk."""

    cdef Run* runs
    cdef uint32_t count
    cdef uint32_t room
    cdef SinkRuns* by_sink
    cdef list sinks
    cdef dict numbers
    cdef list touched  # numbers of the sinks that have runs

    def __cinit__(self):
        self.sinks = []
        self.numbers = {}
        self.touched = []

    def __dealloc__(self):
        free(self.runs)
        free(self.by_sink)

    cdef int forget(self) except -1:
        """Nobody remembers a number of a sink any more, and there are no runs."""
        self.begin()
        self.sinks = []
        self.numbers = {}
        return 0

    cdef int begin(self) except -1:
        """There are no runs."""
        for sink in self.touched:
            self.by_sink[<uint32_t>sink].runs = 0
        self.touched = []
        self.count = 0
        return 0

    cdef uint32_t number_of(self, object sink) except? 4294967295:
        number = self.numbers.get(sink)
        if number is None:
            number = len(self.sinks)
            self.by_sink = <SinkRuns*>grown(self.by_sink, (number + 1) * sizeof(SinkRuns))
            memset(&self.by_sink[<uint32_t>number], 0, sizeof(SinkRuns))
            self.sinks.append(sink)
            self.numbers[sink] = number
        return number

    cdef int add(self, uint32_t sink, Py_ssize_t start, Py_ssize_t stop) except -1:
        """A run for a sink."""
        cdef SinkRuns* mine = &self.by_sink[sink]
        if mine.runs != 0 and self.runs[mine.last].stop == start:
            self.runs[mine.last].stop = stop
            mine.size += stop - start
            return 0
        if self.count == self.room:
            self.runs = <Run*>grown(self.runs, (2 * self.room + FIRST_RUNS) * sizeof(Run))
            self.room = 2 * self.room + FIRST_RUNS
        self.runs[self.count].start = start
        self.runs[self.count].stop = stop
        self.runs[self.count].next = NO_RUN
        if mine.runs == 0:
            self.touched.append(sink)
            mine.first = self.count
            mine.size = 0
        else:
            self.runs[mine.last].next = self.count
        mine.last = self.count
        mine.runs += 1
        mine.size += stop - start
        self.count += 1
        return 0

    cdef int hand_out(self, object batch, object view, const uint8_t* slab) except -1:
        """Each sink gets one buffer."""
        cdef SinkRuns* mine
        for number in self.touched:
            mine = &self.by_sink[<uint32_t>number]
            if mine.runs == 1:
                run = view[self.runs[mine.first].start : self.runs[mine.first].stop]
            else:
                run = self.gathered(mine, slab)
            sink = self.sinks[<uint32_t>number]
            (<list>batch.touched).append(sink)
            (<list>sink.runs).append(run)
        return 0

    cdef bytes gathered(self, SinkRuns* mine, const uint8_t* slab):
        """All runs of a sink in one piece."""
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, mine.size)
        cdef char* to = PyBytes_AS_STRING(whole)
        cdef uint32_t number = mine.first
        cdef Run* run
        while number != NO_RUN:
            run = &self.runs[number]
            memcpy(to, slab + run.start, run.stop - run.start)
            to += run.stop - run.start
            number = run.next
        return whole
