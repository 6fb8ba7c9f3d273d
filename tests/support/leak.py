"""Looking for secrets in what a system tells: as they are, and in each form that a log, a page or a file gives them."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus


def forms(secret: bytes) -> Iterator[tuple[str, bytes]]:
    """
    Each form of a secret, and what it is called.

    Shape: hexadecimal digits and percent escapes in lower case, as `find` looks for them in lower case; base64 in the
    three ways that it can stand in a longer text, both alphabets, without the characters that its neighbours have a
    say in.
    """
    yield "raw", secret
    yield "hex", secret.hex().encode()
    yield "hex with blanks", secret.hex(" ").encode()
    for alphabet, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
        for at in range(3):
            # The first characters hold bits of what stands before, the last ones bits of what comes behind.
            whole = encode(b"\0" * at + secret)
            yield f"{alphabet} at {at}", whole[(0, 2, 3)[at] : len(whole) - 4]
    text = secret.decode("latin-1")
    yield "percent", quote(secret, safe="").lower().encode()
    yield "percent, plus", quote_plus(secret).lower().encode()
    yield "every byte percent", "".join(f"%{byte:02x}" for byte in secret).encode()
    words = secret.decode(errors="replace")
    yield "json", json.dumps(words)[1:-1].encode()
    yield "json of bytes", json.dumps(text)[1:-1].encode()
    yield "xml", html.escape(words, quote=False).encode()
    yield "html", html.escape(words).encode()
    yield "repr", repr(secret)[2:-1].encode()
    yield "utf-16", words.encode("utf-16-le")


def find(secrets: Mapping[str, bytes], places: Mapping[str, bytes]) -> list[str]:
    """Where which secret stands, and in which form; sentences for people, without the secret."""
    wanted = [
        (f"{name} ({form})", needle, form.startswith(("hex", "percent", "every")))
        for name, secret in secrets.items()
        for form, needle in forms(secret)
    ]
    found = []
    for place, data in places.items():
        lower = data.lower()
        found += [f"{name} in {place}" for name, needle, folded in wanted if needle in (lower if folded else data)]
    return found
