"""
The headers of a message: text by name that travels beside the body, for trace context and the like.

They are kept as a JSON object in the row of the message and travel in its envelope, so where a dialog is sealed they
are sealed as well. A `traceparent` that is sampled has every frame of the message followed on its way (the TRACE flag).

An application that has a span of OpenTelemetry at work sends its context by itself. Nothing is imported for that: who
has a span has imported the API.

Source: docs/protocol.md, section 4, "MESSAGE"; W3C Trace Context.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from broker.application.name import check_text
from broker.errors import ConversationError
from broker.protocol.frame import TRACE_PARENT, TRACE_STATE, are_bounded, header_bytes, maybe_trace_parent
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, Flag

Headers: TypeAlias = Mapping[str, str]
"""Text by name."""

API = "opentelemetry.trace"
_TRACE = int(Flag.TRACE)


class Carried(NamedTuple):
    """Headers as a row of the transmission queue has them. Shape: `text` JSON, None without any; `flags` of frames."""

    text: str | None
    flags: int


NOTHING = Carried(None, 0)


def carried(headers: Headers | None) -> Carried:
    """
    What a message carries: these headers, and the span that is at work where they have no `traceparent`.

    Raises:
        ConversationError: 8412, these are no headers: no text by name, too many, or too long together.
    """
    told = joined(headers)
    if not told:
        return NOTHING
    parent = maybe_trace_parent(told.get(TRACE_PARENT))
    return Carried(
        json.dumps(dict(told), ensure_ascii=False), _TRACE if parent is not None and parent.is_sampled else 0
    )


def joined(headers: Headers | None) -> Headers | None:
    """
    These headers, and where they have no `traceparent` and there is room, the context of the span at work.

    Raises:
        ConversationError: as `carried`.
    """
    told = None if headers is None else _checked(headers)
    if API not in sys.modules or (told is not None and TRACE_PARENT in told):
        return told
    more = (told or {}) | current()
    return more if are_bounded(more) else told


def current() -> dict[str, str]:
    """The context of the span at work, as headers; none without the API of OpenTelemetry, or without a span."""
    if API not in sys.modules:
        return {}
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - imported by the application, or not at all

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    told = {TRACE_PARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        told[TRACE_STATE] = context.trace_state.to_header()
    return told


def context_of(headers: Headers) -> Any:
    """
    The context that a message carries, for `context=` of a span.

    Returns:
        An `opentelemetry.context.Context`; None when the message carries none, or the API is not installed.
    """
    if maybe_trace_parent(headers.get(TRACE_PARENT)) is None:
        return None
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return TraceContextTextMapPropagator().extract(dict(headers))


def headers_of(text: str | None) -> dict[str, str]:
    """The headers in a row of a message."""
    told: dict[str, str] = {} if text is None else json.loads(text)
    return told


def _checked(headers: Headers) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConversationError(8412, f"headers have to be a mapping of text to text, not {type(headers).__name__}")
    for name, value in headers.items():
        if not check_text(name, "a header's name"):
            raise ConversationError(8412, "a header's name is empty")
        check_text(value, f"the header {name!r:.80}")
    if not are_bounded(headers):
        problem = f"a message has at most {HEADERS_MAX} headers, of {HEADERS_MAX_BYTES} bytes together"
        raise ConversationError(8412, f"{problem}; these are {len(headers)}, of {header_bytes(headers)} bytes")
    return dict(headers)
