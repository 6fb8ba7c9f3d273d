"""
Names and bodies that every service knows: system message types, the default type and contract, error messages.

Source: Service Broker documentation, "Broker System Messages".
"""

from __future__ import annotations

import re
from datetime import timedelta

DEFAULT = "DEFAULT"  # the message type and the contract that exist everywhere
END_DIALOG = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
ERROR = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
DIALOG_TIMER = "http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer"
ERROR_PRIORITY, TIMER_PRIORITY = 11, 12  # in the queue: an error is read before all but a timer
DEFAULT_LIFETIME = timedelta(days=7)  # the original's 68 years make leaks invisible
LIFETIME_MAX = 2**31 - 1  # seconds; what the original's type holds

# Patterns, compiled by `re` when they are first needed: every command imports this, and next to none needs them.
_CODE = r"<Code>\s*(-?[0-9]{1,10})\s*</Code>"
_BEFORE, _BEHIND = "<Description>", "</Description>"
_REFERENCE = r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-z]{2,4});"
_NOT_XML = r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def error_body(code: int, description: str) -> bytes:
    """The documented XML of an Error message; a character that XML does not have is told as U+FFFD."""
    from html import escape  # noqa: PLC0415 - slow to import: see broker.cli.group

    description = re.sub(_NOT_XML, "\ufffd", description)
    namespace = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
    text = f"<Code>{code}</Code><Description>{escape(description, quote=False)}</Description>"
    return f'<?xml version="1.0"?><Error xmlns="{namespace}">{text}</Error>'.encode()


def error_parts(body: bytes) -> tuple[int | None, str]:
    """
    Code and description of an Error message, whoever made it; None and "" for what is not there.

    Cost: O(bytes), whatever they are: the far application may have sent anything.
    """
    from html import unescape  # noqa: PLC0415 - slow to import: see broker.cli.group

    text = body.decode("utf-8", "replace")
    code = re.search(_CODE, text)
    description, end, _ = text.partition(_BEFORE)[2].partition(_BEHIND)
    told = re.sub(_REFERENCE, lambda found: unescape(found[0]), description) if end else ""
    return None if code is None else int(code[1]), told
