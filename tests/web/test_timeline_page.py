"""Timelines and comparisons: through the API, and in a real browser."""

import html
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from ciuic.store.records import layout
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.mounted import wait_for
from tests.kit.served import Served, served

LIMIT_MS = 120_000
MARKUP = "<img src=x onerror=hit()><script>hit()</script>"


def add_steps(log: Path, steps: range, field: str = "loss") -> None:
    with log.open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, field: 2 - step / 100, "lr": 0.1}) + "\n")


@pytest.fixture
def trained(box: Box) -> tuple[Box, Path, list[str]]:
    """Two snapshots with a log of 10 and of 20 steps, and with different configurations."""
    log, ids = box.source / "train.jsonl", []
    for number in range(2):
        add_steps(log, range(10 * number, 10 * number + 10))
        (box.source / "config.yaml").write_text(f"lr: {number}\n")
        ids.append(box.take(tags=("suspect",) if number else ()).id)
    return box, log, ids


def test_the_timeline_follows_the_log_and_the_store(trained: tuple[Box, Path, list[str]]) -> None:
    box, log, ids = trained
    with served(box, "--log", log) as site:
        first = site.ask("/v1/timeline").document
        again = site.ask("/v1/timeline").document
        rate = site.ask("/v1/timeline?field=lr").document
        add_steps(log, range(20, 30))
        third = box.take().id
        found: list[dict[str, object]] = []

        def has_come() -> bool:
            found[:] = site.ask("/v1/timeline").document["markers"]
            return len(found) == 3

        wait_for(has_come, "the new snapshot is not on the timeline")

    assert first == again
    assert first["field"] == "loss"
    assert first["fields"] == ["loss", "lr"]
    assert [(one["id"], one["step"], one["state"]) for one in first["markers"]] == [
        (ids[1], 19, "suspect"),
        (ids[0], 9, "whole"),
    ]
    assert [len(curve) for curve in first["curves"]] == [20]
    assert rate["markers"][0]["value"] == 0.1
    assert (found[0]["id"], found[0]["step"]) == (third, 29)


def test_a_comparison_is_that_of_the_command(trained: tuple[Box, Path, list[str]]) -> None:
    box, log, ids = trained
    wanted = box.ciuic("compare", *ids, "--log", log, "--quick", "--json").document["snapshots"]
    with served(box, "--log", log) as site:
        found = site.ask(f"/v1/compare?id={ids[0]}&id={ids[1]}").document["snapshots"]
        refused = [site.ask("/v1/compare"), site.ask("/v1/compare?" + "&id=latest" * 13)]
        unknown = site.ask("/v1/compare?id=cs-ffffffffffff&id=latest")

    for one, other in zip(found, wanted, strict=True):
        assert {metric["name"]: metric["value"] for metric in one["metrics"]} == other["metrics"]
        assert one["changed_files"] == other["changed_files"]
        diffs = [(file["path"], file["diff"]) for file in one["configuration"]]
        assert diffs == [(file["path"], file["diff"]) for file in other["configuration"]]
        assert one["step"] == other["step"]
    assert [one.status for one in refused] == [400, 400]
    assert unknown.status == 404


def test_a_comparison_follows_a_log_that_was_read_before(box: Box, tmp_path: Path) -> None:
    log, old_s = tmp_path / "train.jsonl", 1_600_000_000
    (box.source / "a").write_text("x")
    box.take()
    for name in (layout.SNAPSHOTS, layout.MARKS):
        if (box.store / name).exists():
            os.utime(box.store / name, (old_s, old_s))  # settled, as the log below
    found = []
    with served(box, "--log", log) as site:
        for step in range(3):
            with log.open("a") as file:
                file.write(json.dumps({"step": step, "loss": 9 - step, "time": old_s}) + "\n")
            os.utime(log, (old_s, old_s))
            found += [site.ask("/v1/compare?id=latest").document["snapshots"][0] for _ in range(2)]

    assert [one["step"] for one in found] == [0, 0, 1, 1, 2, 2]
    assert [one["metrics"] for one in found[::2]] == [
        [{"name": "loss", "value": value}] for value in (9, 8, 7)
    ]


def test_a_log_that_is_overwritten_and_gets_its_time_back_is_read_again(
    box: Box, tmp_path: Path
) -> None:
    log, old_s = tmp_path / "train.jsonl", 1_600_000_000
    (box.source / "a").write_text("x")
    box.take()
    for name in (layout.SNAPSHOTS, layout.MARKS):
        if (box.store / name).exists():
            os.utime(box.store / name, (old_s, old_s))  # settled, as the log below
    found, curves = [], []
    with served(box, "--log", log) as site:
        for loss in (7, 8):
            log.write_text(json.dumps({"step": 1, "loss": loss, "time": old_s}) + "\n")
            os.utime(log, (old_s, old_s))
            found += [site.ask("/v1/compare?id=latest").document["snapshots"][0]["metrics"]]
            curves += [site.ask("/v1/timeline").document["curves"]]

    assert found == [[{"name": "loss", "value": value}] for value in (7, 8)]
    assert curves == [[[[1, value]]] for value in (7, 8)]


@pytest.mark.parametrize("page", ["/compare?id={}&id={}", "/diff?before={}&after={}"])
def test_the_command_line_on_a_page_does_the_same_in_any_shell(
    trained: tuple[Box, Path, list[str]], page: str
) -> None:
    box, _, ids = trained
    with served(box) as site:
        shown = html.unescape(site.ask(page.format(*ids)).body.decode())
    (line,) = re.findall(r'data-copy="(ciuic .*?)">', shown)
    outcome = box.ciuic(*shlex.split(line)[1:])

    assert shlex.split(line)[1:3] == ["--store", str(box.store)]
    assert outcome.code == 0
    assert "config.yaml" in outcome.out


def test_a_comparison_of_tensors_does_not_need_logs_that_are_not_there_yet(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, ids = trained
    missing = [log.with_name("not-yet.jsonl"), log.with_name("none*.jsonl")]
    with served(box, *[word for one in missing for word in ("--log", one)]) as site:
        job = site.ended(site.start(do="compare", snapshots=ids).document["id"])
    assert job["state"] == "done", job
    assert len(job["report"]["snapshots"]) == 2


def test_a_comparison_of_tensors_knows_the_steps_of_the_log(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, ids = trained
    with served(box, "--log", log) as site:
        job = site.ended(site.start(do="compare", snapshots=ids).document["id"])
        shown = site.ask(f"/jobs/{job['id']}").body.decode()
    same = box.ciuic(*shlex.split(job["command"])[1:], "--json").document

    assert [one["step"] for one in job["report"]["snapshots"]] == [9, 19]
    assert [one["step"] for one in same["snapshots"]] == [9, 19]
    assert f"--log={log}" in html.unescape(shown)


def test_a_log_that_is_gone_is_an_answer_and_not_the_end(box: Box) -> None:
    (box.source / "a").write_text("x")
    box.take()
    with served(box, "--log", box.directory / "gone.jsonl") as site:
        for place in ("/v1/timeline", "/timeline", "/v1/compare?id=latest"):
            answer = site.ask(place)
            assert (answer.status, b"No such file" in answer.body) == (400, True)
        assert f"there is no log {box.directory}/gone.jsonl yet" in site.errors.read_text()
        (box.directory / "gone.jsonl").write_text('{"step": 1, "loss": 1}\n')
        assert site.ask("/v1/timeline").document["curves"] == [[[1, 1.0]]]


def test_the_timeline_says_what_was_not_read_and_what_a_scrub_has_found(
    trained: tuple[Box, Path, list[str]],
) -> None:
    box, log, ids = trained
    content = (box.source / "config.yaml").read_bytes()
    with served(box, "--log", log) as site:
        before = site.ask("/v1/timeline").document
        said = site.ask("/timeline").body.decode()
        flip_content(box.store, content)
        assert box.ciuic("scrub").code == 4
        after = site.ask("/v1/timeline").document
        later = site.ask("/timeline").body.decode()

    assert before["unchecked_packs"] > 0
    assert "not read since written" in said
    assert f"<code>ciuic --store {box.store} scrub</code>" in said
    assert {one["id"]: one["state"] for one in after["markers"]}[ids[1]] == "damaged"
    assert after["unchecked_packs"] == 0
    assert "not read since written" not in later


def opened(browser: Browser, site: Served, wrong: list[str]) -> Page:
    page = browser.new_context().new_page()
    page.context.set_default_timeout(LIMIT_MS)
    page.context.expose_function("hit", lambda: wrong.append("a script ran"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("request", lambda ask: None if ask.url.startswith(site.base) else wrong.append(ask.url))
    page.goto(site.url)
    return page


def test_the_script_of_a_chart_is_asked_for_after_the_first_paint(
    browser: Browser, trained: tuple[Box, Path, list[str]]
) -> None:
    box, log, _ = trained
    wrong: list[str] = []
    with served(box, "--log", log) as site:
        page = opened(browser, site, wrong)
        page.goto(f"{site.base}/timeline")
        page.wait_for_selector("#chart canvas")
        painted_ms, asked_ms = page.evaluate(
            "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
            " performance.getEntriesByType('resource')"
            ".find(({name}) => name.includes('uplot.min.js')).startTime]"
        )
        page.context.close()
    assert 0 < painted_ms <= asked_ms
    assert wrong == []


def test_the_chart_is_read_by_keys_and_a_click_opens_the_snapshot(
    browser: Browser, trained: tuple[Box, Path, list[str]]
) -> None:
    box, log, ids = trained
    wrong: list[str] = []
    with served(box, "--log", log) as site:
        page = opened(browser, site, wrong)
        page.click("nav >> text=Timeline")
        page.wait_for_selector("#chart canvas")
        page.focus("#chart")
        page.keyboard.press("End")
        page.wait_for_selector(f"#chosen:has-text('{ids[1]}: step 19')")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"#chosen:has-text('{ids[0]}: step 9')")
        for key in ("+", "-", "0"):
            page.keyboard.press(key)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/snapshots/{ids[0]}")
        page.click("nav >> text=Timeline")
        page.wait_for_selector("#chart canvas")
        area = page.locator("#chart .u-over")
        size = area.bounding_box()
        assert size is not None
        area.click(position={"x": size["width"] - 2, "y": size["height"] / 2})
        page.wait_for_url(f"**/snapshots/{ids[1]}")
        page.go_back()
        for number in range(2):
            page.locator("tbody input").nth(number).check()
        page.click("text=Compare the chosen ones")
        page.wait_for_selector("text=+lr: 0")
        assert page.locator("th:has-text('loss')").count() == 1
        page.context.close()
    assert wrong == []


WRITES_DOWN_TEXTS = """
window.texts = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.texts.push(text);
  return fill.call(this, text, ...rest);
};
"""


def test_the_axis_has_a_name_and_a_snapshot_of_an_earlier_log_says_so(
    browser: Browser, trained: tuple[Box, Path, list[str]]
) -> None:
    box, log, _ = trained
    log.unlink()
    add_steps(log, range(100, 140))
    last = box.take().id
    wrong: list[str] = []
    with served(box, "--log", log) as site:
        page = opened(browser, site, wrong)
        page.add_init_script(WRITES_DOWN_TEXTS)
        page.click("nav >> text=Timeline")
        page.wait_for_selector("#chart canvas")
        said = page.inner_text("#stored")
        rows = page.locator("tbody tr").all_inner_texts()
        page.focus("#chart")
        page.keyboard.press("Home")
        page.wait_for_selector("#chosen:has-text('step 9')")
        first = page.inner_text("#chosen")
        page.keyboard.press("End")
        page.wait_for_selector("#chosen:has-text('step 139')")
        newest = page.inner_text("#chosen")
        drawn = page.evaluate("window.texts")
        page.context.close()
    assert "step" in drawn
    assert {"1.5", "1.75"} <= set(drawn), "the values of the snapshots are far above the curve"
    assert said.startswith("2 snapshots hold a log that has been started over")
    assert [last in row for row in rows] == [True, False, False]
    assert ["stored log" in row for row in rows] == [False, True, True]
    assert "placed by the log that it stores" in first
    assert "stores" not in newest
    assert wrong == []


def test_no_log_and_no_configuration_runs_a_script(browser: Browser, box: Box) -> None:
    field = f"{MARKUP}\u202e\ud800 loss"
    add_steps(box.source / "train.jsonl", range(3), field)
    add_steps(box.source / "train.jsonl", range(3), MARKUP)
    (box.source / f"{MARKUP.replace('/', '')}.yaml").write_text("a: 1\n")
    first = box.take(tags=(MARKUP[:60],)).id
    (box.source / f"{MARKUP.replace('/', '')}.yaml").write_text(f"{MARKUP}\x1b\n\0\n")
    (box.source / os.fsdecode(b"\xff.json")).write_text("{{ 7 * 7 }}")
    second = box.take().id
    wrong: list[str] = []
    with served(box, "--log", box.source / "train.jsonl") as site:
        page = opened(browser, site, wrong)
        page.goto(f"{site.base}/timeline")
        page.wait_for_selector("#chart canvas")
        assert MARKUP in page.inner_text("h1")
        page.goto(f"{site.base}/compare?id={first}&id={second}")
        shown = page.inner_text("main")
        page.context.close()
    assert f"+{MARKUP}\\x1b" in shown
    assert "{{ 7 * 7 }}" in shown
    assert "\\xff.json" in shown
    assert wrong == []
