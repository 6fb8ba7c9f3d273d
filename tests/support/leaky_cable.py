"""A cable that loses whole frames, and knows which: what a test knows to be lost."""

import contextlib
import random
import socket

from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Header, decode_dialog
from broker.protocol.layout import FIRST_DIALOG_KIND
from tests.support.cable import MAX_FRAME, Cable


class LeakyCable(Cable):
    """
    Loses dialog frames by chance, in both directions; frames of the link get through.

    Shape: `share` of the frames that are lost, 0 .. 1; `lost` their headers. `doubtful` message_ids of the frames that
    passed on a connection that ended since: when two connections become one, its last frames may have gone nowhere.
    """

    def __init__(self, share: float, *, seed: int) -> None:
        self.share = share
        self.lost: list[Header] = []
        self.doubtful: set[bytes] = set()
        self._dice = random.Random(seed)
        super().__init__()

    def _move(self, near: socket.socket, far: socket.socket, is_onward: bool, link: int) -> None:  # noqa: FBT001 - as Cable calls it
        decoder, passed = FrameDecoder(MAX_FRAME), set()
        with contextlib.suppress(OSError):
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := near.recv(1 << 16):
                frames = [frame for frame in decoder.feed(data) if not self._loses(frame)]
                passed |= {decode_dialog(frame)[0].message_id for frame in frames if frame[4] >= FIRST_DIALOG_KIND}
                far.sendall(b"".join(frames))
            far.shutdown(socket.SHUT_WR)
        self.doubtful |= passed
        with self._lock:
            self._ends -= {near, far}
        near.close()

    def _loses(self, frame: bytes) -> bool:
        if frame[4] < FIRST_DIALOG_KIND or self._dice.random() >= self.share:
            return False
        self.lost.append(decode_dialog(frame)[0])
        return True
