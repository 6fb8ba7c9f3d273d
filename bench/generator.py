"""
The load generator as a child process: a program in C, compiled when a benchmark starts. `generator.c` has its
arguments and the lines that it reads.
"""

import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from broker.errors import BrokerError
from broker.protocol.frame import Header, Hello, encode_dialog, encode_link
from broker.protocol.layout import Flag, FrameKind

PREFIX = ("setpriv", "--pdeathsig", "KILL")  # of a command: it ends with this process, however that ends

# --- traffic ---
# The traffic of the load generator: frames of one length, made once, and a HELLO for each of its connections.
#
# Frames to one service belong to one conversation; all frames together have different message ids and sequence
# numbers, because a gateway drops a copy of a frame that it still holds.


STAMP_BYTES = 8  # of the body, where the generator writes when the message was due
SET_BYTES = 2 * 1024 * 1024  # of different frames, at least: about what stays in the processor's own cache
FRAMES_A_CONNECTION = 10  # at least: what one of a thousand connections brings in one read
HEARTBEAT_MS = 3_600_000  # the generator sends nothing while it waits for its next command


@dataclass(frozen=True, slots=True)
class Traffic:
    """Frames of `frame_bytes` each, with the stamp at `stamp_at` in each; and greetings of `greeting_bytes` each."""

    frames: bytes
    frame_bytes: int
    stamp_at: int
    greetings: bytes
    greeting_bytes: int


def service_names(count: int) -> list[str]:
    """Return names of services, all equally long; `count` is 1 .. 1,000,000."""
    return [f"//bench/service-{number:06d}" for number in range(count)]


def traffic(services: Sequence[str], payload: int, *, connections: int, listeners: int) -> Traffic:
    """
    Make frames to these services, equally many to each, in random order.

    The payload is in bytes, at least `STAMP_BYTES`; the names are of equal length.
    """
    sample = len(_frames(services[:1], payload, 1)[0])
    wanted = max(SET_BYTES // sample, connections * FRAMES_A_CONNECTION, len(services))
    made = _frames(services, payload, -(-wanted // len(services)) * len(services))
    greetings = [hello() for _ in range(connections + listeners)]
    return Traffic(b"".join(made), sample, sample - payload, b"".join(greetings), len(greetings[0]))


def frames(services: Sequence[str], payload: int, *, count: int) -> bytes:
    """Return `count` different frames to these services, one after the other; `payload` is in bytes."""
    return b"".join(_frames(services, payload, count))


def hello() -> bytes:
    """Return the HELLO of an unknown peer without addresses, which may stay silent for hours."""
    return encode_link(
        Hello(instance=uuid4().bytes, arbitration=uuid4().bytes, name="bench", heartbeat_ms=HEARTBEAT_MS)
    )


def _frames(services: Sequence[str], payload: int, count: int) -> list[bytes]:
    body = os.urandom(payload)
    ends = [(service, uuid4().bytes, uuid4().bytes) for service in services]
    sender = uuid4().bytes
    order = [ends[number % len(ends)] for number in range(count)]
    random.Random(7).shuffle(order)
    return [
        encode_dialog(
            Header(
                kind=FrameKind.MESSAGE,
                flags=Flag.LAST_FRAGMENT,
                message_id=(number + 1).to_bytes(16, "big"),
                conversation_id=conversation,
                to_service=service,
                from_service="//bench/initiator",
                from_broker_instance=sender,
                to_broker_instance=instance,
                sequence_number=number,
            ),
            body,
        )
        for number, (service, conversation, instance) in enumerate(order)
    ]


SOURCE = Path(__file__).with_name("generator.c")
COMPILERS = ("cc", "gcc", "clang")
WITH_TLS = "generator-tls"

Answer = dict[str, float]
"""Of one line: messages, seconds, cpu_seconds of the generator; of `ping` and `rate` also p50_us, p99_us, p999_us; of
`offer` besides what `generator.c` says there."""


class GeneratorError(BrokerError):
    """The load generator could not be made, or ended in the middle."""


def compiler() -> str | None:
    """The C compiler of this machine: `CC`, or the first one there is."""
    return os.environ.get("CC") or next(filter(None, map(shutil.which, COMPILERS)), None)


def make_generator(directory: Path) -> Sequence[str]:
    """
    Compile the generator into `directory`; its command.

    Raises:
        GeneratorError: there is no compiler, or it failed; has what it said.
    """
    c_compiler = compiler()
    if c_compiler is None:
        raise GeneratorError(f"load generator: no C compiler ({', '.join(COMPILERS)}): install one, or set CC")
    for program, flags, libraries in (
        (directory / WITH_TLS, ["-DWITH_TLS"], ["-lssl", "-lcrypto"]),  # needs headers that many machines lack
        (directory / "generator", [], []),
    ):
        command = [c_compiler, "-O2", *flags, "-o", str(program), str(SOURCE), *libraries]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise GeneratorError(f"load generator: {c_compiler} does not run: {error.strerror}; set CC") from error
        if not done.returncode:
            return (str(program),)
    raise GeneratorError(f"load generator: {c_compiler} cannot compile {SOURCE}: {done.stderr.strip()}")


def speaks_tls(command: Sequence[str]) -> bool:
    """Whether this generator has TLS."""
    return Path(command[0]).name == WITH_TLS


def can_speak_tls() -> bool:
    """Whether the generator that is made on this machine has TLS; raises GeneratorError when none can be made."""
    with tempfile.TemporaryDirectory() as directory:
        return speaks_tls(make_generator(Path(directory)))


class Generator:
    """
    A running load generator, connected to the hop. Use as a context manager.

    Args:
        port: Port of the hop on 127.0.0.1.
        listen: The ports to which the hop sends on.
        is_greeting: If False, no connection sends a HELLO.
        pair: Certificate and key when it speaks TLS.
        is_sleeping: Whether it shares its core.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        traffic: Traffic,
        *,
        port: int,
        connections: int,
        listen: Sequence[int],
        is_greeting: bool,
        pair: tuple[Path, Path] | None = None,
        is_sleeping: bool = False,
    ) -> None:
        frames, greetings = directory / "frames", directory / "greetings"
        frames.write_bytes(traffic.frames)
        greetings.write_bytes(traffic.greetings)
        arguments = ["-p", port, "-c", connections, "-f", frames, "-s", traffic.frame_bytes, "-t", traffic.stamp_at]
        if is_greeting:
            arguments += ["-g", greetings, "-n", traffic.greeting_bytes]
        if pair is not None:
            arguments += ["-e", pair[0], "-k", pair[1]]
        if is_sleeping:
            arguments.append("-w")
        self._process = subprocess.Popen(
            [*PREFIX, *command, *map(str, arguments), *map(str, listen)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        try:
            self._answer()
        except GeneratorError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def flood(self, count: int) -> Answer:
        """So many messages as fast as the hop takes them."""
        return self._ask(f"flood {count}")

    def rate(self, count: int, hertz: float) -> Answer:
        """So many messages, one every 1 / `hertz` seconds, whatever becomes of the earlier ones."""
        return self._ask(f"rate {count} {hertz}")

    def ping(self, count: int) -> Answer:
        """So many messages, one in flight."""
        return self._ask(f"ping {count}")

    @contextmanager
    def offering(self, seconds: float, hertz: float, *, limit: float, rest: float = 0.0) -> Iterator[Answer]:
        """
        Run an open loop for `seconds`, in which the caller does its own work.

        The loop accepts refusals: a message that is due while 16 KiB wait for its socket is refused and never sent.

        Args:
            seconds: How long messages are due.
            hertz: How many in each of them.
            limit: Seconds within which an arrival is in time.
            rest: Seconds it goes on listening at most, until all has arrived or nothing comes.

        Returns:
            A dictionary that is empty inside the context, and after it has what `generator.c` reports for this line.

        Raises:
            GeneratorError: it has ended; contains what it said.
        """
        answer: Answer = {}
        self._say(f"offer {seconds} {hertz} {limit * 1e6:.0f} {rest * 1e3:.0f}")
        yield answer
        answer |= self._answer()

    def offer(self, seconds: float, hertz: float, *, limit: float, rest: float = 0.0) -> Answer:
        """As `offering`, and wait for it."""
        with self.offering(seconds, hertz, limit=limit, rest=rest) as answer:
            pass
        return answer

    def throttle(self, bytes_s: int) -> None:
        """From now on read so much a second from the last port; 0 is as much as there is."""
        self._ask(f"throttle {bytes_s}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, line: str) -> Answer:
        self._say(line)
        return self._answer()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; what it said before is the answer
            self._process.stdin.write(line + "\n")

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise GeneratorError(self._process.stderr.read().strip() or "the load generator ended without a word")
        answer: Answer = json.loads(line)
        return answer
