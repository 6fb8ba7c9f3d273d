"""
Validation of bodies as their message types ask for it, and the bodies of Error messages. Pure.

XML is parsed by expat in pieces. A document type is refused, as the original's xml does, so no entity is ever expanded.
One mark and the nesting are bounded, and so are memory and time. JSON (RFC 8259) is parsed as a whole, without building
anything, and therefore only up to a length.

Sources: Service Broker documentation, "CREATE MESSAGE TYPE", "Broker System Messages".
"""

from __future__ import annotations

import re
from html import escape, unescape
from itertools import accumulate
from typing import Protocol
from xml.parsers import expat

import msgspec

from broker.conversation.message_types import ERROR, Refusal, Rule, Validation

JSON_MAX_BYTES = 1024 * 1024  # of a body; a larger one is kept in pieces and never joined
DEPTH_MAX = 128  # levels of elements, of arrays and objects; the original's bound for both
MARK_MAX_BYTES = 2 * 1024 * 1024  # of one tag, comment or instruction: expat keeps an unfinished one in memory
_SLICE_BYTES = 64 * 1024  # fed at once; how far above the bound a mark may be before it is noticed


class Validator(Protocol):
    """A check that is fed a body piece by piece, until the first violation."""

    def feed(self, piece: bytes) -> str | None:
        """The next piece; what is wrong with the body so far."""

    def close(self) -> str | None:
        """The body is complete; what is wrong with it as a whole."""


def violation(validation: str, body: bytes) -> str | None:
    """
    What is wrong with a body.

    Args:
        validation: A value of `Validation`.
        body: All of it.

    Cost: linear in the body, well below a second for a MiB; no more memory than a few times the body.
    """
    if validation == Validation.NONE:
        return None
    if validation == Validation.WELL_FORMED_XML and body.count(b"<") <= DEPTH_MAX:
        check: Validator = _Xml(is_shallow=True)
    else:
        check = validator(validation)
    return check.feed(body) or check.close()


def refusal_of_body(rule: Rule, body: bytes) -> Refusal | None:
    """Why a body is not what its type says."""
    return rule.invalid(violation(rule.validation, body))


def validator(validation: str) -> Validator:
    """The check of one body that comes in pieces."""
    return _VALIDATORS[Validation(validation)]()


class _Nothing:
    """NONE: any body."""

    def feed(self, piece: bytes) -> str | None:
        del piece
        return None

    def close(self) -> str | None:
        return None


class _Empty(_Nothing):
    """EMPTY: no body."""

    def feed(self, piece: bytes) -> str | None:
        return "it must be empty" if piece else None


class _RefusedError(Exception):
    """Something that expat would accept."""


class _Xml:
    """WELL_FORMED_XML: one document, its namespaces declared; `is_shallow` when it has too few tags to be too deep."""

    def __init__(self, *, is_shallow: bool = False) -> None:
        self._parser = parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartDoctypeDeclHandler = self._doctype
        if not is_shallow:  # a call for each tag takes ten times as long as the tag
            parser.StartElementHandler = self._start
            parser.EndElementHandler = self._end
        self._depth = 0
        self._fed = 0

    def feed(self, piece: bytes) -> str | None:
        """In slices: a mark is looked for from its beginning with each, and its end may never come."""
        for at in range(0, len(piece), _SLICE_BYTES):
            part = piece[at : at + _SLICE_BYTES]
            self._fed += len(part)
            problem = self._parse(part, is_final=False)
            if problem is None and self._fed - self._parser.CurrentByteIndex > MARK_MAX_BYTES:
                problem = f"it has a tag, comment or instruction of more than {MARK_MAX_BYTES} bytes"
            if problem is not None:
                return problem
        return None

    def close(self) -> str | None:
        return self._parse(b"", is_final=True)

    def _parse(self, part: bytes, *, is_final: bool) -> str | None:
        try:
            self._parser.Parse(part, is_final)
        except _RefusedError as refused:
            return str(refused)
        except expat.ExpatError as error:
            return f"it is not well-formed XML: {expat.ErrorString(error.code)}, line {error.lineno}"
        except (ValueError, LookupError) as error:
            return f"it is not well-formed XML: {error}"  # an encoding that is unknown, or of several bytes
        return None

    def _doctype(self, *_about: object) -> None:
        raise _RefusedError("it has a document type (DOCTYPE), which is not allowed")

    def _start(self, *_about: object) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _RefusedError(f"its elements are nested more than {DEPTH_MAX} levels deep")

    def _end(self, *_about: object) -> None:
        self._depth -= 1


class _Json:
    """JSON: one value in UTF-8, without a byte order mark."""

    def __init__(self) -> None:
        self._body = bytearray()

    def feed(self, piece: bytes) -> str | None:
        if len(self._body) + len(piece) > JSON_MAX_BYTES:
            return f"it has more than {JSON_MAX_BYTES} bytes, above which JSON is not checked; use VALIDATION = NONE"
        self._body += piece
        return None

    def close(self) -> str | None:
        body = bytes(self._body)
        try:
            body.decode()
            msgspec.json.decode(body, type=msgspec.Raw)  # checks the grammar, builds nothing
        except (UnicodeDecodeError, msgspec.DecodeError) as error:
            return f"it is not JSON: {error}"
        except RecursionError:
            return _TOO_DEEP
        return _TOO_DEEP if _depth(body) > DEPTH_MAX else None


_JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_TOO_DEEP = f"its arrays and objects are nested more than {DEPTH_MAX} levels deep"


def _depth(body: bytes) -> int:
    """How deep arrays and objects are nested, or how many there are when that is few enough."""
    count = body.count(b"[") + body.count(b"{")
    if count <= DEPTH_MAX:
        return count
    brackets = _JSON_TEXT.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


_VALIDATORS: dict[Validation, type[Validator]] = {
    Validation.NONE: _Nothing,
    Validation.EMPTY: _Empty,
    Validation.WELL_FORMED_XML: _Xml,
    Validation.JSON: _Json,
}


# --- error messages ---

_CODE = re.compile(r"<Code>\s*(-?[0-9]{1,10})\s*</Code>")
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-z]{2,4});")
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold


def error_body(code: int, description: str) -> bytes:
    """The documented XML of an Error message; a character that XML does not have becomes U+FFFD."""
    description = NOT_XML.sub("\ufffd", description)
    text = f"<Code>{code}</Code><Description>{escape(description, quote=False)}</Description>"
    return f'<?xml version="1.0"?><Error xmlns="{ERROR}">{text}</Error>'.encode()


def error_parts(body: bytes) -> tuple[int | None, str]:
    """
    Code and description of an Error message from any application; None and "" for what is missing.

    Cost: O(bytes), whatever they are: the far application may have sent anything.
    """
    text = body.decode("utf-8", "replace")
    code = _CODE.search(text)
    description, end, _ = text.partition("<Description>")[2].partition("</Description>")
    text = _REFERENCE.sub(lambda found: unescape(found[0]), description) if end else ""
    return None if code is None else int(code[1]), text
