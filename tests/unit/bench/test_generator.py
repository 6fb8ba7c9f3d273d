"""Which load generator there is; what it does is tried on real sockets, in tests/loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.bench.generator import GeneratorError, compiler, make_generator, speaks_tls


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
