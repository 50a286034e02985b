"""The page in a real browser: hostile names, a restore by clicks, keyboards, narrow screens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page

from tests.kit.box import Box
from tests.kit.mounted import wait_for
from tests.kit.served import Gate, Served, served
from tests.kit.trees import photograph

LIMIT_MS = 120_000
MARKUP = "<img src=x onerror=hit()><script>hit()</script>"
NAMES = [
    os.fsencode(MARKUP.replace("/", "\u2215")),
    b"\"' onmouseover=hit() x='",
    b"{{ 7 * 7 }}{% raw %}",
    b"javascript:hit()",
    b"bad \xff\xfe \x1b[2J\n\x07",
    "\u202egnp.exe".encode(),
    b"--help",
    b"%2e%2e%2f",
]


class Watched:
    """A page, and its faults: scripts that ran, errors, requests to other servers."""

    def __init__(self, context: BrowserContext, site: Served) -> None:
        context.set_default_timeout(LIMIT_MS)
        self.wrong: list[str] = []
        context.expose_function("hit", lambda: self.wrong.append("a script ran"))
        self.page: Page = context.new_page()
        self.page.on("dialog", lambda dialog: self.wrong.append("a dialog"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("request", lambda request: self._check(request.url, site.base))
        self.page.goto(site.url)

    def _check(self, url: str, base: str) -> None:
        if not url.startswith(base):
            self.wrong.append(url)


def follow(link: Locator) -> None:
    """Click a link, and wait for its page, so that the test's next steps act on that page."""
    with link.page.expect_navigation():
        link.click()


@pytest.fixture
def hostile(box: Box) -> Box:
    """A box whose names, tags and root would run scripts on a careless page."""
    root = Path(os.fsdecode(os.fsencode(box.source) + b"/" + NAMES[0]))
    root.mkdir()
    box.configure(root)
    box.take(root)
    for name in NAMES:
        (root / os.fsdecode(name)).write_bytes(name)
    os.symlink(MARKUP, root / "link")
    box.take(root, tags=(MARKUP[:60],))
    return box


def test_no_name_runs_a_script(browser: Browser, hostile: Box):
    newest = hostile.snapshots()[0].id
    root = hostile.snapshots()[0].roots[0]
    with served(hostile) as site, browser.new_context() as context:
        watched = Watched(context, site)
        page = watched.page
        assert "token" not in page.url
        follow(page.locator("text=Snapshots >> nth=0"))
        follow(page.locator(f"a:has-text('{newest}')").first)
        assert page.locator("text=Changed since the one before").count() == 1
        follow(page.locator("table a >> nth=0"))
        links = page.locator("table a")
        assert links.count() == len(NAMES) + 1
        shown = links.all_text_contents()
        assert "bad \\xff\\xfe \\x1b[2J\\n\\x07" in shown
        assert "\\u202egnp.exe" in shown
        assert MARKUP.replace("/", "\u2215") in shown
        for number in range(links.count()):
            follow(links.nth(number))
            assert page.locator("text=Owner").or_(page.locator("text=owner")).count()
            if page.locator("a:has-text('Download')").count():
                with page.expect_download() as download:
                    page.click("a:has-text('Download')")
                assert download.value.path().read_bytes() in NAMES
            page.go_back()
        page.goto(f"{site.base}/snapshots?text={MARKUP.replace('/', '%2F')}")
        assert MARKUP in page.locator("main").inner_text()
        page.goto(f"{site.base}/snapshots/{newest}/restore")
        page.fill("#destination", str(hostile.directory / MARKUP.replace("/", "")))
        page.click("text=Show the plan")
        page.wait_for_selector("text=Would write")
        assert os.fsdecode(root) in page.locator("main").inner_text()
        page.goto(f"{site.base}/snapshots/{MARKUP.replace('/', '%2F')}", wait_until="load")
        # The browser reports that this address was not found, and nothing else.
        assert [what for what in watched.wrong if "404" not in what and "400" not in what] == []
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=hit()>')")
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'hit()'}))"
        )
        page.goto(site.base)
        assert "a script ran" not in watched.wrong


def test_a_restore_by_clicks_goes_on_when_the_browser_is_closed(
    browser: Browser, box: Box, tmp_path: Path
):
    (box.source / "model.pt").write_bytes(os.urandom(300_000))
    snapshot = box.take().id
    out, gate = tmp_path / "out", Gate(tmp_path, "os.mkdir")
    with served(box, gate=gate) as site:
        with browser.new_context() as context:
            page = Watched(context, site).page
            page.goto(f"{site.base}/snapshots/{snapshot}")
            page.click("text=Restore all")
            page.fill("#destination", str(out))
            page.click("text=Show the plan")
            page.click("text=Restore now")
            page.wait_for_selector("text=It goes on if you close this page")
            gate.wait()
            assert not (out / "source" / "model.pt").exists()
        gate.open()
        wait_for((out / "source" / "model.pt").exists, "the restore did not go on")
        with browser.new_context() as context:
            watched = Watched(context, site)
            follow(watched.page.locator("text=Jobs"))
            follow(watched.page.locator("table a >> nth=0"))
            watched.page.wait_for_selector("text=Wrote")
            assert f"-d {out}" in watched.page.locator(".command code").inner_text()
            assert watched.wrong == []

    assert photograph(out / "source") == photograph(box.source)


def test_a_file_is_downloaded_by_a_click_under_its_name(browser: Browser, box: Box):
    content = os.urandom(3 * 1024 * 1024 + 5)
    (box.source / "model \u00e9.pt").write_bytes(content)
    snapshot = box.take().id
    (box.source / "model \u00e9.pt").write_bytes(b"newer")
    box.take()
    with served(box) as site, browser.new_context() as context:
        watched = Watched(context, site)
        page = watched.page
        page.goto(f"{site.base}/snapshots/{snapshot}")
        follow(page.locator("table a:has-text('source')"))
        follow(page.locator("table a:has-text('model')"))
        with page.expect_download() as download:
            page.click("a[download]")
        found = download.value.path().read_bytes()
        assert download.value.suggested_filename == "model \u00e9.pt"
        assert watched.wrong == []
    assert found == content


WRITER = """
import sys
open("/proc/self/comm", "w").write(sys.argv[1])
file = open(sys.argv[2], "a")
print(flush=True)
sys.stdin.read()
"""


def test_a_file_that_was_being_written_names_the_program(browser: Browser, box: Box):
    name = "<b id=evil>\\"
    (box.source / "model.pt").write_bytes(b"half")
    (box.source / "other").write_bytes(b"whole")
    command = [sys.executable, "-c", WRITER, name, box.source / "model.pt"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        snapshot = box.take().id
        writer.communicate()
    who = f"open for writing by {name} (pid {writer.pid})"
    with served(box) as site, browser.new_context() as context:
        watched = Watched(context, site)
        page = watched.page
        page.goto(f"{site.base}/snapshots/{snapshot}?path={box.source}")
        rows = page.locator("table").last.locator("tbody tr").all_inner_texts()
        follow(page.locator("table a:has-text('model.pt')"))
        state = page.locator(".facts div:has(dt:text-is('State')) dd").inner_text()
        assert page.locator("#evil").count() == 0
        assert watched.wrong == []
    (written, other) = rows
    assert who in written
    assert "writing" not in other
    assert state == f"in flux: {who}"


def test_a_refusal_is_shown(browser: Browser, box: Box):
    (box.source / "a").write_text("1")
    box.take()
    with served(box) as site, browser.new_context() as context:
        page = Watched(context, site).page
        page.goto(f"{site.base}/snapshots/latest/restore")
        page.fill("#destination", "relative")
        page.click("text=Show the plan")
        page.wait_for_selector("#failed:not([hidden])")
        assert "is relative" in page.locator("#failed").inner_text()
        page.fill("#destination", "")
        page.click("text=Show the plan")
        page.wait_for_selector(".box.problem:has-text('exists already')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_and_is_read_by_keyboard(browser: Browser, box: Box, scheme: str):
    (box.source / ("long" * 50)).write_text("1")
    box.take(tags=("x" * 60,))
    options = {"color_scheme": scheme, "viewport": {"width": 360, "height": 700}}
    papers = set()
    with served(box) as site, browser.new_context(**options) as context:
        watched = Watched(context, site)
        page = watched.page
        job = site.start(do="verify", snapshot="latest").document
        site.ended(job["id"])
        for place in (
            "/",
            "/snapshots",
            "/snapshots/latest",
            f"/snapshots/latest?path={box.source}",
            f"/snapshots/latest?path={box.source}/{'long' * 50}",
            "/snapshots/latest/restore",
            "/diff?before=latest&after=latest",
            "/timeline",
            "/compare?id=latest&id=latest",
            "/store",
            "/jobs",
            f"/jobs/{job['id']}",
        ):
            page.goto(site.base + place)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, place
            assert page.locator("h1").count() == 1
            assert page.locator("html[lang=en]").count() == 1
            papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.goto(site.base + "/snapshots")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "text"
        page.keyboard.type("nothing")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=No snapshot has")
        page.goto(site.base + "/snapshots")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert watched.wrong == []

    (paper,) = papers
    lightness = sum(int(part) for part in paper.removeprefix("rgb(").rstrip(")").split(","))
    assert (lightness > 382) == (scheme == "light")
