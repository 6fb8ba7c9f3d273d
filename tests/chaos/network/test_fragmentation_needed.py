"""The answer of a router with a small MTU: the bytes that RFC 792 and RFC 1191 ask for."""

from __future__ import annotations

from ipaddress import IPv4Address

from tests.chaos.network.fragmentation_needed import checksum, fragmentation_needed

HERE, THERE = IPv4Address("10.66.0.1").packed, IPv4Address("10.66.0.2").packed
ETHERNET = bytes.fromhex("020000000002 020000000001 0800")
HEADER = bytes.fromhex("4500 05dc 300e 4000 4006 f087") + HERE + THERE
TCP = bytes.fromhex("9c40 1388 00000001 00000002 5010")


def test_the_sender_is_told_the_size_and_which_packet_it_was() -> None:
    frame = ETHERNET + HEADER + TCP + b"x" * 1460

    answer = fragmentation_needed(frame, 600)

    ip, icmp = answer[14:34], answer[34:]
    assert bytes.fromhex("020000000001 020000000002 0800") == answer[:14]
    assert THERE + HERE == ip[12:20]
    assert len(answer) - 14 == int.from_bytes(ip[2:4], "big")
    assert 1 == ip[9]  # ICMP
    assert bytes([3, 4]) == icmp[:2]
    assert 600 == int.from_bytes(icmp[6:8], "big")
    assert HEADER + TCP[:8] == icmp[8:]


def test_its_checksums_hold() -> None:
    answer = fragmentation_needed(ETHERNET + HEADER + TCP, 600)

    assert b"\0\0" == checksum(answer[14:34])
    assert b"\0\0" == checksum(answer[34:])


def test_the_checksum_is_that_of_the_rfc() -> None:
    """RFC 1071, section 3: the bytes 00 01 f2 03 f4 f5 f6 f7 add up to ddf2."""
    assert bytes([0xFF - 0xDD, 0xFF - 0xF2]) == checksum(bytes.fromhex("0001f203f4f5f6f7"))
    assert checksum(b"\x01\x00") == checksum(b"\x01")
