"""Recording the demo in a pseudo-terminal, and drawing some of its acts as an SVG file.

rich turns terminal escapes into SVG. Its own template loads a font from a server; this template
uses a monospaced font of the reader's machine, so the picture loads nothing.
"""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ACTS: Final = ("kill -9", "Which snapshot", "Prove that", "In short")
"""The first words of the headings of the drawn acts."""
COLUMNS: Final = 112
_HEADING: Final = re.compile(r"\x1b\[1m[A-Zk]")
_TEMPORARY: Final = re.compile(r"/tmp/ciuic-demo-\w+")
_TEMPLATE: Final = """\
<svg class="rich-terminal" xml:space="preserve" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    """Record the demo, choose the acts, draw them."""
    scripts = Path(__file__).parents[1]
    recorded = record([str(scripts / "demo")])
    text = _TEMPORARY.sub("/tmp/demo", recorded).replace(str(scripts.parent), "~/ciuic")
    chosen = [act for act in acts_of(text) if _plain(act).startswith(ACTS)]
    if len(chosen) != len(ACTS):
        print(
            f"picture: found {len(chosen)} of {len(ACTS)} acts; the demo has changed",
            file=sys.stderr,
        )
        return 1
    Path(sys.argv[1]).write_text(draw("\n".join(chosen)), encoding="utf-8")
    return 0


def record(command: list[str]) -> str:
    """Return everything that a command writes to a terminal of ``COLUMNS`` columns.

    Raises:
        RuntimeError: The command failed.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = str(COLUMNS)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    parts = []
    while part := _read(terminal):
        parts.append(part)
    _, status = os.waitpid(pid, 0)
    output = b"".join(parts).decode()
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{command[0]} failed:\n{output}")
    return output.replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux: EIO once the last process has closed the terminal
        return b""


def acts_of(text: str) -> list[str]:
    """Return the parts of the recording that begin with a heading."""
    acts: list[list[str]] = []
    for line in text.split("\n"):
        if _HEADING.match(line):
            acts.append([])
        if acts:
            acts[-1].append(line)
    return ["\n".join(act) for act in acts]


def _plain(act: str) -> str:
    return Text.from_ansi(act).plain


def draw(text: str) -> str:
    """Return the terminal's text as an SVG document."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text), soft_wrap=False)
    return console.export_svg(
        title="scripts/demo", theme=DIMMED_MONOKAI, code_format=_TEMPLATE, unique_id="demo"
    )


if __name__ == "__main__":
    sys.exit(main())
