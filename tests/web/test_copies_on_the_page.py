"""The overview says how far each configured copy is behind."""

import shutil
import subprocess
import sys

from playwright.sync_api import Browser

from tests.kit.box import Box
from tests.kit.program import REPOSITORY
from tests.kit.served import served

LIMIT_MS = 120_000
MARKUP = "<img src=x onerror=hit()>"


def test_the_overview_says_how_far_each_copy_is_behind(browser: Browser, box: Box) -> None:
    copy = box.directory / MARKUP
    (box.source / "model").write_text("one")
    with box.config.open("a") as config:
        config.write(f"copies = {copy}\n")
    box.take()
    wrong: list[str] = []
    with served(box) as site, browser.new_context() as context:
        context.set_default_timeout(LIMIT_MS)
        context.expose_function("hit", lambda: wrong.append("a script ran"))
        page = context.new_page()
        page.goto(site.url)
        fact = page.locator(".facts div:has(dt:text-is('Copies')) dd")

        def shown() -> tuple[str, dict[str, object]]:
            page.goto(site.base)
            (told,) = box.ciuic("status", "--json").document["copies"]
            (answered,) = site.ask("/v1/overview").document["copies"]
            assert told | {"behind_s": answered["behind_s"]} == answered
            return fact.inner_text(), answered

        text, answered = shown()
        assert text == f"{copy}: has nothing from this machine yet"
        assert (answered["tried"], answered["missing"]) == (None, 1)

        assert box.ciuic("copy", "--to", copy, "--init").code == 0
        assert shown()[0] == f"{copy}: has every snapshot"
        wanted = box.ciuic("list", "--json").document
        assert wanted[0]["copies"] == [str(copy)]
        del wanted[0]["damaged"]  # the page leaves that out
        assert site.ask("/v1/snapshots").document["snapshots"] == wanted
        page.goto(f"{site.base}/snapshots/{wanted[0]['id']}")
        assert page.locator(".facts div:has(dt:text-is('Copies')) dd").inner_text() == str(copy)

        (box.source / "model").write_text("two")
        box.take()
        text, answered = shown()
        assert text.startswith(f"{copy}: lacks 1 snapshot, the oldest taken ")
        assert "failed" not in text
        assert answered["missing"] == 1

        shutil.rmtree(copy)
        command = [sys.executable, "-m", "ciuicd", "--config", str(box.config), "--copy"]
        tried = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, timeout=120, check=False
        )
        assert tried.returncode == 1
        text, answered = shown()
        assert f"; the last try failed: {answered['problem']}" in text
    assert wrong == []


def test_a_configuration_without_copies_has_no_such_fact(box: Box) -> None:
    box.take()
    with served(box) as site:
        assert site.ask("/v1/overview").document["copies"] == []
        assert b"<dt>Copies</dt>" not in site.ask("/").body
