"""Advice names the frame and the reason, and comes at a bounded rate."""

from __future__ import annotations

from dataclasses import replace

from broker.flow import Disposition
from broker.net.link import REJECTS_PER_SECOND, Advice, render_rejected
from broker.net.quotas import Permissions, Permit
from broker.protocol.frame import Header, Rejected, decode_link, encode_dialog
from broker.security.grants import Grants
from broker.security.principal import who_is

HEADER = Header(
    kind=0x10,
    flags=0,
    message_id=b"m" * 16,
    conversation_id=b"c" * 16,
    to_service="t",
    from_service="f",
    from_broker_instance=b"i" * 16,
    sequence_number=2**40 + 1,
    fragment_number=7,
)


def test_rejected_tells_which_frame_and_why() -> None:
    for form in (bytes, bytearray, memoryview):
        frame = form(encode_dialog(replace(HEADER), b"body"))

        rejected = decode_link(render_rejected(frame, Disposition.POOL_LIMIT))

        assert rejected == Rejected(
            message=b"m" * 16,
            conversation=b"c" * 16,
            sequence=2**40 + 1,
            fragment=7,
            code=11289,
            reason="pool limit exceeded",
        )


def test_who_lacks_a_permission_is_told_which() -> None:
    permissions = Permissions()
    permissions.grants = Grants(is_default_deny=True)
    permit = Permit(who_is("CN=a"), permissions.grants.profile(who_is("CN=a")), permissions)

    rejected = decode_link(render_rejected(encode_dialog(HEADER, b""), Disposition.NOT_PERMITTED, permit))

    assert isinstance(rejected, Rejected)
    assert (11215, "not permitted: no GRANT SEND ON SERVICE::[t] TO [CN=a] or public") == (
        rejected.code,
        rejected.reason,
    )
    assert "CN=a may not send: no GRANT SEND ON SERVICE::[t] TO [CN=a] or public" == permissions.last_refusal


def test_so_much_is_said_in_a_second_and_no_more() -> None:
    advice = Advice(100.0)

    said = [advice.allow() for _ in range(REJECTS_PER_SECOND + 5)]

    assert [True] * REJECTS_PER_SECOND + [False] * 5 == said


def test_rate_is_renewed_after_a_second_and_not_before() -> None:
    advice = Advice(100.0)
    while advice.allow():
        pass

    advice.refill(100.9)
    assert not advice.allow()
    advice.refill(101.0)

    assert [True] * REJECTS_PER_SECOND + [False] == [advice.allow() for _ in range(REJECTS_PER_SECOND + 1)]
