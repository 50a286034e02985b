"""Runs scripts that import torch, each in a process that this one forks.

Each import of torch takes seconds; the scripts share one. A line on stdin has the path of a script,
its argument, and a file for its output. The answers are the ID of its process and, when that has
ended, its exit code.
"""

import os
import runpy
import sys

import torch  # noqa: F401 - see above


def serve() -> None:
    """Fork a process for each line, and return in that process."""
    for line in sys.stdin:
        script, argument, output = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(output, os.O_WRONLY), 1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv[:] = [script, argument]
            return
        print("began", pid, flush=True)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    serve()
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
