"""The timeline with very many snapshots, in a real browser: what is drawn, and how often."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.kit.box import Box
from tests.kit.crowded import multiply
from tests.kit.served import served

LIMIT_MS = 120_000
SNAPSHOTS = 10_000
STEPS = 3_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNTS_SHAPES = """
window.shapes = 0;
const arc = CanvasRenderingContext2D.prototype.arc;
CanvasRenderingContext2D.prototype.arc = function (...rest) {
  window.shapes += 1;
  return arc.apply(this, rest);
};
"""


@pytest.fixture
def crowded(box: Box) -> tuple[Box, Path]:
    """10,000 snapshots, most of them undamaged, along a log with times."""
    (box.source / "weights").write_bytes(b"w" * 1000)
    box.take()
    states = {10: {"flux_count": 1}, 20: {"tags": ("suspect",)}, 30: {"pinned": True}}
    multiply(box, SNAPSHOTS, lambda number: states.get(number % 100, {}))
    began_ns = min(one.taken_ns for one in box.snapshots())
    log = box.directory / "train.jsonl"
    with log.open("w") as file:
        for step in range(STEPS):
            at_s = began_ns / 1e9 + step * SNAPSHOTS / STEPS
            line = {"step": step, "loss": 2 + 1000 / (step + 500), "ts": at_s}
            file.write(json.dumps(line) + "\n")
    return box, log


def drawn(page: Page) -> int:
    """Return how many shapes were drawn so far, once the page has finished drawing."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    found = page.evaluate("window.shapes")
    assert isinstance(found, int)
    return found


def test_moving_over_10000_snapshots_draws_none_of_them_again(
    browser: Browser, crowded: tuple[Box, Path]
) -> None:
    box, log = crowded
    with served(box, "--log", log) as site, browser.new_context() as context:
        context.set_default_timeout(LIMIT_MS)
        context.add_init_script(COUNTS_SHAPES)
        page = context.new_page()
        page.goto(site.url)
        page.goto(f"{site.base}/timeline")
        page.wait_for_selector("#chart canvas")
        area = page.locator("#chart .u-over")
        size = area.bounding_box()
        assert size is not None
        before = drawn(page)
        said = set()
        for part in range(1, 20):
            page.mouse.move(size["x"] + size["width"] * part / 20, size["y"] + 50)
            page.wait_for_selector(".ring:not([hidden])")
            said.add(page.inner_text("#chosen"))
        page.focus("#chart")
        page.keyboard.press("End")
        page.wait_for_selector(f"#chosen:has-text('step {STEPS - 1:,}')")
        ring = page.locator(".ring").bounding_box()
        assert drawn(page) == before
        page.keyboard.press("+")
        assert drawn(page) > before, "a zoom draws the chart again"
        page.keyboard.press("0")
        area.click(position={"x": size["width"] / 2, "y": size["height"] / 2})
        page.wait_for_url("**/snapshots/cs-*")

    assert before > 100
    assert len(said) > 10, "the mouse chooses another snapshot at each place"
    assert ring is not None
    assert ring["x"] + ring["width"] / 2 == pytest.approx(size["x"] + size["width"], abs=3)
