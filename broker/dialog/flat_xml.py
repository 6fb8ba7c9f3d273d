"""
The XML of Service Broker's own messages: one element, and in it elements that hold nothing but text. Pure.

What comes from elsewhere is never trusted: a body is bounded before it is looked at, a document type (and with it
every entity of its own making) is refused, and so is whatever is not flat. Namespaces are compared without telling
`http` from `https`, because the documentation of the original was rewritten mechanically and has both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from xml.parsers import expat

BODY_MAX_BYTES = 64 * 1024  # a hundred times what the longest names need
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, in any spelling
_SEPARATOR = " "  # between namespace and name, as expat is told; no namespace may hold it


@dataclass(frozen=True, slots=True)
class FlatXml:
    """Shape: `name` and `namespace` of the root, the namespace in its `http` form; `texts` by name of the element."""

    name: str
    namespace: str
    texts: Mapping[str, str] = field(default_factory=dict)


def can_hold(text: str) -> bool:
    """Whether XML has a way to write this text: some control characters have none."""
    return _FORBIDDEN.search(text) is None


def render_flat_xml(document: FlatXml) -> bytes:
    """A document as UTF-8. Every text `can_hold` holds comes back from `parse_flat_xml` as it was."""
    texts = "".join(f"<{name}>{_escaped(text)}</{name}>" for name, text in document.texts.items())
    return f'<{document.name} xmlns="{document.namespace}">{texts}</{document.name}>'.encode()


def parse_flat_xml(body: bytes) -> FlatXml:
    """
    A document from elsewhere, in any encoding that says what it is.

    Raises:
        ValueError: it is too long, no XML, not flat, has a document type, or an element twice.
    """
    if len(body) > BODY_MAX_BYTES:
        raise ValueError(f"{len(body)} bytes are above {BODY_MAX_BYTES}")
    return _Reader().read(body)


class _Reader:
    """Expat's callbacks, for one document."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._root = ("", "")
        self._texts: dict[str, str] = {}

    def read(self, body: bytes) -> FlatXml:
        parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(body, True)
        except (expat.ExpatError, LookupError) as error:  # the latter: an encoding that nobody knows
            raise ValueError(f"no XML: {error}") from None
        namespace, name = self._root
        return FlatXml(name, re.sub("^https:", "http:", namespace), self._texts)

    def _start(self, tag: str, _attributes: object) -> None:
        namespace, _, name = tag.rpartition(_SEPARATOR)
        if not self._open:
            self._root = (namespace, name)
        elif len(self._open) > 1:
            raise ValueError(f"the element {name!r} stands inside {self._open[-1]!r}, where text is expected")
        elif name in self._texts:
            raise ValueError(f"the element {name!r} stands there twice")
        else:
            self._texts[name] = ""
        self._open.append(name)

    def _end(self, _tag: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if len(self._open) > 1:
            self._texts[self._open[-1]] += text

    def _doctype(self, *_: object) -> None:
        raise ValueError("a document type is not accepted")


def _escaped(text: str) -> str:
    """A carriage return is escaped as well: read back bare, it would be a line feed."""
    return escape(text, quote=False).replace("\r", "&#13;")
