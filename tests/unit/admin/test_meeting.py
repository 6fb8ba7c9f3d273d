"""Two sides of a pairing meet: whoever has the token, whoever has not, and whoever comes too late."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from broker.admin.meeting import ALPN, MESSAGE_MAX, STRANGERS_MAX, Channel, Invitation, accepted, invited
from broker.control.renewal import Pair
from broker.errors import PairingError
from broker.security.identity import parse_peers
from broker.security.pairing import Offer, Partner, Token, partner_of
from tests.support.paired import dialog_pair, settings_of

SECRET = b"s" * 32


class Word(msgspec.Struct, frozen=True):
    """Something to say."""

    text: str


def offer_of(name: str, directory: Path) -> tuple[Offer, Pair]:
    settings_of(name, directory / name)
    pair = Pair(directory / name / f"tls/{name}.pem", directory / name / f"tls/{name}.key")
    identity = dialog_pair(name, directory / name).certificate
    offer = Offer(
        name, f"tcp://{name}.example:4022", f"//shop/{name}", pair.certificate.read_text(), identity.read_text()
    )
    return offer, pair


@dataclass
class Inviting:
    """A side that invites, as a task. Shape: `came` the partner; `strangers` those that were turned away."""

    offer: Offer
    pair: Pair
    seconds: float = 30.0
    strangers: list[str] = field(default_factory=list)
    port: asyncio.Future[int] = field(init=False)

    async def run(self) -> tuple[Partner, str, str]:
        """Wait, hear a word, answer it; who came, the number of the meeting and the word."""
        invitation = Invitation("127.0.0.1", 0, self.pair.certificate, self.pair.private_key, SECRET, self.seconds)
        waiting = invited(invitation, self.offer, on_waiting=self.port.set_result, on_stranger=self.strangers.append)
        async with waiting as (channel, partner):
            word = await channel.hear(Word, seconds=10)
            await channel.say(Word(f"you said {word.text}"))
            return partner, channel.number, word.text

    @contextlib.asynccontextmanager
    async def begun(self) -> AsyncIterator[asyncio.Task[tuple[Partner, str, str]]]:
        """Under way; it listens already."""
        self.port = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self.run())
        async with asyncio.timeout(10):
            await self.port
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def token(self) -> Token:
        own = partner_of(self.offer)
        address = self.offer.address
        end = int(time.time()) + 900
        return Token("127.0.0.1", self.port.result(), address, own.certificate, own.identity.fingerprint, SECRET, end)


@pytest.fixture
def orders(tmp_path: Path) -> Inviting:
    return Inviting(*offer_of("orders", tmp_path))


@pytest.fixture
def billing(tmp_path: Path) -> Offer:
    return offer_of("billing", tmp_path)[0]


async def test_both_sides_learn_who_the_other_is_and_talk(orders: Inviting, billing: Offer) -> None:
    async with orders.begun() as task:
        async with accepted(orders.token(), billing) as (channel, partner):
            await channel.say(Word("hello"))
            answer = await channel.hear(Word, seconds=10)
        came, number, word = await task

    assert (orders.offer, billing) == (partner.offer, came.offer)
    assert (channel.number, "hello", "you said hello") == (number, word, answer.text)
    assert [] == orders.strangers


async def test_wrong_secret_is_told_nothing_and_the_invitation_goes_on(orders: Inviting, billing: Offer) -> None:
    async with orders.begun() as task:
        wrong = msgspec.structs.replace(orders.token(), secret=b"t" * 32)
        with pytest.raises(PairingError, match="does not take this token: it is wrong, used or expired"):
            async with accepted(wrong, billing):
                pass
        async with accepted(orders.token(), billing) as (channel, _):
            await channel.say(Word("hello"))
            await channel.hear(Word, seconds=10)
        await task

    assert ["127.0.0.1: it does not have this token, or not in time"] == orders.strangers


async def test_what_a_stranger_hears_is_a_number_and_the_end(orders: Inviting) -> None:
    async with orders.begun():
        reader, writer = await stranger(orders.port.result())
        opening = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.write(b"\0\0\0\x01x")

        rest = await reader.read()
        writer.close()

    assert (1, 32, b"") == (len(msgspec.msgpack.decode(opening)), len(msgspec.msgpack.decode(opening)["nonce"]), rest)


async def test_token_is_good_once(orders: Inviting, billing: Offer) -> None:
    async with orders.begun() as task:
        async with accepted(orders.token(), billing) as (channel, _):
            with pytest.raises(PairingError):
                async with accepted(orders.token(), billing):
                    pass
            await channel.say(Word("hello"))
            await channel.hear(Word, seconds=10)
        await task


async def test_another_certificate_than_the_tokens_is_not_spoken_to(orders: Inviting, billing: Offer) -> None:
    async with orders.begun():
        other = msgspec.structs.replace(orders.token(), certificate=b"c" * 32)

        with pytest.raises(PairingError, match="does not show the certificate that the token names"):
            async with accepted(other, billing):
                pass


async def test_another_database_than_the_tokens_is_refused(orders: Inviting, billing: Offer) -> None:
    async with orders.begun():
        other = msgspec.structs.replace(orders.token(), identity=b"i" * 32)

        with pytest.raises(PairingError, match="says that it is somebody else than the token says"):
            async with accepted(other, billing):
                pass


async def test_offer_that_is_none_ends_the_invitation_with_the_reason(orders: Inviting, billing: Offer) -> None:
    async with orders.begun() as task:
        bad = msgspec.structs.replace(billing, address="nowhere")
        with pytest.raises(PairingError, match="does not take this token"):
            async with accepted(orders.token(), bad):
                pass

        with pytest.raises(PairingError, match="has the token, and then: what 'billing' says of itself is not right"):
            await task


async def test_nobody_comes_in_time(orders: Inviting) -> None:
    async with replace(orders, seconds=0.05).begun() as task:
        with pytest.raises(PairingError, match=r"nobody came within 0\.05 s: make a new token"):
            await task


async def test_nobody_waits_there(orders: Inviting, billing: Offer) -> None:
    async with orders.begun():
        token = orders.token()
    with pytest.raises(PairingError, match="has the invitation ended, or does something between the two block"):
        async with accepted(token, billing):
            pass


async def test_crowd_of_strangers_does_not_keep_the_right_one_out(orders: Inviting, billing: Offer) -> None:
    async with orders.begun() as task:
        crowd = [await stranger(orders.port.result()) for _ in range(3 * STRANGERS_MAX)]
        async with accepted(orders.token(), billing) as (channel, _):
            await channel.say(Word("hello"))
            await channel.hear(Word, seconds=10)
        await task
        for _, writer in crowd:
            writer.close()

    assert 2 * STRANGERS_MAX < len(orders.strangers)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ((MESSAGE_MAX + 1).to_bytes(4, "big"), "says 262145 bytes at once"),
        (b"\0\0\0\x01\x01", "is not understood"),
        (b"\0\0\0\x09abc", "has closed the connection"),
        (b"", "has closed the connection"),
    ],
    ids=["large", "no value", "cut", "nothing"],
)
async def test_what_is_no_value_is_told(said: bytes, problem: str) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(said)
    reader.feed_eof()
    channel = Channel(reader, None)  # type: ignore[arg-type]  # nothing is written

    with pytest.raises(PairingError, match=problem):
        await channel.hear(Word, seconds=1)


async def test_side_that_says_nothing_is_given_up() -> None:
    channel = Channel(asyncio.StreamReader(), None)  # type: ignore[arg-type]  # nothing is written

    with pytest.raises(PairingError, match=r"has said nothing for 0\.01 s"):
        await channel.hear(Word, seconds=0.01)


async def stranger(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def test_identity_of_the_support_is_one(tmp_path: Path) -> None:
    offer, _ = offer_of("orders", tmp_path)

    assert 1 == len(parse_peers(offer.identity.encode()))
