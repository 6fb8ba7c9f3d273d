"""A name server on loopback that knows SRV records, answering over UDP from a thread of its own."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class NameServer:
    """
    The server; while it is entered, it answers.

    Shape: `records` by name without the dot at its end: TTL in seconds and texts such as `10 5 4022 host.example.`;
    `asked` names in the order of asking.
    """

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, list[str]]] = {}
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="name server")

    @property
    def address(self) -> tuple[str, int]:
        """Where it answers."""
        host, port = self._socket.getsockname()
        return host, port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as farewell:
            farewell.sendto(b"", self.address)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, client = self._socket.recvfrom(65536)
            if not data:
                return
            self._socket.sendto(self._answer(dns.message.from_wire(data)).to_wire(), client)

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        self.asked.append(name)
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if name in self.records:
            ttl, texts = self.records[name]
            response.answer.append(dns.rrset.from_text(question.name, ttl, "IN", "SRV", *texts))
        else:
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response
