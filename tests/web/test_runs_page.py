"""Runs side by side: through the API, and in a real browser."""

import json
import math
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser

from ciuic.web.shown import meant, sent, shown
from tests.kit.box import Box
from tests.kit.served import served

LIMIT_MS = 120_000
MARKUP = "<img src=x onerror=hit()>"


@pytest.fixture
def trained(box: Box) -> tuple[Box, list[str]]:
    """Two directories of runs, one with markup in its name, in two snapshots."""
    runs = [box.source / "run-a", box.source / MARKUP]
    for number, run in enumerate(runs):
        run.mkdir()
        (run / "config.yaml").write_text(f"lr: {number}\n")
        np.save(run / "w.npy", np.full(1000, 1 + number, np.float32))
    for first in (0, 10):
        for number, run in enumerate(runs):
            with (run / "log.jsonl").open("a") as file:
                for step in range(first, first + 10):
                    line = {"step": step, "loss": (step - 9) ** 2 + number, MARKUP: step}
                    file.write(json.dumps(line) + "\n")
        box.take()
    return box, list(map(str, runs))


def test_a_comparison_of_runs_is_that_of_the_command(trained: tuple[Box, list[str]]) -> None:
    box, runs = trained
    wanted = box.ciuic("compare", "--runs", *runs, "--best", "loss", "--quick", "--json").document
    query = "&".join(f"run={quote(run)}" for run in runs)
    with served(box) as site:
        known = site.ask("/v1/runs").document["runs"]
        found = site.ask(f"/v1/runs/compare?{query}&best=loss&limit=10").document
        refused = [
            site.ask(f"/v1/runs/compare?{more}").status
            for more in (
                "",
                "run=a",
                "&".join(["run=a"] * 13),
                f"{query}&field=gone",
                "run=a&run=b",
            )
        ]

    assert known == [str(box.source)]
    assert [one["run"] for one in found["runs"]] == runs
    assert [one["last_step"] for one in found["runs"]] == [19, 19]
    assert [one["step"] for one in (run["chosen"] for run in found["runs"])] == [9, 9]
    chosen = [one["chosen"] for one in found["runs"]]
    assert [one["snapshot"]["id"] for one in chosen] == [one["id"] for one in wanted["snapshots"]]
    assert chosen[1]["changed_files"] == wanted["snapshots"][1]["changed_files"]
    assert (
        chosen[1]["configuration"][0]["diff"]
        == (wanted["snapshots"][1]["configuration"][0]["diff"])
    )
    (loss,) = [one for one in wanted["metrics"] if one["field"] == "loss"]
    assert (found["steps"], found["values"]) == (loss["steps"], loss["values"])
    assert [len(one["curve"]) for one in found["runs"]] == [20, 20]
    assert refused == [400, 400, 400, 400, 404]


def test_the_page_says_where_a_run_has_no_finite_value(box: Box) -> None:
    for name, end in (("good", 1.0), ("bad", math.nan)):
        (box.source / name).mkdir()
        lines = [json.dumps({"step": at, "loss": end if at else 2.0}) for at in range(3)]
        (box.source / name / "log.jsonl").write_text("\n".join(lines) + "\n")
    box.take()
    query = "&".join(f"run={box.source}/{name}" for name in ("good", "bad"))
    with served(box) as site:
        found = site.ask(f"/v1/runs/compare?{query}").document
        page = site.ask(f"/runs?{query}").body.decode()

    assert found["values"] == [[2.0, 2.0], [1.0, None], [1.0, None]]
    assert [one["not_finite_from"] for one in found["runs"]] == [None, 1]
    assert found["runs"][1]["curve"] == [[0, 2.0]]
    # Two steps, and the last snapshot.
    assert page.count(">not finite<") == 3


def test_runs_are_chosen_and_compared_on_the_page_with_their_tensors(
    browser: Browser, trained: tuple[Box, list[str]]
) -> None:
    box, runs = trained
    wrong: list[str] = []
    with served(box) as site:
        page = browser.new_context().new_page()
        page.context.set_default_timeout(LIMIT_MS)
        page.context.expose_function("hit", lambda: wrong.append("a script ran"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(site.url)
        page.click("nav >> text=Runs")
        page.get_by_label("Another directory").fill(runs[0])
        page.get_by_label("And another one").fill(runs[1])
        page.get_by_label("with the lowest").fill("loss")
        page.click("main form button.primary")
        page.wait_for_selector("#chart canvas")
        page.wait_for_selector("text=The best snapshot of each")
        page.wait_for_selector("text=+lr: 1")
        assert page.locator("td.number", has_text="0 added, 0 removed, 3 changed").count() == 1
        page.select_option("#field", MARKUP)
        page.click("text=Draw")
        page.wait_for_selector(f"h1:has-text('{MARKUP}')")
        page.click("text=Compare the tensors")
        page.wait_for_selector("th:has-text('array')")
        page.context.close()
    assert wrong == []


@pytest.mark.parametrize("name", ["a", "b\udcff", "c\ud800", "\ude00\ud83d", "d\\e", "f\u202e"])
def test_a_form_may_send_a_name_back_as_it_was_shown_or_sent(name: str) -> None:
    names = ["other", name]

    assert [meant(text, names) for text in (name, shown(name), sent(name).decode())] == [name] * 3


def test_forms_keep_names_with_characters_that_are_shown_as_escapes(
    browser: Browser, box: Box
) -> None:
    odd = "\x1b[2J\u202e\n"
    runs = [box.source / f"{number}{odd}" for number in range(2)]
    for run in runs:
        run.mkdir()
        lines = [json.dumps({"step": step, "loss": 1, f"top{odd}": step}) for step in range(5)]
        (run / "log.jsonl").write_text("\n".join(lines))
    log = runs[0] / "log.jsonl"
    box.take()
    box.take(runs[0])
    query = "&".join(f"run={quote(str(run))}" for run in runs) + f"&best={quote(f'max:top{odd}')}"
    with served(box, "--log", log) as site, browser.new_context() as context:
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.goto(site.url)
        page.goto(f"{site.base}/runs?{query}")
        page.select_option("#field", index=1)
        page.click("text=Draw")
        page.wait_for_selector("h1:has-text('top\\\\x1b[2J')")
        page.wait_for_selector("#chart canvas")
        page.click("summary")
        with page.expect_navigation():
            page.click("main form button.primary")
        page.wait_for_selector("text=The best snapshot of each")
        (work,) = page.locator("[data-job*=compare_runs]").all()
        assert json.loads(work.get_attribute("data-job") or "") == {
            "do": "compare_runs",
            "runs": list(map(str, runs)),
            "best": f"max:top{odd}",
        }
        page.goto(f"{site.base}/timeline")
        page.select_option("#field", index=1)
        page.click("text=Draw")
        page.wait_for_selector("#chart canvas")
        page.goto(f"{site.base}/snapshots?text={quote(odd.strip())}")
        with page.expect_navigation():
            page.click("button:has-text('Find')")
        assert page.locator("tbody tr").count() == 1
