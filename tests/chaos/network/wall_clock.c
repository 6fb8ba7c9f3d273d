/*
 * A wall clock that is ahead of the system's, or behind, by what a file says; it may change at any moment. Loaded before
 * libc (LD_PRELOAD) into the processes of one host. The file, named by BROKER_TEST_CLOCK, holds nanoseconds, eight bytes
 * of this machine's order; it is mapped into memory, so that a step is seen by the next question for the time.
 *
 * CLOCK_REALTIME, its coarse form and what is made of it are answered differently: clock_gettime(2), gettimeofday(2),
 * time(2), timespec_get(3). Everything else is left alone: monotonic clocks, sleeps, waits, times of files.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const int64_t none;
static const int64_t *ahead;
static int (*ask)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void)
{
    if (ask != NULL)
        return;
    const int64_t *found = MAP_FAILED;
    const char *name = getenv("BROKER_TEST_CLOCK");
    int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        found = mmap(NULL, sizeof *found, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    ahead = found == MAP_FAILED ? &none : found;
    ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    open_clock(); /* somebody else's constructor may have been faster */
    int failed = ask(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t told = now->tv_sec * SECOND + now->tv_nsec + __atomic_load_n(ahead, __ATOMIC_RELAXED);
        now->tv_sec = told / SECOND;
        now->tv_nsec = told % SECOND;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec told;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &told);
    if (!failed) {
        now->tv_sec = told.tv_sec;
        now->tv_usec = told.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *where)
{
    struct timespec told;
    if (clock_gettime(CLOCK_REALTIME, &told))
        return -1;
    if (where != NULL)
        *where = told.tv_sec;
    return told.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}
