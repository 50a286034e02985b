"""Actions of the page: they are the commands, with their plans and refusals."""

import html
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.web.shown import heat
from tests.kit.box import Box
from tests.kit.served import Served, served
from tests.web.test_timeline_page import opened

MARKUP = "<img src=x onerror=hit()>"


@pytest.fixture
def site(box: Box) -> Iterator[tuple[Box, Served, list[str]]]:
    """A server of a store with two snapshots of a tensor that moved."""
    box.config.write_text(box.config.read_text() + "retention_policy = last:1\n")
    ids = []
    for number in range(2):
        np.save(box.source / "weights.npy", np.full(5000, 1 + number / 10, np.float32))
        ids.append(box.take().id)
    with served(box) as running:
        yield box, running, ids


def done(site: Served, **work: object) -> Any:
    """Return the report of a job that must succeed."""
    job = site.ended(site.start(**work).document["id"])
    assert job["state"] == "done", job
    return job["report"]


def failed(site: Served, **work: object) -> Any:
    """Return the error of a job that must fail."""
    job = site.ended(site.start(**work).document["id"])
    assert job["state"] == "failed", job
    return job["error"]


def test_a_restore_over_a_file_that_a_program_is_writing_is_refused(
    site: tuple[Box, Served, list[str]],
) -> None:
    box, running, ids = site
    weights = box.source / "weights.npy"
    work = {"do": "restore", "snapshot": ids[0], "paths": [str(weights)], "overwrite": True}
    with weights.open("wb") as file:
        file.write(b"new")
        file.flush()
        error = failed(running, **work, dry_run=False)
        assert weights.read_bytes() == b"new"
    assert str(weights) in error["message"]
    assert error["kind"] == "target"
    assert done(running, **work, dry_run=False)["written_files"] == 1
    assert np.load(weights)[0] == 1


def test_what_is_found_after_a_job_was_found_after_it(box: Box) -> None:
    (box.source / "a").write_text("x")
    none = "there is none yet"
    with served(box) as running:
        before = running.ask("/v1/overview").document
        assert none in [one["what"] for one in before["findings"]], before
        done(running, do="snapshot")
        after = running.ask("/v1/overview").document
    assert none not in [one["what"] for one in after["findings"]], after


def test_what_no_command_can_be_given_is_refused(site: tuple[Box, Served, list[str]]) -> None:
    works: list[dict[str, object]] = [
        {"do": "pin", "snapshot": "cs-\0"},
        {"do": "pin", "snapshot": "\ud800"},
        {"do": "verify", "snapshot": "\udc80"},
        {"do": "forget", "snapshots": ["x" * 101]},
        {"do": "tag", "snapshot": "latest", "add": ["a\0b"]},
        {"do": "tag", "snapshot": "latest", "add": ["x" * 200_000]},
        {"do": "restore", "snapshot": "latest", "paths": ["/a"], "destination": "/tmp/\0"},
    ]
    for work in works:
        answer = site[1].start(**work)
        assert answer.status == 400, answer
        assert answer.document["error"]["kind"] == "usage"


def test_a_plan_forgets_what_it_shows_and_no_other_snapshot(
    site: tuple[Box, Served, list[str]],
) -> None:
    box, server, (old, new) = site
    plan = server.start(do="forget").document["id"]
    server.ended(plan)
    newest = box.take().id  # the policy, last:1, would forget ``new`` as well by now

    page = html.unescape(server.ask(f"/jobs/{plan}").body.decode())
    (work,) = re.findall(r'<form data-job="(.*?)"><p>', page)
    done(server, **json.loads(work))

    assert {one.id for one in box.snapshots()} == {new, newest}
    assert old not in {one.id for one in box.snapshots()}


def test_no_action_reaches_the_store_that_the_configuration_names_by_now(
    site: tuple[Box, Served, list[str]],
) -> None:
    box, server, _ = site
    other = box.directory / "other"
    box.config.write_text(box.config.read_text().replace(str(box.store), str(other)))
    for work in ({"do": "forget", "dry_run": False}, {"do": "snapshot"}):
        answer = server.start(**work)
        assert answer.status == 400, answer
        assert f"now names {other}" in answer.document["error"]["message"]
    assert not other.exists()


def test_an_action_does_what_its_command_does(site: tuple[Box, Served, list[str]]) -> None:
    box, server, (old, new) = site

    assert done(server, do="tag", snapshot=new, add=["best", "--help"]) == {
        "id": new,
        "tags": ["best", "--help"],
    }
    assert done(server, do="tag", snapshot=new, remove=["--help"])["tags"] == ["best"]
    assert done(server, do="pin", snapshot=old)["pinned"]
    assert failed(server, do="forget", snapshots=[old], dry_run=False)["message"] == (
        f"{old} is pinned"
    )
    assert not done(server, do="pin", snapshot=old, remove=True)["pinned"]
    plan = done(server, do="forget")
    assert [one["id"] for one in plan["forgotten"]] == [old]
    assert len(box.snapshots()) == 2
    (row,) = done(server, do="compare", snapshots=[old, new])["tensors"]
    assert row["relative_distances"] == [None, pytest.approx(0.1, 1e-3)]
    assert done(server, do="stats", by="kind")["groups"][0]["kind"] == ".npy"
    taken = done(server, do="snapshot", base=True)
    assert taken["kind"] == "base"
    assert old in {one["id"] for one in done(server, do="forget", dry_run=False)["forgotten"]}
    assert old not in {one.id for one in box.snapshots()}


def test_names_are_no_options_and_odd_work_is_refused(site: tuple[Box, Served, list[str]]) -> None:
    _, server, (old, _) = site

    for name in ("--help", "-h", "--json", "../x", "", "cs-ffffffffffffffff"):
        assert failed(server, do="pin", snapshot=name)["message"]
    for work in (
        {"do": "compare", "snapshots": [old]},
        {"do": "compare", "snapshots": [old] * 13},
        {"do": "tag", "snapshot": old, "add": "text"},
        {"do": "stats", "by": "moon"},
        {"do": "prune"},
        {"do": "pin", "snapshot": old, "extra": 1},
    ):
        assert server.start(**work).status == 400, work


def test_a_server_of_a_store_without_a_configuration_says_what_it_lacks(
    box: Box, tmp_path: Path
) -> None:
    (box.source / "a").write_text("x")
    box.take()
    with served(box, "--store", box.store) as server:
        error = failed(server, do="forget")
        space = server.ask("/v1/store").document

    assert error["message"] == "no retention policy is configured for this store"
    assert (space["snapshots"], space["store"]) == (1, str(box.store))


def test_buttons_tag_pin_forget_and_show_the_heat(
    browser: Any, site: tuple[Box, Served, list[str]]
) -> None:
    box, server, (old, new) = site
    wrong: list[str] = []
    page = opened(browser, server, wrong)

    def ended(state: str = "done") -> None:
        page.wait_for_selector(f"h1 .state.{state}")

    page.goto(f"{server.base}/snapshots/{new}")
    page.fill("#add", MARKUP)
    page.click("form.line >> text=Add")
    ended()
    page.goto(f"{server.base}/snapshots/{new}")
    page.click(f"text=Remove the tag {MARKUP}")
    ended()
    page.goto(f"{server.base}/snapshots/{old}")
    page.click("button:has-text('Forget…')")
    ended()
    assert page.locator("a.gone").count() == 1
    page.click("text=Forget now")
    page.wait_for_selector("h1:has-text('Forget') >> text=done")
    page.wait_for_selector("text=1 snapshot forgotten")
    page.goto(f"{server.base}/store")
    page.click("text=By kind of file")
    ended()
    assert page.locator("meter").count() == 1
    files = [box.source / name for name in ("a.npz", "b.npz")]
    for file in files:
        np.savez(file, layer=np.ones(5000, np.float32))
    earlier = {snapshot.id for snapshot in box.snapshots()}
    page.goto(server.base)
    page.click("text=Take a snapshot now")
    ended()
    # The server's clock is not that of the box: the newest may be another one.
    (ones,) = {snapshot.id for snapshot in box.snapshots()} - earlier
    for file in files:
        np.savez(file, layer=np.full(5000, 2, np.float32))
    twos = box.take().id
    page.goto(f"{server.base}/compare?id={ones}&id={twos}")
    page.click("text=Compare the tensors")
    page.wait_for_selector("td.heat-5")
    rows = page.locator("table.heat tbody tr").all_inner_texts()
    page.context.close()

    assert all("layer" in row for row in rows)
    assert [str(file) in row for file, row in zip(files, sorted(rows), strict=True)] == [True] * 2

    assert len(earlier) == 1
    assert os.fsdecode(old) not in earlier
    assert wrong == []


@given(st.lists(st.floats(0, allow_infinity=False), min_size=1))
def test_the_colors_of_a_heat_map_tell_its_values_apart(values: list[float]) -> None:
    most = max(values)
    colors = [heat(value, most) for value in values]

    assert all((color == 0) == (value == 0) for color, value in zip(colors, values, strict=True))
    assert most == 0 or heat(most, most) == 5
    if most > 1e-300:
        assert [heat(most * share, most) for share in (0.9, 0.4, 0.2)] == [5, 4, 3]
    in_order = sorted(zip(values, colors, strict=True))
    assert [color for _, color in in_order] == sorted(colors)
