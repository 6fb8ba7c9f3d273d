"""
The settings of the admin API: where it listens, who may do what there, and what is written down about it.

Whoever reaches the Unix socket is known by what the system says of the process at its other end. On a TCP port of
loopback nobody is known, so one role holds for all; on any other address everybody has to show a token or a
certificate, over TLS. What single values cannot say is found by `admin_contradictions` and `admin_oddities`, what only
the machine can say by `admin_errors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from broker.control import value
from broker.control.admin_role import GIVEN_WORDS, ROLE_WORDS
from broker.control.listen import ListenAddress
from broker.control.place import KeyPath
from broker.control.section import Section
from broker.control.setting import Reload, setting
from broker.control.value import ValueKind, refuse, show

if TYPE_CHECKING:
    pass

_LISTEN: KeyPath = ("admin", "listen")
_LOOPBACK = '"127.0.0.1:PORT"'


def _roles() -> ValueKind:
    """A table of holders and their roles; which holders there are is looked at entry by entry, later."""

    def read(told: object) -> Mapping[str, str]:
        hint = 'write a table: [admin.roles] and below it "user:alice" = "operator"'
        if not isinstance(told, dict):
            raise refuse(f"{show(told)} is no table of roles", hint)
        for holder, role in told.items():
            if role not in GIVEN_WORDS:
                allowed = ", ".join(f'"{word}"' for word in GIVEN_WORDS)
                raise refuse(f"{show(role)} is no role for {show(holder)}", f"allowed is {allowed}")
        return dict(told)

    def from_text(text: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    allowed = f"table of holders, each with one of {', '.join(GIVEN_WORDS)}"
    schema = {"type": "object", "additionalProperties": {"enum": list(GIVEN_WORDS)}}
    return ValueKind(allowed, read, from_text, json_schema=schema)


def _group() -> ValueKind:
    writing = value.text("group", longest=64)

    def read(told: object) -> str:
        return "" if told == "" else str(writing.read(told))

    schema = writing.json_schema | {"minLength": 0}
    return ValueKind('name or number of a group, "" = none', read, json_schema=schema)


class AdminSettings(Section):
    """`[admin]`: where the instance is steered, and by whom."""

    socket: Annotated[Path, value.path()] = setting(
        "admin.sock",
        "Unix socket of the admin API. A relative path is relative to `instance.state_dir`.",
        reason="Who may write in the state directory may steer the instance. The system allows 107 bytes.",
        reload=Reload.LIVE,
    )
    socket_group: Annotated[str, _group()] = setting(
        "",
        "Group that may open the socket as well (mode 0660); its members may do what `roles` gives them. The directory "
        "of the socket has to let them through.",
        reason="None: the socket is for the instance's user and root, with mode 0600.",
        reload=Reload.LIVE,
    )
    listen: Annotated[ListenAddress | None, value.listen(may_be_off=True)] = setting(
        "",
        "TCP address of the admin API. Another one than loopback takes TLS, and a token or a client certificate of "
        "everybody.",
        reason="Off: the socket is enough for the commands.",
        reload=Reload.LIVE,
    )
    loopback_role: Annotated[Literal["none", "viewer", "operator", "admin"], value.choice(*ROLE_WORDS)] = setting(
        "admin",
        "What may be done over TCP from loopback by those who show neither token nor certificate.",
        reason="Nothing listens unless `listen` says so, and on many machines all users are one person. Where they are "
        "not, set it to none.",
        reload=Reload.LIVE,
    )
    certificate: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "PEM file with the certificate of `listen`, and behind it those between it and its CA; with one the port "
        "speaks TLS 1.3 only. Relative to the configuration file's directory.",
        reason="There is no file one could guess.",
        reload=Reload.LIVE,
    )
    private_key: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "PEM file with the key of `certificate`, without a password. Relative to the configuration file's directory.",
        reason="There is no file one could guess. Nobody but the instance's user should be able to read it.",
        reload=Reload.LIVE,
    )
    trust: Annotated[tuple[str, ...], value.list_of(value.text("path or pattern", longest=4096))] = setting(
        [],
        "PEM files, each a path or a pattern as in `routes.files`, with the CAs or the very certificates of clients. A "
        "certificate gives nothing by itself: `roles` says what its holder may do.",
        reason="Off: tokens are enough for most.",
        reload=Reload.LIVE,
    )
    peers: Annotated[tuple[str, ...], value.list_of(value.text("path or pattern", longest=4096))] = setting(
        [],
        "PEM files as in `trust`, with the very certificates of clients. What one of these certificates has issued is "
        "not trusted, also if it says that it is a CA.",
        reason="Off: as for `trust`. `openssl req -x509` makes certificates that say CA:TRUE.",
        reload=Reload.LIVE,
    )
    tokens: Annotated[Path, value.path()] = setting(
        "tokens",
        "File of token hashes, made by `broker token new`. A relative path is relative to `instance.state_dir`. Its "
        "changes count from the next request on.",
        reason="Beside the other things that only the instance's user may read.",
        reload=Reload.LIVE,
    )
    roles: Annotated[Mapping[str, str], _roles()] = setting(
        {},
        'Who may do what: `"user:NAME"`, `"group:NAME"`, `"token:NAME"` or `"certificate:CN=NAME"` = `"viewer"`, '
        '`"operator"` or `"admin"`. The highest of several counts; the role of a token here replaces the one that it '
        "was made with.",
        reason="The instance's user and root are admin; nobody else is anything unless it is said.",
        reload=Reload.LIVE,
    )
    audit: Annotated[Path, value.path()] = setting(
        "audit.jsonl",
        "File in which every change through the admin API is written down before it is made, one JSON object a line. A "
        "relative path is relative to `instance.state_dir`. Rotate it with logrotate.",
        reason="A change that cannot be written down is refused, so the file stands where the instance writes anyhow.",
        reload=Reload.LIVE,
    )


# --- what single values cannot say ---------------------------------------------------------------------------


# --- what only the machine can say ---------------------------------------------------------------------------
