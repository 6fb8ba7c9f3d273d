"""
One host: where its files are, how processes are started on it, and what can be done to it.

Its memory is a control group, version 1, below the harness's own; pages of files count as well. Beyond the limit the
kernel first gives up those that are written, and then kills a process of the group. Its clock is a small library,
`wall_clock.c`, before libc in every process started with its `words`: it adds an offset that it reads from a mapped
file to the wall clock alone. Debian's libfaketime 0.9.10 does not do: under it Python's `time.sleep` fails (issue 426).
"""

import ctypes
import errno
import os
import re
import resource
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

from bench.generator import compiler
from tests.chaos.network.impairment import ImpossibleError
from tests.chaos.network.removal import CONTROL_GROUPS, run


class Descriptors:
    """The limit of one process. Shape: the soft limit alone is changed; what is open stays open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._former = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    @property
    def is_lowered(self) -> bool:
        """Whether it has another limit than in the beginning. Raises ProcessLookupError."""
        return resource.prlimit(self._pid, resource.RLIMIT_NOFILE) != self._former

    def exhaust(self, *, spare: int) -> None:
        """Leave it room for `spare` more than it has now: whoever wants more gets EMFILE. Raises ProcessLookupError."""
        taken = {int(entry.name) for entry in Path(f"/proc/{self._pid}/fd").iterdir()}
        free = (number for number in count() if number not in taken)
        limit = next(islice(free, spare, None))
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, (limit, self._former[1]))

    def restore(self) -> None:
        """As it was."""
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._former)


BALLAST = "ballast"
LARGEST_STEP = 1 << 20  # bytes


class Disk:
    """Shape: `directory` where it is mounted, hiding what was there."""

    words: tuple[str, ...] = ()

    def __init__(self, directory: Path, size: int, *, source: str) -> None:
        """
        Args:
            directory: Exists.
            size: Bytes that fit.
            source: What /proc/mounts shall call it; begins with the tag of the network.

        Raises:
            NetworkError: it could not be mounted.
        """
        self.directory = directory
        run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", source, str(directory))

    @property
    def free_bytes(self) -> int:
        """What is left."""
        told = os.statvfs(self.directory)
        return told.f_bavail * told.f_frsize

    def fill(self) -> None:
        """Fill it: a write is ENOSPC. Again: takes what has become free since."""
        with (self.directory / BALLAST).open("ab") as ballast:
            while (room := self.free_bytes) > 0:
                size = min(room, LARGEST_STEP)
                try:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, size)
                except OSError as error:  # somebody was faster
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give back what was filled."""
        (self.directory / BALLAST).unlink(missing_ok=True)


UNLIMITED = -1
LEAST_UNLIMITED = 1 << 60  # bytes; what the kernel says of a group without a limit is above


class Memory:
    """The memory of one host."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: Of the control group; begins with the tag of the network.

        Raises:
            ImpossibleError: there is no memory controller of version 1 that this process may write.
        """
        self._group = _own() / name
        try:
            self._group.mkdir()
        except OSError as error:
            raise ImpossibleError(f"no control group for memory: {error}") from error

    @property
    def words(self) -> tuple[str, ...]:
        """Words before a command whose process belongs to the host."""
        return ("sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self._group / "cgroup.procs"))

    def limit(self, size: int | None) -> None:
        """
        At most so many bytes from now on, None = as many as there are.

        Raises:
            OSError: EBUSY, more is in use and cannot be given up.
        """
        (self._group / "memory.limit_in_bytes").write_text(str(UNLIMITED if size is None else size), encoding="ascii")

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit now."""
        return int((self._group / "memory.limit_in_bytes").read_text(encoding="ascii")) < LEAST_UNLIMITED

    @property
    def used(self) -> int:
        """Bytes that the host has now, pages of files among them."""
        return int((self._group / "memory.usage_in_bytes").read_text(encoding="ascii"))


def _own() -> Path:
    """The group of this process; the root where it is not to be seen, as in a container."""
    found = re.search(r"^\d+:memory:/(.*)$", Path("/proc/self/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    own = CONTROL_GROUPS / found.group(1) if found else CONTROL_GROUPS
    return own if own.is_dir() else CONTROL_GROUPS


SOURCE = Path(__file__).with_name("wall_clock.c")
LIBRARY = "wall_clock.so"
NANOSECONDS = 1_000_000_000


class Clock:
    """Shape: `offset` seconds that the wall clock of the host is ahead; negative = behind."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: The file that holds the offset; made here, and beside it the library, once for a directory.

        Raises:
            ImpossibleError: there is no C compiler.
            NetworkError: the compiler failed; with what it said.
        """
        self.offset = 0.0
        self._path = path
        self._library = path.with_name(LIBRARY)
        path.write_bytes(bytes(8))
        if not self._library.exists():
            c_compiler = compiler()
            if c_compiler is None:
                raise ImpossibleError("no C compiler for a clock; set CC")
            run(c_compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl")

    @property
    def words(self) -> tuple[str, ...]:
        """Words before a command whose clock this is to be."""
        return ("env", f"LD_PRELOAD={self._library}", f"BROKER_TEST_CLOCK={self._path}")

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back; adds to what was done before."""
        self.offset += seconds
        with self._path.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", round(self.offset * NANOSECONDS)))

    def restore(self) -> None:
        """The time of the system again."""
        self.step(-self.offset)


P = TypeVar("P", Disk, Memory, Clock)
NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET of <sched.h>
DYING_SECONDS = 10.0


@dataclass(eq=False)
class Host:
    """
    Made by `Network.host`.

    Shape: `name` as asked for; `address` its IPv4 address; `directory` holds its files, and is its disk if it has one.
    """

    name: str
    address: str
    directory: Path
    namespace: Path | None = None
    parts: Sequence[Disk | Memory | Clock] = ()
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def part(self, kind: type[P]) -> P:
        """Its disk, its memory or its clock, if the network can, and it was asked for."""
        return next(one for one in self.parts if isinstance(one, kind))

    @property
    def words(self) -> tuple[str, ...]:
        """
        Words before a command that make its process one of this host; each replaces itself by the next, so the process
        is the command's own.
        """
        entering = () if self.namespace is None else ("nsenter", f"--net={self.namespace}", "--")
        return (*entering, *(word for one in self.parts for word in one.words))

    def popen(self, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        """
        Start a process on this host; `how` as `subprocess.Popen` has it.

        It is killed and reaped when the network closes.
        """
        process = subprocess.Popen([*self.words, *command], **how)
        self._processes = [other for other in self._processes if other.poll() is None] + [process]
        return process

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile belong to the host, and go on doing so afterwards."""
        if self.namespace is None:
            yield
            return
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            there = os.open(self.namespace, os.O_RDONLY)
            try:
                _enter(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    def end(self) -> None:
        """Kill and reap the processes that were started with `popen`."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait(DYING_SECONDS)


def _enter(namespace: int) -> None:
    """Into a network namespace, this thread alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, NETWORK_NAMESPACE):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
