"""Which kernel walks, and that the compiled one is there wherever it can be built."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from broker.errors import SettingError
from broker.forwarding import kernels as kernel_choice
from broker.forwarding.kernel import Kernel
from broker.forwarding.kernels import KERNELS, choose_kernel

HEADER = Path(sysconfig.get_path("include"), "Python.h")
COMPILER = shutil.which((os.environ.get("CC") or "cc").split()[0])


@pytest.mark.skipif(COMPILER is None or not HEADER.exists(), reason="no C compiler, or no headers of this Python")
def test_compiled_kernel_is_there_where_a_compiler_is() -> None:
    assert "compiled" in KERNELS, "run `make clean setup`, and look at what the compiler says"


def test_fastest_kernel_that_was_built_is_chosen() -> None:
    assert ("compiled" if "compiled" in KERNELS else "python") == choose_kernel().name


def test_without_the_compiled_kernel_its_twin_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "broker.forwarding.compiled_kernel", None)

    module = runpy.run_path(kernel_choice.__file__)

    assert {"python": Kernel} == module["KERNELS"]
    assert Kernel is module["choose_kernel"]()


@pytest.mark.parametrize("name", list(KERNELS))
def test_each_kernel_can_be_forced(name: str) -> None:
    assert (KERNELS[name], name) == (choose_kernel(name), choose_kernel(name).name)


def test_kernel_that_was_not_built_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "KERNELS", {"python": Kernel})

    assert choose_kernel() is Kernel
    with pytest.raises(SettingError) as caught:
        choose_kernel("compiled")
    assert str(caught.value) == (
        "BROKER_KERNEL: the compiled kernel was not built for this Python; "
        "install with a C compiler at hand (make setup), or leave the variable out"
    )


def test_word_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(SettingError, match=r"BROKER_KERNEL: 'Python' is no kernel; say compiled or python, or nothing"):
        choose_kernel("Python")
