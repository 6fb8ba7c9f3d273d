r"""
Principals: the holders of permissions, as statements write them, and the proven identities of peers.

A principal is one of these texts; `*` matches any characters, except in a fingerprint:

    public                          all peers, also those without a certificate
    CN=orders,O=shop                the whole subject of a certificate, as RFC 4514 writes it
    spiffe://shop.example/orders    a URI among the names of the certificate
    sha256:<64 hexadecimal digits>  the certificate itself
    orders                          the common name in the subject

In a subject `*` stays within one value, so that no value can pretend to be several; as a separate part it matches any
number of parts: `CN=orders,*`. A literal `*` is written `\2a`. Values compare byte for byte. Types are kept as
certificates have them: those of RFC 4514 by their names, others, such as emailAddress, by their numbers.

Source: RFC 4514 (how a subject is written), SPIFFE ID specification.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

PLACEHOLDER = "PRINCIPAL"  # in advice, where the name is not known
PRINCIPAL_MAX = 1024  # characters of a principal in a statement
SUBJECTS_MAX = 256  # that are remembered as they were read
PUBLIC = "public"
ANY = "*"

_FINGERPRINT = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
# Other spellings of the types of a subject; certificates say those that RFC 4514 has no name for by number.
_AS_CERTIFICATES_SAY = {
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "S": "ST",
    "BUSINESSCATEGORY": "2.5.4.15",
    "DNQUALIFIER": "2.5.4.46",
    "E": "1.2.840.113549.1.9.1",
    "EMAIL": "1.2.840.113549.1.9.1",
    "EMAILADDRESS": "1.2.840.113549.1.9.1",
    "GENERATIONQUALIFIER": "2.5.4.44",
    "GIVENNAME": "2.5.4.42",
    "GN": "2.5.4.42",
    "INITIALS": "2.5.4.43",
    "ORGANIZATIONIDENTIFIER": "2.5.4.97",
    "POSTALADDRESS": "2.5.4.16",
    "POSTALCODE": "2.5.4.17",
    "PSEUDONYM": "2.5.4.65",
    "SERIALNUMBER": "2.5.4.5",
    "SN": "2.5.4.4",
    "SURNAME": "2.5.4.4",
    "TITLE": "2.5.4.12",
}
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9-]*|[0-9]+(\.[0-9]+)*")
_ESCAPED = re.compile(r"(?:\\[0-9A-Fa-f]{2})+|\\(.)", re.DOTALL)
_TO_ESCAPE = re.compile(r'[\\,+"<>;*]')


class PrincipalKind(Enum):
    """The part of a certificate with which a principal is compared."""

    PUBLIC = "all"
    SUBJECT = "subject"
    URI = "URI"
    FINGERPRINT = "fingerprint"
    COMMON_NAME = "common name"


class Who(NamedTuple):
    """
    The identity that a peer has proved; empty by default.

    Attributes:
        subject: As RFC 4514 writes it.
        common_name: The most specific one in it.
        uris: Among the names of the certificate.
        fingerprint: SHA-256 in 64 lower-case hexadecimal digits.
    """

    subject: str = ""
    common_name: str = ""
    uris: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """
        The principal that one would name in a statement; `public` for a peer that has proved nothing.

        It covers every peer with just this name: a URI that would be read as anything else, such as `public` or one
        with `*`, is not used.
        """
        names = (spelled(self.subject), PrincipalKind.SUBJECT), *((uri, PrincipalKind.URI) for uri in self.uris)
        own = f"sha256:{self.fingerprint}" if self.fingerprint else PUBLIC
        return next((text for text, kind in names if _is_plain(text, kind)), own)


NOBODY = Who()


class PrincipalError(ValueError):
    """A text that is not a principal; its sentence says what would be one."""


@dataclass(frozen=True)
class Principal:
    """
    A principal of a statement. Made by `parse_principal`.

    Attributes:
        text: As it is stored and compared: kinds that have several spellings are brought to one.
    """

    text: str
    kind: PrincipalKind = field(compare=False)

    def covers(self, who: Who) -> bool:
        """Whether what is given to this principal is given to them."""
        match self.kind:
            case PrincipalKind.PUBLIC:
                return True
            case PrincipalKind.SUBJECT:
                return bool(who.subject) and _covers_subject(self._parts, who.subject)
            case PrincipalKind.URI:
                return any(covers_text(self.text, uri) for uri in who.uris)
            case PrincipalKind.FINGERPRINT:
                return bool(who.fingerprint) and self.text == f"sha256:{who.fingerprint}"
            case _:
                return bool(who.common_name) and covers_text(self.text, who.common_name)

    @property
    def is_pattern(self) -> bool:
        """Whether it matches more than one name."""
        return self.kind is PrincipalKind.PUBLIC or ANY in self.text

    @cached_property
    def _parts(self) -> list[_Part]:
        return _subject_parts(self.text, is_pattern=True)


def parse_principal(text: str) -> Principal:
    """
    Read a principal.

    Raises:
        PrincipalError: it is none.
    """
    if not text.strip() or len(text) > PRINCIPAL_MAX:
        raise PrincipalError(f"a principal has 1 to {PRINCIPAL_MAX} characters")
    written, text = text, text.strip()
    if text == PLACEHOLDER:
        raise PrincipalError(f"{text} is a gap in advice: write the name of the sender, such as CN=orders")
    if text.casefold() == PUBLIC:
        return Principal(PUBLIC, PrincipalKind.PUBLIC)
    if text.casefold().startswith("sha256:"):
        if _FINGERPRINT.fullmatch(text) is None:
            raise PrincipalError(f"{text!r} is not a fingerprint: write sha256: and 64 hexadecimal digits")
        return Principal(text.lower(), PrincipalKind.FINGERPRINT)
    colon, equals = text.find(":"), text.find("=")
    if equals >= 0 and not 0 <= colon < equals:
        parts = _subject_parts(written, is_pattern=True)  # a blank at its end may be escaped
        return Principal(",".join(_render_part(part) for part in parts), PrincipalKind.SUBJECT)
    if colon >= 0:
        return Principal(text, PrincipalKind.URI)
    return Principal(text, PrincipalKind.COMMON_NAME)


def who_is(text: str) -> Who:
    """
    Return a peer that has proved just the identity in a principal: for questions about peers that are not connected.

    Raises:
        PrincipalError: it is not a principal, or matches more than one name.
    """
    principal = parse_principal(text)
    if principal.kind is not PrincipalKind.PUBLIC and principal.is_pattern:
        raise PrincipalError(f"{text!r} means more than one: write one name")
    match principal.kind:
        case PrincipalKind.PUBLIC:
            return NOBODY
        case PrincipalKind.SUBJECT:
            parts = _subject_parts(principal.text, is_pattern=False)
            names = (value for part in parts for kind, value in part or () if kind == "CN")
            return Who(subject=principal.text, common_name="".join(next(names, ())))
        case PrincipalKind.URI:
            return Who(uris=(principal.text,))
        case PrincipalKind.FINGERPRINT:
            return Who(fingerprint=principal.text.removeprefix("sha256:"))
        case _:
            return Who(subject=f"CN={_escape(principal.text)}", common_name=principal.text)


def _is_plain(text: str, kind: PrincipalKind) -> bool:
    """Whether a text is read as a principal of this kind, as it is written and standing for one name only."""
    try:
        principal = parse_principal(text)
    except PrincipalError:
        return False
    return (principal.kind, principal.text) == (kind, text) and not principal.is_pattern


def covers_text(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with `*`. Cost: O(length of both) for each `*`."""
    return _covers_pieces(pattern.split(ANY), text)


def _covers_pieces(pieces: Sequence[str], text: str) -> bool:
    """Whether a text is made of these pieces, in their order, with anything between them."""
    first, *rest = pieces
    if not rest:
        return first == text
    *middle, last = rest
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def spelled(subject: str) -> str:
    """A subject in the one spelling of principals, none of its characters a wildcard; empty when it is none."""
    parts = _parsed(subject)
    return "" if parts is None else ",".join(map(_render_part, parts))


# --- subjects ---

# A relative distinguished name: types and values, mostly one; None for `*` as a separate part. A value of a pattern
# is the texts between its wildcards, so one text where it has none.
_Value = tuple[str, ...]
_Part = tuple[tuple[str, _Value], ...] | None


def _covers_subject(pattern: Sequence[_Part], subject: str) -> bool:
    parts = _parsed(subject)
    if parts is None:
        return False
    covered = {0}  # how many parts are covered by the pattern so far, in each way to read it
    for wanted in pattern:
        if wanted is None:
            covered = {*range(min(covered, default=len(parts) + 1), len(parts) + 1)}
        else:
            covered = {at + 1 for at in covered if at < len(parts) and _covers_part(wanted, parts[at])}
    return len(parts) in covered


@lru_cache(maxsize=SUBJECTS_MAX)
def _parsed(subject: str) -> list[_Part] | None:
    """The parts of a subject, which is compared with many patterns in a row; None when it is none."""
    try:
        return _subject_parts(subject, is_pattern=False)
    except PrincipalError:
        return None


def _covers_part(wanted: tuple[tuple[str, _Value], ...], part: _Part) -> bool:
    assert part is not None, "a subject has no wildcards"
    if len(wanted) != len(part):
        return False
    if len(wanted) > 1:
        wanted, part = tuple(sorted(wanted)), tuple(sorted(part))
    pairs = zip(wanted, part, strict=True)
    return all(kind == other and _covers_pieces(value, text) for (kind, value), (other, (text,)) in pairs)


def _subject_parts(text: str, *, is_pattern: bool) -> list[_Part]:
    """
    Return the parts of a subject, in their order.

    Raises:
        PrincipalError: the text is not a subject.
    """
    return [_subject_part(part, text, is_pattern=is_pattern) for part in _split(text, ",")]


def _subject_part(part: str, whole: str, *, is_pattern: bool) -> _Part:
    if is_pattern and part.strip() == ANY:
        return None
    pairs: list[tuple[str, _Value]] = []
    for pair in _split(part, "+"):
        kind, equals, value = pair.partition("=")
        if not equals or _TYPE.fullmatch(kind.strip()) is None:
            raise PrincipalError(f"{whole!r} is not a subject: it is written like CN=orders,O=shop")
        pieces = _split(_stripped(value), ANY) if is_pattern else [_stripped(value)]
        name = kind.strip().upper()
        pairs.append((_AS_CERTIFICATES_SAY.get(name, name), tuple(_plain(piece, whole) for piece in pieces)))
    return tuple(pairs)


def _split(text: str, mark: str) -> list[str]:
    """The pieces between marks that are not escaped."""
    marks = (found.start() for found in re.finditer(rf"\\.|\{mark}", text, re.DOTALL) if found[0] == mark)
    return [text[begin + 1 : end] for begin, end in pairwise((-1, *marks, len(text)))]


def _stripped(value: str) -> str:
    """Without the blanks around it; a blank at the end that is escaped stays."""
    value = value.lstrip(" ")
    bare = value.rstrip(" ")
    escapes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if escapes % 2 and len(bare) < len(value) else bare


def _plain(value: str, whole: str) -> str:
    """A value without its escapes."""

    def unescape(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        return bytes.fromhex(found[0].replace("\\", "")).decode()

    try:
        plain = _ESCAPED.sub(unescape, value)
    except UnicodeDecodeError:
        raise PrincipalError(f"{whole!r} is not a subject: its escaped bytes are not UTF-8") from None
    if _ESCAPED.sub("", value).endswith("\\"):
        raise PrincipalError(f"{whole!r} is not a subject: it ends in the middle of an escape")
    return plain


def _render_part(part: _Part) -> str:
    if part is None:
        return ANY
    return "+".join(f"{kind}={ANY.join(_escape(piece) for piece in value)}" for kind, value in part)


def _escape(text: str) -> str:
    r"""A value, or a piece of one, with its escapes; a `*` in it becomes `\2a`."""
    escaped = _TO_ESCAPE.sub(lambda found: r"\2a" if found[0] == ANY else "\\" + found[0], text).replace("\0", r"\00")
    if text.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return "\\" + escaped if text[:1] in {" ", "#"} else escaped
