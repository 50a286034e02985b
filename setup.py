"""Builds the compiled core, ``ciuic._core``, where there is a C compiler.

The extension is optional: without a compiler the installation succeeds, and ciuic uses Python and
numpy instead. ``ciuic doctor`` says which one runs. All else is in pyproject.toml.
"""

from glob import glob

from setuptools import Extension, setup

core = Extension(
    "ciuic._core",
    sources=sorted(glob("core/*.c")),
    depends=sorted(glob("core/*.h")),
    define_macros=[("Py_LIMITED_API", "0x030B0000")],  # one binary for Python 3.11 and newer
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"],
    py_limited_api=True,
    optional=True,
)
setup(ext_modules=[core], options={"bdist_wheel": {"py_limited_api": "cp311"}})
