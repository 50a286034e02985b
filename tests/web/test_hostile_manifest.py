"""A store whose manifests, marks, logs and tensors were made to harm the reader of the page."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from ciuic.ids import SnapshotId
from ciuic.model import ExcludeRules, Follow, PathWarning
from ciuic.store.records.layout import mark_name
from ciuic.store.records.manifest import encode_manifest
from ciuic.store.records.mark import Mark, encode_mark
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.served import Gate, Served, served
from tests.kit.tensors import typed
from tests.web.test_page import Watched

TEXT = "'\"></title><img src=x onerror=hit()><script>hit()</script>{{ 7 * 7 }}\u202e\x1b[2J\n\x01"
"""Ends an attribute and a title, and has markup, a template, and characters that move others."""
LONG = "w" * 5000
LONG_FIELD = "w" * 100
"""Longer names are not taken for fields of a log."""
PHONE_PX = 360
VISIBLE = (
    "'\"></title><img src=x onerror=hit()><script>hit()</script>{{ 7 * 7 }}\\u202e\\x1b[2J\\n\\x01"
)
"""How the page shows ``TEXT``."""
FILLED = VISIBLE.replace("\\n", " ")
"""How the page shows it after a field of one line has taken it."""
FOREIGN = "img, main script, iframe, object, embed, [onerror], [onmouseover]"
WRITTEN = """() => [...document.querySelectorAll("*")].flatMap((element) => [
  ...[...element.attributes].map((one) => one.value),
  ...[...element.childNodes].filter((one) => one.nodeType === 3).map((one) => one.data),
])"""
"""All text and all attributes of a page."""


@pytest.fixture
def hostile(box: Box) -> tuple[Box, list[str]]:
    """Two snapshots whose manifests have ``TEXT``, or a very long word, in each field of text."""
    name = TEXT.replace("/", "")
    found = []
    for version in range(2):
        values = np.full(8, 1 + version, np.float32).tobytes()
        tensors = {tensor: ("F32", [8], values) for tensor in (TEXT, f"{TEXT}2", LONG)}
        (box.source / f"{name}.safetensors").write_bytes(typed(tensors))
        (box.source / f"x.{name[:60]}").write_bytes(values)
        (box.source / f"{name}.yaml").write_text(f"{TEXT}: {version}\n{LONG}{version}\n")
        with (box.source / "train.jsonl").open("a") as log:
            for step in range(3):
                line = {"step": 3 * version + step, TEXT: step, "loss": 1.0, LONG_FIELD: 2, LONG: 3}
                log.write(json.dumps(line) + "\n")
        taken = SnapshotId(box.take(base=True).id)
        rewrite(box, taken, LONG if version else TEXT)
        found.append(str(taken))
    return box, found


def rewrite(box: Box, snapshot: SnapshotId, text: str) -> None:
    """Put a text into each field of a manifest and of a mark that holds text."""
    with open_store(str(box.store)) as store:
        manifest = store.manifest(snapshot)
    worst = msgspec.structs.replace(
        manifest,
        host=text,
        writer=text,
        exclude=ExcludeRules((text,), 1, if_present=(text,)),
        trouble=(PathWarning(os.fsencode(f"/{text}"), text),) * 3,
        summary=msgspec.structs.replace(
            manifest.summary,
            kind=text,
            parent=SnapshotId(text),
            tags=(text,) * 30,
            trouble_count=3,
            flux_count=1 << 62,
            logical_bytes=1 << 62,
            machine=text,
            origin=text,
            schedule=text,
            follows=(Follow(os.fsencode(f"/{text}"), SnapshotId(f"../{text}")),) * 3,
            store=text,
        ),
    )
    (place,) = (box.store / "snapshots").glob(f"*{snapshot}*")
    place.write_bytes(encode_manifest(worst))
    marks = box.store / "marks"
    marks.mkdir(exist_ok=True)
    mark = Mark((text,) * 30, pinned=False, note=text)
    (marks / mark_name(snapshot, 1)).write_bytes(encode_mark(mark, snapshot, 1))
    for index in box.store.glob("catalog.sqlite*"):  # it remembers the manifest as it was
        index.unlink()


def jobs(site: Served, ids: list[str], source: Path) -> Iterator[str]:
    """Yield the page of a job of each kind that reads or marks, when it has ended."""
    for work in (
        {"do": "verify", "snapshot": ids[0], "checksum": True},
        {"do": "compare", "snapshots": ids},
        {"do": "compare_runs", "runs": [str(source), TEXT]},
        {"do": "tag", "snapshot": ids[0], "add": [TEXT]},
        {"do": "tag", "snapshot": ids[0], "add": ["sound"]},
        {"do": "forget", "dry_run": True},
        {"do": "forget", "snapshots": ids[:1], "dry_run": True},
        {"do": "pin", "snapshot": ids[0]},
        {"do": "stats", "by": "path"},
        {"do": "stats", "by": "kind"},
        {"do": "stats", "by": "age"},
        {"do": "restore", "snapshot": ids[0], "paths": [f"{source}"], "destination": "/" + TEXT},
    ):
        job = site.start(**work)
        assert job.status == 202, job.body
        yield f"/jobs/{site.ended(job.document['id'])['id']}"


def places(site: Served, ids: list[str], source: Path) -> Iterator[str]:
    """Yield the address of every page."""
    (first, second) = ids
    where = quote(os.fsencode(source))
    yield from ("/", "/snapshots", f"/snapshots?text={quote(TEXT)}")
    for one in ids:
        yield from (f"/snapshots/{one}", f"/snapshots/{one}?path={where}")
        yield f"/snapshots/{one}/restore"
    yield f"/diff?before={first}&after={second}"
    yield f"/compare?id={first}&id={second}"
    yield from ("/timeline", f"/timeline?field={quote(TEXT)}", f"/timeline?field={LONG_FIELD}")
    runs = f"/runs?run={where}&run={quote(TEXT)}"
    yield from ("/runs", runs, f"{runs}&field={quote(TEXT)}", f"{runs}&best={LONG_FIELD}")
    yield from ("/store", *jobs(site, ids, source), "/store", "/jobs")


def look(page: Page, place: str) -> str:
    """Return what a page shows; it must be usable, and all of it visible."""
    page.locator("nav >> text=Overview").click(trial=True)
    assert page.locator("h1").count() == 1, place
    assert page.locator(FOREIGN).count() == 0, place
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE_PX, place
    for text in (page.title(), *page.evaluate(WRITTEN)):
        # The page itself has line feeds and spaces that do not break.
        assert text.replace("\n", "").replace("\xa0", "").isprintable(), (place, text[:500])
    return page.inner_text("main")


def test_no_field_of_a_manifest_a_mark_or_a_tensor_runs_a_script_or_breaks_the_page(
    browser: Browser, hostile: tuple[Box, list[str]]
) -> None:
    box, ids = hostile
    (first, second) = ids
    shown: dict[str, str] = {}
    with (
        served(box, "--log", box.source / "train.jsonl") as site,
        browser.new_context(viewport={"width": PHONE_PX, "height": 700}) as context,
    ):
        watched = Watched(context, site)
        page = watched.page
        for place in places(site, ids, box.source):
            answer = page.goto(site.base + place)
            assert answer is not None
            assert answer.ok, (place, page.inner_text("main"))
            if page.locator("#chart").count():
                page.wait_for_selector("#chart canvas")
            shown[place] = look(page, place)
        page.goto(f"{site.base}/timeline?field={quote(TEXT)}")
        page.wait_for_selector("#chart canvas")
        page.locator("#chart").press("End")
        assert second in page.inner_text("#chosen")
        assert watched.wrong == []
        page.goto(f"{site.base}/snapshots/{first}/restore")
        page.fill("#destination", TEXT)
        page.click("text=Show the plan")
        page.wait_for_selector("#failed:visible")
        assert look(page, "a refusal").count(FILLED) == 1
        assert [what for what in watched.wrong if "400" not in what] == []

    of_first = shown[f"/snapshots/{first}"]
    assert of_first.count(f"on {VISIBLE}") == 1, "the host"
    assert of_first.count(VISIBLE) > 10, "the note, tags, warnings and what was restored"
    assert VISIBLE in shown[f"/compare?id={first}&id={second}"]
    for p, t in shown.items():
        if VISIBLE[:20] not in t:
            print("=====", p[:150], len(t))
            print(t[:1500])
    reports = [text for place, text in shown.items() if place.startswith("/jobs/")]
    assert sum(VISIBLE in text for text in reports) >= 5


def test_the_name_of_the_file_that_a_restore_writes_is_shown_with_escapes(
    browser: Browser, box: Box, tmp_path: Path
) -> None:
    name = "\u202ebig\udcff\x1b[2J"
    (box.source / name).write_bytes(os.urandom(5 * 1024 * 1024))
    box.take()
    gate = Gate(tmp_path, "os.utime")  # called when the content of a file is there
    with served(box, gate=gate) as site, browser.new_context() as context:
        page = Watched(context, site).page
        work = {"paths": [str(box.source)], "destination": str(tmp_path / "out"), "dry_run": False}
        job = site.start(do="restore", snapshot="latest", **work).document
        gate.wait()
        page.goto(f"{site.base}/jobs/{job['id']}")
        path = page.locator("[data-progress=path]")
        expect(path).to_have_text(re.compile("."))
        assert path.inner_text() == f"{box.source}/\\u202ebig\\xff\\x1b[2J"
        gate.open()
        assert site.ended(job["id"])["state"] == "done"
