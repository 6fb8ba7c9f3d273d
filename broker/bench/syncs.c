/*
 * Counts how often a process makes the disk keep something: fsync(2) and fdatasync(2). Loaded before libc (LD_PRELOAD)
 * into daemons and applications of a benchmark; each keeps its count, eight bytes, in a file named by its process id in
 * the directory BROKER_BENCH_SYNCS, mapped into memory, so that others read it while it grows.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t *count;
static pid_t owner;

static void note(void)
{
    if (owner != getpid()) { /* the first time, or a forked child */
        char name[4096];
        const char *directory = getenv("BROKER_BENCH_SYNCS");
        owner = getpid();
        count = NULL;
        if (directory == NULL || snprintf(name, sizeof name, "%s/%d", directory, (int)owner) >= (int)sizeof name)
            return;
        int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0)
            return;
        if (ftruncate(file, sizeof *count) == 0)
            count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (count == MAP_FAILED)
            count = NULL;
        close(file);
    }
    if (count != NULL)
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
}

static int counted(const char *name, int file)
{
    int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    note();
    return call(file);
}

int fsync(int file) { return counted("fsync", file); }

int fdatasync(int file) { return counted("fdatasync", file); }
