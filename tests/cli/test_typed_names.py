"""Names that are not UTF-8, typed as tables and JSON show them."""

import os
import subprocess

import pytest

from tests.kit.box import Box
from tests.kit.program import CIUIC, environment


@pytest.mark.parametrize(
    ("name", "typed", "spelling"),
    [
        (b"caf\xe9.bin", "caf\\xe9.bin", "caf\\xe9.bin"),
        (b"caf\xe9.bin", "caf\\udce9.bin", "caf\\xe9.bin"),
        (b"a\\tb\xff", "a\\tb\\xff", "a\\\\tb\\xff"),
        (b"it's\xff", "it's\\xff", "it\\'s\\xff"),
    ],
)
def test_a_name_typed_as_it_is_shown_is_answered_with_what_to_type(
    box: Box, name: bytes, typed: str, spelling: str
) -> None:
    (box.source / os.fsdecode(name)).write_text("here")
    box.take()

    said = box.ciuic("cat", "latest", box.source / typed)

    spelled = f"$'{box.source}/{spelling}'"
    assert said.code == 1
    assert spelled in said.err
    done = subprocess.run(
        ["bash", "-c", f'"$@" {spelled}', "bash", *CIUIC, "--config", box.config, "cat", "latest"],
        capture_output=True,
        env=environment(),
        check=True,
    )
    assert done.stdout == b"here"


def test_a_name_that_has_a_backslash_is_found_as_it_is(box: Box) -> None:
    (box.source / "caf\\xe9").write_text("backslash")
    box.take()

    assert box.ciuic("cat", "latest", box.source / "caf\\xe9").out == "backslash"
    assert "$'" not in box.ciuic("cat", "latest", box.source / "caf\\xff").err
