"""Which configured directories are not there."""

import os
import threading
from pathlib import Path

import pytest

from ciuic.source import roots
from ciuic.source.roots import absent_roots
from ciuic.system.workers import asking


def test_a_root_that_is_no_directory_is_absent(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    names = ["data", "link", "dangling", "file", "file/below", "dtaa"]

    absent = absent_roots(str(tmp_path / name) for name in names)

    assert absent == [str(tmp_path / name) for name in ("dangling", "file", "file/below", "dtaa")]


def test_a_file_system_that_does_not_answer_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = threading.Event(), os.stat

    def stat(path: str) -> os.stat_result:
        if path == "/hangs":
            answer.wait()
        return asked(path)

    monkeypatch.setattr(roots.os, "stat", stat)
    monkeypatch.setattr(asking, "_ANSWER_S", 1.0)

    absent = absent_roots([str(tmp_path / "dtaa"), "/hangs", str(tmp_path / "never asked")])

    answer.set()
    assert absent == [str(tmp_path / "dtaa")]
