"""What a network is called tells whether its harness still lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.network.tag import find_tag, is_alive, new_tag

ROOT = Path(__file__).parents[3]


def test_no_two_tags_are_alike() -> None:
    assert new_tag() != new_tag()


def test_a_tag_is_found_in_front_of_a_name() -> None:
    tag = new_tag()

    assert tag == find_tag(f"{tag}.gateway")
    assert "" == find_tag("somebody-elses")


def test_a_tag_is_alive_as_long_as_its_process() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert is_alive(new_tag())
    assert not is_alive(f"broker-hosts-{ended.pid}-1-1")


def test_another_process_of_the_same_number_is_not_the_one() -> None:
    assert not is_alive(f"broker-hosts-{os.getpid()}-1-1")


def test_what_is_left_of_a_process_until_it_is_reaped_is_not_alive() -> None:
    tag_of = "import tests.chaos.network.tag as t; print(t.new_tag(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", tag_of], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        tag = process.stdout.readline().strip()
        was_alive = is_alive(tag)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert was_alive
        assert not is_alive(tag)
