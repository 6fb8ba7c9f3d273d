"""Part of `broker.admin.problem`."""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import RequestError


@dataclass
class BadRequestError(RequestError):
    """The request itself is not understood: its body, or one of its parameters."""

    problem: str

    def __str__(self) -> str:
        return self.problem
