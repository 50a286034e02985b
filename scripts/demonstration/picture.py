"""Recording the demo as an asciicast, and drawing some of its acts as an animated SVG file.

    python -m demonstration.picture TERMTOSVG RECORDING PICTURE

TERMTOSVG is the program that turns a recording (asciicast, version 2) into a picture. The picture
loads nothing, and its text can be copied. A pause is shortened to what a reader needs.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ACTS: Final = ("kill -9", "Which snapshot", "Prove that", "In short")
"""The first words of the headings of the drawn acts."""
COLUMNS: Final = 124
ROWS: Final = 34
_PAUSE_MAX_S: Final = 1.2
_END_MS: Final = 8000
_HEADING: Final = re.compile(r"\x1b\[1m[A-Zk]")
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_TEMPORARY: Final = re.compile(r"/tmp/ciuic-demo-\w+")


class Line(NamedTuple):
    """A line on the terminal, and when it was complete."""

    at_s: float
    text: str


def main(program: str, recording: Path, picture: Path) -> int:
    """Record the demo, choose the acts, draw them."""
    scripts = Path(__file__).parents[1]
    lines = [_public(line, scripts.parent) for line in record([str(scripts / "demo")])]
    chosen = [act for act in acts_of(lines) if _plain(act[0]).startswith(ACTS)]
    if len(chosen) != len(ACTS):
        print(
            f"picture: found {len(chosen)} of {len(ACTS)} acts; the demo has changed",
            file=sys.stderr,
        )
        return 1
    recording.write_text(cast([line for act in chosen for line in act]), encoding="utf-8")
    command = [
        program,
        "render",
        str(recording),
        str(picture),
        "-D",
        str(_END_MS),
        "-t",
        "window_frame",
    ]
    return subprocess.run(command, check=False).returncode


def record(command: list[str]) -> list[Line]:
    """Return every line that a command writes to a terminal of ``COLUMNS`` columns.

    Raises:
        RuntimeError: The command failed.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = str(COLUMNS)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    began_s = time.monotonic()
    lines: list[Line] = []
    rest = b""
    while part := _read(terminal):
        *whole, rest = (rest + part).split(b"\n")
        at_s = time.monotonic() - began_s
        lines += [Line(at_s, line.decode().rstrip("\r")) for line in whole]
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{command[0]} failed:\n" + "\n".join(line.text for line in lines))
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux: EIO once the last process has closed the terminal
        return b""


def _public(line: Line, repository: Path) -> Line:
    """Return a line without the names of places on this machine."""
    text = _TEMPORARY.sub("/tmp/demo", line.text).replace(str(repository), "~/ciuic")
    return line._replace(text=text)


def acts_of(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the parts of the recording that begin with a heading."""
    acts: list[list[Line]] = []
    for line in lines:
        if _HEADING.match(line.text):
            acts.append([])
        if acts:
            acts[-1].append(line)
    return acts


def _plain(line: Line) -> str:
    return _ESCAPE.sub("", line.text)


def cast(lines: Sequence[Line]) -> str:
    """Return an asciicast of lines, in which no pause is long."""
    found: list[object] = [
        {"version": 2, "width": COLUMNS, "height": ROWS, "title": "scripts/demo"}
    ]
    at_s, before_s = 0.0, lines[0].at_s
    for line in lines:
        # Between two acts, the demo may have gone on for long.
        at_s += min(max(line.at_s - before_s, 0.0), _PAUSE_MAX_S)
        before_s = line.at_s
        found.append([round(at_s, 3), "o", f"{line.text}\r\n"])
    return "".join(f"{json.dumps(one)}\n" for one in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
