"""
The one compiled module; everything else is in pyproject.toml.

Without a compiler, or without the headers of Python, the installation goes on without it: its twin in plain Python does
its work (docs/decisions/0006-the-kernel-is-compiled.md).
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "broker.forwarding.compiled_kernel",
            ["broker/forwarding/compiled_kernel.pyx"],
            depends=[f"broker/forwarding/{part}.pxi" for part in ("flat_table", "ring", "run_list")],
            extra_compile_args=["-g0"],  # a fifth of the size
            optional=True,
        )
    ]
)
