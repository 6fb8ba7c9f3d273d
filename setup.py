"""
The compiled modules; everything else is in pyproject.toml.

Without a compiler, or without the headers of Python, the installation goes on without them: their twins in plain Python
do their work (docs/decisions/0006-the-kernel-is-compiled.md).
"""

from setuptools import Extension, setup

KERNEL_PARTS = ("flat_table", "ring", "run_list")


def extension(name: str, parts: tuple[str, ...] = ()) -> Extension:
    """One of them, and what it includes."""
    return Extension(
        f"broker.forwarding.{name}",
        [f"broker/forwarding/{name}.pyx"],
        depends=[f"broker/forwarding/{part}.pxi" for part in parts],
        extra_compile_args=["-g0"],  # a fifth of the size
        optional=True,
    )


setup(ext_modules=[extension("compiled_kernel", KERNEL_PARTS), extension("compiled_columns", ("name_table",))])
