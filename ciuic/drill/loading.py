"""Loads a restored checkpoint with the package that a training program would use.

Loading runs in another process, because a damaged checkpoint can crash or hang the package that
reads it, and because ciuic itself imports none of them.
"""

import json
import os
import subprocess
import sys
from typing import Final

from ciuic.drill.report import Loaded
from ciuic.formats.spans import KIND_BYTES, kind_of, layout
from ciuic.system import nofollow

__all__ = ["LIMIT_S", "load_checkpoint"]

LIMIT_S: Final = 600.0
"""A package that takes longer counts as hung: at 200 MB/s it reads 120 GB in this time."""
_ERROR_CHARACTERS_MAX: Final = 300


def load_checkpoint(path: bytes, place: bytes, *, limit_s: float = LIMIT_S) -> Loaded | None:
    """Load a checkpoint; None if the file is not one.

    Args:
        path: Its path in the snapshot.
        place: The restored file.
        limit_s: How long the package may take.

    Raises:
        OSError: The restored file cannot be read.
    """
    with open(nofollow.open_file(os.fsdecode(place), os.O_RDONLY), "rb") as file:
        kind = kind_of(file.read(KIND_BYTES))
        if not kind:
            return None
        fd = file.fileno()
        spans = layout(lambda at, length: os.pread(fd, length, at), os.fstat(fd).st_size)
        answer = _asked(kind, fd, limit_s)
    if by := answer.get("by"):
        return Loaded(path, kind, by=str(by), tensors=int(str(answer.get("tensors", 0))))
    error = str(answer.get("error", ""))[:_ERROR_CHARACTERS_MAX]
    if error:
        return Loaded(path, kind, what=error, is_bad=True)
    # Without the package, the headers are all that can be checked.
    missing = str(answer.get("missing", "a package that reads it"))
    tensors = len(spans or ())
    return Loaded(
        path, kind, tensors=tensors, what=f"{missing} is not installed for ciuic's Python"
    )


def _asked(kind: str, fd: int, limit_s: float) -> dict[str, object]:
    """Run the loading process on an open file; return its answer."""
    # By its descriptor: some packages refuse a path that is not UTF-8, and the kernel a long one.
    # -P: the working directory may hold a file with the name of a module.
    command = [sys.executable, "-P", "-m", "ciuic.drill.load", kind, f"/proc/self/fd/{fd}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
            cwd="/",
            pass_fds=(fd,),
        )
    except subprocess.TimeoutExpired:
        return {"error": f"loading it took more than {limit_s:.0f} s"}
    lines = done.stdout.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines and not done.returncode else None
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    if done.returncode < 0:
        return {"error": f"loading it ended with signal {-done.returncode}"}
    return {"error": "loading it ended without an answer"}
