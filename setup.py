"""
The compiled modules; everything else is in pyproject.toml.

Without a compiler, or without the headers of Python, the installation goes on without them: their twins in plain Python
do their work (decision 0006, the kernel is compiled). BROKER_BUILD, in the environment, says otherwise:
`compiled` fails where they cannot be compiled, `pure` leaves them out and makes a wheel for every platform.
"""

import os

from setuptools import Extension, setup

KERNEL_PARTS = ("flat_table", "ring", "run_list")
BUILD_VARIABLE = "BROKER_BUILD"


def extension(name: str, parts: tuple[str, ...], *, is_optional: bool) -> Extension:
    """One of them, and what it includes."""
    return Extension(
        f"broker.forwarding.{name}",
        [f"broker/forwarding/{name}.pyx"],
        depends=[f"broker/forwarding/{part}.pxi" for part in parts],
        extra_compile_args=["-g0"],  # a fifth of the size
        optional=is_optional,
    )


def extensions(build: str) -> list[Extension]:
    """All of them, as `BROKER_BUILD` says."""
    if build not in {"", "compiled", "pure"}:
        raise SystemExit(f"{BUILD_VARIABLE}={build!r}: say compiled or pure, or nothing")
    if build == "pure":
        return []
    return [
        extension("compiled_kernel", KERNEL_PARTS, is_optional=build != "compiled"),
        extension("compiled_columns", ("name_table",), is_optional=build != "compiled"),
    ]


setup(ext_modules=extensions(os.environ.get(BUILD_VARIABLE, "")))
