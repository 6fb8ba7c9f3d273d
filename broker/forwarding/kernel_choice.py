"""
Which kernel walks: the compiled one where it was built, else its twin in plain Python.

Both do the same (tests/property/test_kernels.py); which one runs is in `broker status`. Chosen once, when an instance
starts. `BROKER_KERNEL=python` or `BROKER_KERNEL=compiled` forces one.
"""

from __future__ import annotations

from broker.errors import SettingError
from broker.forwarding.careful import SlowPath
from broker.forwarding.kernel import Kernel

try:
    from broker.forwarding.compiled_kernel import CompiledKernel
except ImportError:
    KERNELS: dict[str, type[SlowPath]] = {Kernel.name: Kernel}
else:
    KERNELS = {CompiledKernel.name: CompiledKernel, Kernel.name: Kernel}

KERNEL_VARIABLE = "BROKER_KERNEL"
_NAMES = ("compiled", "python")


def choose_kernel(forced: str = "") -> type[SlowPath]:
    """
    The kernel of this name; when it is empty, the fastest there is.

    Raises:
        SettingError: there is no such kernel, or it was not built here.
    """
    if not forced:
        return next(iter(KERNELS.values()))
    if forced not in _NAMES:
        raise SettingError(KERNEL_VARIABLE, f"'{forced}' is no kernel", hint="say compiled or python, or nothing")
    if forced not in KERNELS:
        hint = "install with a C compiler at hand (make setup), or leave the variable out"
        raise SettingError(KERNEL_VARIABLE, "the compiled kernel was not built for this Python", hint=hint)
    return KERNELS[forced]
