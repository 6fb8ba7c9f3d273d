"""The answer of a router whose next link has a small MTU: ICMP "fragmentation needed" (RFC 792, RFC 1191)."""

from __future__ import annotations

import struct

ETHERNET_BYTES = 14
QUOTED_BYTES = 8  # of the packet behind its IP header: ports and sequence number of TCP
TYPE, CODE = 3, 4  # destination unreachable: fragmentation needed and DF set


def fragmentation_needed(frame: bytes, mtu: int) -> bytes:
    """
    The frame that tells the sender of `frame` that its packet was larger than `mtu` bytes.

    It comes from the address that the packet was meant for, as there is no router to name: every host is on the same
    switch. Shape: both are Ethernet frames with IPv4.
    """
    packet = frame[ETHERNET_BYTES:]
    header_bytes = (packet[0] & 15) * 4
    quoted = packet[: header_bytes + QUOTED_BYTES]
    message = struct.pack(">BBHHH", TYPE, CODE, 0, 0, mtu) + quoted
    message = message[:2] + checksum(message) + message[4:]
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, 1, 0) + packet[16:20] + packet[12:16]
    header = header[:10] + checksum(header) + header[12:]
    return frame[6:12] + frame[:6] + frame[12:14] + header + message


def checksum(data: bytes) -> bytes:
    """The Internet checksum of RFC 1071, big-endian."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF)
