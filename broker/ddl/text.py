"""
From the bytes of a file, or of standard input, to the text of a script.

A script is UTF-8, with or without the mark that some editors put at its beginning, or UTF-16 behind such a mark, as the
tools of the original save theirs. Anything else is a mistake with a place, like one in a statement. A key or a
certificate, which somebody has named instead of a script, is refused before a line of it could be shown in a mistake.
"""

from __future__ import annotations

import codecs
import re

from broker.errors import DdlSyntaxError, Span

_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PEM = re.compile(r"^-----BEGIN (?:[A-Z0-9]+ )*(?:KEY|CERTIFICATE|PARAMETERS)-----", re.MULTILINE)


def decode_script(data: bytes, *, source: str = "-") -> str:
    """
    The text, without the mark.

    Raises:
        DdlSyntaxError: 102, at the first byte that stands for no character, or where a key or a certificate begins.
    """
    encoding = "utf-16" if data.startswith(_UTF_16_MARKS) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode(encoding)
        span = Span(source, before.count("\n") + 1, len(before) - before.rfind("\n"))
        name = "UTF-16" if encoding == "utf-16" else "UTF-8"
        problem = f"the byte 0x{error.object[error.start]:02x} is not {name}; save the script as UTF-8"
        raise DdlSyntaxError(102, problem, span) from None
    found = _PEM.search(text)
    if found:
        span = Span(source, text.count("\n", 0, found.start()) + 1, 1)
        raise DdlSyntaxError(102, "this is a key or a certificate in PEM form; name a script of statements", span)
    return text
