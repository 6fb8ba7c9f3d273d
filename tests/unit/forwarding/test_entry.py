"""What a walk leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import rejected
from broker.protocol.frame import Rejected

# --- way ---
# A run of frames falls apart where its length fields say; a way begins with nothing counted.


MakeFrame = Callable[..., bytes]


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_sender_is_advised_which_frame_it_was_and_why(form: Callable[[bytes], bytes], make_frame: MakeFrame) -> None:
    frame = make_frame(message_id=b"m" * 16, conversation_id=b"c" * 16, sequence_number=2**40, fragment_number=7)

    advice = rejected(form(frame), Disposition.POOL_LIMIT)

    assert Rejected(b"m" * 16, b"c" * 16, 2**40, 7, 11289, "pool limit exceeded") == advice
