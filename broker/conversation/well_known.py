"""
Names and bodies that every service knows: system message types, the default type and contract, error messages.

Source: Service Broker documentation, "Broker System Messages".
"""

from __future__ import annotations

import re
from datetime import timedelta
from html import escape

DEFAULT = "DEFAULT"  # the message type and the contract that exist everywhere
END_DIALOG = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
ERROR = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
DIALOG_TIMER = "http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer"
ERROR_PRIORITY, TIMER_PRIORITY = 11, 12  # in the queue: an error is read before all but a timer
DEFAULT_LIFETIME = timedelta(days=7)  # the original's 68 years make leaks invisible
LIFETIME_MAX = 2**31 - 1  # seconds; what the original's type holds

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def error_body(code: int, description: str) -> bytes:
    """The documented XML of an Error message; a character that XML does not have is told as U+FFFD."""
    description = _NOT_XML.sub("\ufffd", description)
    namespace = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"
    text = f"<Code>{code}</Code><Description>{escape(description, quote=False)}</Description>"
    return f'<?xml version="1.0"?><Error xmlns="{namespace}">{text}</Error>'.encode()
