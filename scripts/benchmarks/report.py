"""The results as a Markdown page: the table, the machine, the tools, the command."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import Line, Ratio
from benchmarks.tools import Tool

TOOLS = ("ciuic", "restic", "borg", "borg2", "limit")
OPTIONAL = "borg2"
VERDICTS = {True: "yes", False: "**no**", None: ""}


def table(lines: Sequence[Line]) -> str:
    """Return all lines, ordered by row; ratios are medians of the turns, with their range."""
    tools = [
        tool for tool in TOOLS if tool != OPTIONAL or any(tool in line.values for line in lines)
    ]
    rows = [_head(tools), ["---"] * len(_head(tools))]
    rows += [_cells(line, tools) for line in sorted(lines, key=lambda line: line.row)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def page(lines: Sequence[Line], tools: Sequence[Tool], command: str, facts: dict[str, str]) -> str:
    """Return the whole page."""
    versions = ", ".join(tool.version() for tool in tools)
    about = [f"- {name}: {value}" for name, value in facts.items()]
    return "\n".join(
        [
            "# Benchmark results",
            "",
            table(lines),
            f"- tools: {versions}",
            *about,
            f"- command: `{command}`",
            "",
        ]
    )


def as_json(lines: Sequence[Line]) -> str:
    """Return the lines as JSON."""
    return json.dumps([asdict(line) for line in lines], indent=1)


def machine_facts(place: Path) -> dict[str, str]:
    """Return what the figures depend on, and the load before the run."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kind = subprocess.run(
        ["findmnt", "-n", "-o", "FSTYPE,SOURCE,OPTIONS", "-T", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{memory_bytes / (1 << 30):.0f} GiB",
        "kernel": platform.release(),
        "file system": kind.stdout.strip(),
        "Python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _head(tools: Sequence[str]) -> list[str]:
    ratios = ["of limit" if tool == "limit" else f"vs {tool}" for tool in tools[1:]]
    return ["row", "what", "mark", *tools, *ratios, "met"]


def _cells(line: Line, tools: Sequence[str]) -> list[str]:
    values = [_value(line.values.get(name), line.unit) for name in tools]
    ratios = [_ratio(line.ratios.get(name)) for name in tools[1:]]
    return [str(line.row), line.what, line.mark, *values, *ratios, VERDICTS[line.met]]


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    spread = "" if ratio.low == ratio.high else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.median:.2f}{spread}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
