"""Runs schemathesis on a real ``ciuic web``: requests that its OpenAPI document allows, and others.

    python -m tests.fuzz.http_api PROGRAM [OPTION]...

PROGRAM is schemathesis, and the options are passed on to it. The store is removed afterwards. Two
checks are left out. The server may refuse a request that the document allows, because only the
store knows whether a name means a snapshot. And the server still shows a job after it was deleted,
as a stopped one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kit.box import Box
from tests.kit.served import served

_CHECKS_LEFT_OUT = "positive_data_acceptance,use_after_free"


def main(program: str, options: list[str]) -> int:
    """Run the program; return its exit code."""
    with tempfile.TemporaryDirectory() as directory:
        box = Box(Path(directory))
        (box.source / "run").mkdir()
        for number in range(2):
            (box.source / "run" / "weights").write_bytes(bytes([number]) * 100_000)
            with (box.source / "run" / "log.jsonl").open("a") as log:
                log.write(f'{{"step": {number}, "loss": {2 - number}}}\n')
            box.take(tags=("best",))
        with served(box, "--log", box.source / "run" / "log.jsonl") as site:
            headers = [f"Authorization: Bearer {site.token}", "X-Ciuic: 1"]
            return subprocess.run(
                [
                    program,
                    "run",
                    f"{site.base}/v1/openapi.json",
                    *[word for header in headers for word in ("-H", header)],
                    f"--exclude-checks={_CHECKS_LEFT_OUT}",
                    "--continue-on-failure",
                    *options,
                ],
                cwd=directory,
                check=False,
            ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
