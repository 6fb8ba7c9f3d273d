"""Which load generator there is; what it does is tried on real sockets, in tests/loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from broker.bench.generator import (
    FRAMES_A_CONNECTION,
    SET_BYTES,
    STAMP_BYTES,
    GeneratorError,
    compiler,
    frames,
    make_generator,
    service_names,
    speaks_tls,
    tied,
    traffic,
)
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Hello, decode_dialog, decode_link
from broker.protocol.layout import MAX_FRAME


def test_without_a_compiler_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(GeneratorError, match=r"no C compiler \(cc, gcc, clang\): install one, or set CC"):
        make_generator(tmp_path)


def test_the_compiler_is_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/opt/other/cc")

    assert "/opt/other/cc" == compiler()


def test_the_compiler_is_the_first_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name != "cc" else None)

    assert "/bin/gcc" == compiler()


def test_a_machine_may_have_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)

    assert compiler() is None


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho no stdio.h >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))

    with pytest.raises(GeneratorError, match=r"cannot compile .*generator\.c: no stdio\.h"):
        make_generator(tmp_path)


def test_a_compiler_that_does_not_run_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))

    with pytest.raises(GeneratorError, match=r"/none does not run: No such file or directory; set CC"):
        make_generator(tmp_path)


@pytest.mark.parametrize(("lacks", "expected"), [("nothing", True), ("-lssl", False)])
def test_without_the_headers_of_openssl_it_is_made_without_tls(
    lacks: str, *, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = tmp_path / "cc"
    played.write_text(f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1;; esac\n')
    played.chmod(0o755)
    monkeypatch.setenv("CC", str(played))

    assert expected is speaks_tls(make_generator(tmp_path))


# --- test_tied ---
# A program ends with the one that started it, killed or not.


START = """
import subprocess, sys, time
from broker.bench.generator import tied
print(subprocess.Popen([*tied(), "sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


def test_killed_parent_takes_its_child_along() -> None:
    with subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))

        parent.kill()
        _, left = psutil.wait_procs([child], timeout=60)

    assert [] == left


def test_it_becomes_the_program_and_keeps_its_process_id() -> None:
    done = subprocess.Popen([*tied(), "sh", "-c", "echo $$; exit 7"], stdout=subprocess.PIPE, text=True)
    told, _ = done.communicate()

    assert (f"{done.pid}\n", 7) == (told, done.returncode)


def test_program_whose_parent_has_gone_is_not_started() -> None:
    command = [*tied()[:-1], str(os.getpid() + 1), "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (1, "") == (done.returncode, done.stdout)


# --- test_traffic ---
# What the load generator is given to send.


def test_every_service_gets_equally_many_frames_of_one_length() -> None:
    services = service_names(7)

    made = traffic(services, 64, connections=1, listeners=1)
    whole = FrameDecoder(MAX_FRAME).feed(made.frames)

    headers = [decode_dialog(frame)[0] for frame in whole]
    assert {made.frame_bytes} == {len(frame) for frame in whole}
    assert dict.fromkeys(services, len(whole) // 7) == Counter(header.to_service for header in headers)


def test_no_frame_is_a_copy_of_another() -> None:
    whole = FrameDecoder(MAX_FRAME).feed(traffic(service_names(3), 64, connections=2, listeners=1).frames)

    headers = [decode_dialog(frame)[0] for frame in whole]

    assert len(whole) == len({(header.conversation_id, header.sequence_number) for header in headers})
    assert len(whole) == len({header.message_id for header in headers})


def test_the_stamp_lies_in_the_body() -> None:
    made = traffic(service_names(1), STAMP_BYTES, connections=1, listeners=1)

    _, body = decode_dialog(made.frames[: made.frame_bytes])

    assert made.frames[made.stamp_at : made.frame_bytes] == body


def test_there_is_enough_for_every_connection_and_for_the_smallest_set() -> None:
    large = traffic(service_names(1), 256 * 1024, connections=5, listeners=1)
    small = traffic(service_names(1), 64, connections=1, listeners=1)

    assert 5 * FRAMES_A_CONNECTION * large.frame_bytes == len(large.frames)
    assert SET_BYTES - small.frame_bytes < len(small.frames) <= SET_BYTES


def test_every_connection_says_hello_as_somebody_else() -> None:
    made = traffic(service_names(1), 64, connections=2, listeners=3)

    said = [decode_link(frame) for frame in FrameDecoder(MAX_FRAME).feed(made.greetings)]

    assert made.greeting_bytes * 5 == len(made.greetings)
    assert 5 == len({hello.instance for hello in said if isinstance(hello, Hello)})


def test_so_many_frames_as_asked_for() -> None:
    assert 10 == len(FrameDecoder(MAX_FRAME).feed(frames(service_names(3), 16, count=10)))
