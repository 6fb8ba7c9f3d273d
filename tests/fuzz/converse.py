"""
Whole conversations with a daemon that anybody speaks to, while a neighbour goes on with its sealed dialog.

    python -m tests.fuzz.converse --seconds 600

Each is made from a number (`tests.fuzz.spoken`). Whatever was said: what comes back is whole frames, HELLO first; PONGs
are those of the PINGs, in their order; a link ends with FATAL where the protocol says so, with one of the codes it
names, and else not at all; advice is about frames that were sent, and names a disposition; nothing is acknowledged that
was not said, and no dialog is invented. What was found is told with its number, and the exit code is 1; the daemons'
directories stay then. `--from` says where to begin, so a finding can be tried again.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from broker.errors import PeerError
from broker.flow import NUMBER
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import (
    Fatal,
    Fault,
    Hello,
    Ping,
    Pong,
    Rejected,
    decode_dialog,
    decode_fault,
    decode_link,
    encode_link,
)
from broker.protocol.layout import FIRST_DIALOG_KIND, Flag, FrameKind
from examples.demo.topology import Topology, wait_for
from tests.fuzz.spoken import SILENT, STEADY, Aim, Line, Script, script_of
from tests.support.identities import identity_files
from tests.support.loopback import service
from tests.support.traffic import Traffic

LINGER_SECONDS = 0.15  # three times that after which a lone message is acknowledged
FAULTS = frozenset({-8408, -8428, -8430, -8437, -8457, -8462, -8470, -8490, -8494, -8495, -8498, -9616})
CODES = frozenset(NUMBER.values())
_AT_ONCE = struct.pack("ii", 1, 0)


class WrongAnswerError(AssertionError):
    """What came back is not what the protocol says."""


@dataclass(slots=True)
class Heard:
    """What came over one link. Shape: `was_reset` when the end of it may be lost."""

    data: bytearray = field(default_factory=bytearray)
    was_reset: bool = False


class _Link:
    """One connection of a script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = Heard()
        self.writer = writer
        self._reader = reader
        self._news = asyncio.Event()
        self._hearing = asyncio.get_running_loop().create_task(self._hear())

    async def _hear(self) -> None:
        try:
            while data := await self._reader.read(65_536):
                self.heard.data += data
                self._news.set()
        except ConnectionError:
            self.heard.was_reset = True
        self._news.set()

    async def say(self, data: bytes, any_: random.Random) -> None:
        """In as many pieces as it pleases; a link that has ended hears nothing any more."""
        if len(data) > 1 and any_.random() < 0.3:
            cut = any_.randint(1, len(data) - 1)
            self.writer.write(data[:cut])
            await asyncio.sleep(0)
            data = data[cut:]
        self.writer.write(data)
        await asyncio.sleep(0)

    async def until(self, word: bytes) -> None:
        """Until this has come, or the end."""
        async with asyncio.timeout(SECONDS):
            while word not in self.heard.data and not self._hearing.done():
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        """Until the other side has closed."""
        async with asyncio.timeout(SECONDS):
            await self._hearing

    async def linger(self) -> None:
        """Long enough for what is answered once it is stored; that it comes is nobody's promise."""
        await asyncio.wait({self._hearing}, timeout=LINGER_SECONDS)

    def leave(self, *, at_once: bool) -> None:
        if at_once:
            sock: socket.socket = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._hearing.cancel()
        self.writer.transport.abort()


async def speak(script: Script, host: str, port: int, any_: random.Random) -> dict[int, Heard]:
    """
    Say all of it, and hear until each link has had its last word.

    Returns:
        What came, by link.

    Raises:
        TimeoutError: a link neither ends nor answers.
    """
    links: dict[int, _Link] = {}
    last: dict[int, Line] = {}
    try:
        for line in script.lines:
            if line.link not in links:
                links[line.link] = _Link(*await asyncio.open_connection(host, port))
            last[line.link] = line
            await links[line.link].say(line.data, any_)
        for number, link in links.items():
            await _finish(script, number, link, last[number], any_)
    finally:
        for link in links.values():
            link.leave(at_once=any_.random() < 0.5)
    return {number: link.heard for number, link in links.items()}


async def _finish(script: Script, number: int, link: _Link, line: Line, any_: random.Random) -> None:
    if line.ends:
        await link.end()
    elif line.is_last or number in script.leaving or number in script.restless:
        if not link.writer.is_closing() and any_.random() < 0.7:
            link.writer.write_eof()
            await link.end()
    else:
        payload = any_.randbytes(8)
        script.pings[number].append(payload)
        await link.say(encode_link(Ping(payload)), any_)
        await link.until(encode_link(Pong(payload)))
        if any_.random() < 0.3:
            await link.linger()


def judge(script: Script, answers: dict[int, Heard]) -> Counter[str]:
    """
    Hold what was heard to the protocol.

    Returns:
        What it was, counted.

    Raises:
        WrongAnswerError: it says where.
    """
    last = {line.link: line for line in script.lines}
    counts: Counter[str] = Counter(conversations=1, links=len(answers), frames=len(script.lines))
    for number, heard in answers.items():
        try:
            counts += _judge_link(script, number, heard, last[number])
        except (AssertionError, PeerError) as error:
            raise WrongAnswerError(f"link {number}: {type(error).__name__}: {error}") from error
    return counts


def _judge_link(script: Script, number: int, heard: Heard, last: Line) -> Counter[str]:
    decoder = FrameDecoder(1 << 24)
    frames = [bytes(frame) for frame in decoder.feed(bytes(heard.data))]
    decoder.feed(b"")  # tells what is wrong behind the frames that were whole
    is_quiet = bool(last.ends or last.is_last or number in script.leaving or number in script.restless)
    was_left = is_quiet and not last.ends  # perhaps before the answer came
    assert frames or heard.was_reset or was_left, "nothing was said, not even HELLO"
    assert not frames or frames[0][4] == FrameKind.HELLO, "HELLO does not come first"
    counts: Counter[str] = Counter()
    messages = [decode_link(frame) for frame in frames if frame[4] < FIRST_DIALOG_KIND]
    for frame in frames:
        counts[f"heard kind 0x{frame[4]:02x}"] += 1
        if frame[4] >= FIRST_DIALOG_KIND:
            _judge_dialog(script, frame)
    assert sum(isinstance(one, Hello) for one in messages) <= 1, "HELLO twice"
    for one in messages:
        if isinstance(one, Rejected):
            assert one.code in CODES, f"advice of no disposition: {one}"
            assert one.message in script.messages or not any(one.message), f"advice about what was not said: {one}"
            counts[f"REJECTED {one.code}"] += 1
    pongs = [one.payload for one in messages if isinstance(one, Pong)]
    assert pongs == script.pings[number][: len(pongs)], "PONG without its PING, or out of order"
    fatals = [one for one in messages if isinstance(one, Fatal)]
    allowed = last.ends | ({SILENT} if number in script.restless else set())
    for one in fatals:
        assert one is messages[-1], "something follows FATAL"
        assert one.code in allowed, f"{one}; what was said allows {sorted(allowed)}"
        counts[f"FATAL {one.code}"] += 1
    if last.ends and not heard.was_reset and number not in script.leaving:  # one that leaves may be closed before
        assert fatals, f"no FATAL, and {sorted(last.ends)} was due"
    elif not is_quiet and not heard.was_reset:
        assert pongs == script.pings[number], "a PING without its PONG"
    assert is_quiet or not heard.was_reset, "the link was reset, and nothing was wrong with it"
    return counts


def _judge_dialog(script: Script, frame: bytes) -> None:
    header, body = decode_dialog(frame)
    assert header.conversation_id in script.dialogs, f"a dialog of nobody: {header}"
    # An error answers whatever side a frame said it was of; all else is of the target.
    assert header.flags & Flag.FROM_TARGET or header.kind == FrameKind.FAULT, f"it is no answer: {header}"
    said = script.sent.get(header.conversation_id, (0, 0))
    assert (header.ack_sequence, header.ack_fragment) <= said, f"it acknowledges what was not said, {said}: {header}"
    if header.kind == FrameKind.FAULT:
        fault: Fault = decode_fault(body)
        assert fault.code in FAULTS, f"an undocumented error: {fault}"


SECONDS = 60.0  # for what is due
AT_ONCE = 8  # conversations
ORDERS, BILLING = "//shop/Orders", "//shop/Billing"


class Stage:
    """
    The daemons. Shape: `here` is spoken to; `there` is the neighbour; `told` what was heard, counted; `steady` what the
    neighbour goes on with meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        self.told: Counter[str] = Counter()
        self._net = net = Topology(directory / "net")
        keys = directory / "keys"
        plain = {"encryption": "disabled", "authentication": "none"}
        billing = {"databases.billing": identity_files(keys, "billing", "orders"), "endpoint": plain}
        orders = {"databases.orders": identity_files(keys, "orders", "billing"), "endpoint": plain}
        self.here = net.add("here", forwarding=True, databases=["billing"], settings=billing)
        self.there = net.add("there", databases=["orders"], settings=orders)
        routes = f"CREATE ROUTE Orders WITH SERVICE_NAME = '{ORDERS}', ADDRESS = '{self.there.address}';"
        transport = "CREATE ROUTE Transport WITH ADDRESS = 'TRANSPORT';"
        net.script("here", "msdb", f"{routes}\n{transport}")
        services = "".join(f"CREATE QUEUE {q}; CREATE SERVICE [{s}] ON QUEUE {q} ([DEFAULT]);\n" for q, s in _SERVICES)
        grants = f"GRANT SEND ON SERVICE::[{BILLING}] TO [public]; GRANT SEND ON SERVICE::[{STEADY}] TO [CN=orders];\n"
        net.script("here", "billing", services + grants + routes + transport)
        route = f"CREATE ROUTE Steady WITH SERVICE_NAME = '{STEADY}', ADDRESS = '{self.here.address}';"
        binding = f"CREATE REMOTE SERVICE BINDING Steady TO SERVICE '{STEADY}' WITH USER = [billing];"
        net.script("there", "orders", f"{service(ORDERS)}{route}\n{binding}")
        files = self.there.directory / "orders.db", [self.here.directory / "billing.db"]
        self.steady = Traffic(*files, from_service=ORDERS, to_service=STEADY, queue="Inbox", dialogs=1)

    def __enter__(self) -> Self:
        self._net.__enter__()
        self._net.start()
        self.steady.start()
        self.steady.goes_on(3)
        (row,) = self.there.query("SELECT conversation_id, far_broker_instance FROM sys.conversation_endpoints")
        (own,) = self.there.query("SELECT service_broker_guid FROM sys.databases WHERE name = 'orders'")
        ids = [_guid(row["conversation_id"]), _guid(row["far_broker_instance"]), _guid(own["service_broker_guid"])]
        self.aim = Aim(BILLING, ids[1], ids[0], ids[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.steady.close()
        self._net.__exit__(kind, error, trace)

    @property
    def rss(self) -> int:
        """Bytes of the daemon that is spoken to."""
        return int(psutil.Process(self.here.pid).memory_info().rss)

    def converse(self, numbers: Iterable[int]) -> None:
        """
        Say the scripts of these numbers, several at a time, and judge the answers.

        Raises:
            WrongAnswerError: it names the number.
        """
        asyncio.run(self._converse(iter(numbers)))

    async def _converse(self, numbers: Iterator[int]) -> None:
        async def one_after_another() -> None:
            for number in numbers:  # shared: each takes the next
                script = script_of(number, self.aim)
                try:
                    heard = await speak(script, "127.0.0.1", self.here.port, random.Random(f"voice {number}"))
                    self.told += judge(script, heard)
                except (WrongAnswerError, OSError, TimeoutError) as error:
                    raise WrongAnswerError(f"conversation {number}: {type(error).__name__}: {error}") from error

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one_after_another())

    def check(self) -> None:
        """What the neighbour sent came once and in order; both serve, account for every frame, and logged no fault."""
        self.steady.finish()
        assert not self.steady.faults(), f"the neighbour's dialog was disturbed: {self.steady.faults()}"
        wait_for(lambda: len(self.here.status()["connections"]) <= 2, seconds=SECONDS, what="every link ended")
        for daemon in (self.here, self.there):
            status = daemon.status()
            assert (True, 0) == (status["ready"], status["forwarding"]["unaccounted"]), daemon.name
            faults = [line for line in daemon.log.read_text().splitlines() if _is_fault(line)]
            assert not faults, f"{daemon.name}: {faults[:3]}"


_SERVICES = (("Billing", BILLING), ("Inbox", STEADY))


def _is_fault(line: str) -> bool:
    return '"level":"error"' in line or '"level":"critical"' in line or "Traceback" in line


def _guid(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


BATCH = 100  # conversations between two looks at the neighbour
WARM = 1000  # conversations after which the daemon is as large as it gets
GROWTH_MAX = 32 * 1024 * 1024


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="about so long; default %(default)s")
    parser.add_argument("--from", dest="first", type=int, default=int(time.time()), help="the first number")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="broker-conversations-"))
    try:
        _run(directory, arguments.first, arguments.seconds)
    except (AssertionError, ExceptionGroup) as error:
        found = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        sys.stdout.write(f"finding: {found}; logs and files are in {directory}\n")
        return 1
    shutil.rmtree(directory)
    return 0


def _run(directory: Path, first: int, seconds: int) -> None:
    deadline = time.monotonic() + seconds
    with Stage(directory) as stage:
        warm = 0
        for batch in itertools.count():
            begin = first + batch * BATCH
            stage.converse(range(begin, begin + BATCH))
            stage.steady.goes_on(5)
            if (batch + 1) * BATCH <= WARM:
                warm = stage.rss
            elif stage.rss > warm + GROWTH_MAX:
                raise AssertionError(f"{stage.rss >> 20} MiB, and {warm >> 20} MiB after {WARM} conversations")
            if time.monotonic() > deadline:
                break
        stage.check()
        told = dict(sorted(stage.told.items()))
        sys.stdout.write(f"from number {first}: {told}\n")
        count = stage.steady.answered
        sys.stdout.write(f"the neighbour's messages: {count} each way, all of them once and in order\n")
        early = min(WARM, stage.told["conversations"])
        sys.stdout.write(f"the daemon: {warm >> 20} MiB after {early} conversations, {stage.rss >> 20} MiB at last\n")


if __name__ == "__main__":
    sys.exit(main())
