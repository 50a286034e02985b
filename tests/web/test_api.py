"""What the HTTP API answers, asked of the real server."""

import html
import json
import os
import re
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.report.doctor.findings import Subject
from ciuic.web import models
from ciuic.web.openapi import ENDPOINTS
from ciuic.web.ranges import ByteSpan, RangeError, parse_range
from ciuic.web.reading import Reading
from tests.kit.box import Box
from tests.kit.damage import flip_content
from tests.kit.served import Served, served

ODD = b"bad\xff \n\x1b[31m<b>&?#%41+'\""


@pytest.fixture(scope="module")
def site_box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    box = Box(tmp_path_factory.mktemp("site"))
    run = box.source / "run"
    run.mkdir()
    (run / "weights.bin").write_bytes(os.urandom(3 * 1024 * 1024 + 17))
    (run / "empty").touch()
    os.symlink("weights.bin", run / "link")
    Path(os.fsdecode(os.fsencode(run) + b"/" + ODD)).write_bytes(b"odd")
    many = box.source / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"{number:05d}").touch()
    box.take(tags=("best",))
    (run / "weights.bin").write_bytes(os.urandom(1024))
    (run / "new").write_text("new")
    box.take()
    return box


@pytest.fixture(scope="module")
def site(site_box: Box) -> Iterator[Served]:
    with served(site_box) as running:
        yield running


def at(path: Path | bytes) -> str:
    return quote_from_bytes(os.fsencode(path))


def test_the_disk_is_full_by_the_rule_of_doctor(site_box: Box):
    """One hour of growth says nothing about a year: at least a day is needed."""
    store = str(site_box.store)
    found = Reading(store, lambda: Subject(store, None, None), site_box.clock).overview()

    added_bytes = site_box.snapshots()[0].stored_bytes
    assert found.free_bytes is not None
    assert found.full_in_s == pytest.approx(found.free_bytes * 86_400 / added_bytes)


def test_every_document_is_as_openapi_describes_it(site: Served):
    job = site.start(do="verify", snapshot="latest").document
    site.ended(job["id"])
    described = site.ask("/v1/openapi.json").document
    assert {
        (method, path) for path, methods in described["paths"].items() for method in methods
    } == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}

    for endpoint in ENDPOINTS:
        if endpoint.method != "get" or not endpoint.answer:
            continue
        place = endpoint.path.replace("{id}", job["id"] if "jobs" in endpoint.path else "latest")
        needed = [name[:-1] for name in endpoint.query if name.endswith("*")]
        values = [f"{name}={'best' if name == 'run' else 'latest'}" for name in needed]
        query = "&".join(2 * values)  # runs are two or more
        answer = site.ask(f"{place}?{query}")
        assert answer.status == 200, endpoint
        found = answer.document
        model = getattr(models, endpoint.answer)
        assert model.model_validate(found).model_dump() == found
        assert set(found) == set(described["components"]["schemas"][endpoint.answer]["properties"])


def test_the_document_says_what_a_request_may_have(site: Served):
    described = site.ask("/v1/openapi.json").document["paths"]
    parameters = {
        (place, one["name"]): one["schema"]
        for place, methods in described.items()
        for one in methods.get("get", {"parameters": []})["parameters"]
    }
    limit = parameters["/v1/snapshots", "limit"]
    assert site.ask(f"/v1/snapshots?limit={limit['maximum']}").status == 200
    assert site.ask(f"/v1/snapshots?limit={limit['maximum'] + 1}").status == 400
    runs = parameters["/v1/runs/compare", "run"]
    assert site.ask("/v1/runs/compare?" + "&run=best" * runs["minItems"]).status == 200
    assert site.ask("/v1/runs/compare?" + "&run=best" * (runs["maxItems"] + 1)).status == 400
    assert parameters["/v1/snapshots/{id}/content", "Range"] == {"type": "string"}


@pytest.mark.parametrize(
    ("place", "allowed"), [("/v1/jobs", "GET, HEAD, POST"), ("/v1/jobs/x", "DELETE, GET, HEAD")]
)
def test_another_method_is_refused_with_those_that_there_are(
    site: Served, place: str, allowed: str
):
    answer = site.ask(place, method="PUT", body={})
    assert answer.status == 405
    assert ", ".join(sorted(answer.headers["allow"].split(", "))) == allowed
    assert answer.document["error"]["kind"] == "usage"


def test_a_number_is_no_truth_value(site: Served):
    assert site.start(do="verify", snapshot="latest", checksum=1).status == 400


def test_the_list_is_that_of_the_command_in_parts(site: Served, site_box: Box):
    wanted = site_box.ciuic("list", "--json").document
    found, after = [], ""
    while after is not None:
        page = site.ask(f"/v1/snapshots?limit=1&after={after}").document
        found += page["snapshots"]
        after = page["next"]

    assert [one.pop("damaged") for one in wanted] == [False, False], "the page leaves that out"
    assert found == wanted
    assert page["total"] == 2
    tagged = site.ask("/v1/snapshots?text=BEST").document["snapshots"]
    assert [one["id"] for one in tagged] == [wanted[1]["id"]]
    assert site.ask("/v1/snapshots?text=nothing").document["snapshots"] == []


def test_a_snapshot_is_as_show_has_it(box: Box):
    with box.config.open("a") as config:
        config.write("exclude_larger_than = 1 GiB\n")
    (box.source / "a").write_text("1")
    assert box.ciuic("snapshot").code == 0
    wanted = box.ciuic("show", "latest", "--json").document
    with served(box) as site:
        found = site.ask("/v1/snapshots/latest").document

    assert wanted["exclude_larger_than_bytes"] == 2**30
    assert wanted.pop("damaged_snapshots") == []
    # The elements of ``list`` have the paths of roots alone.
    listed = found.pop("snapshot") | {"roots": found["roots"]}
    assert found.pop("before") is None
    assert wanted | {"copies": []} == found | listed


def test_a_new_snapshot_and_a_new_tag_are_seen(box: Box):
    (box.source / "a").write_text("1")
    first = box.take().id
    with served(box) as site:
        assert [one["id"] for one in site.ask("/v1/snapshots").document["snapshots"]] == [first]
        (box.source / "a").write_text("2")
        second = box.take().id
        assert box.ciuic("tag", first, "--add", "good").code == 0
        found = site.ask("/v1/snapshots").document["snapshots"]
        assert [(one["id"], one["tags"]) for one in found] == [(second, []), (first, ["good"])]
        assert box.ciuic("forget", first).code == 0
        assert [one["id"] for one in site.ask("/v1/snapshots").document["snapshots"]] == [second]


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_directory_in_parts_is_what_ls_lists(site: Served, site_box: Box, limit: int):
    directory = site_box.source / ("run" if limit < 7 else "many")
    wanted = site_box.ciuic("ls", "latest", directory, "--json").document
    if limit == 7:
        wanted = wanted[:70]
    found, after = [], ""
    while after is not None and len(found) < len(wanted):
        page = site.ask(
            f"/v1/snapshots/latest/tree?path={at(directory)}&limit={limit}&after={after}"
        ).document
        found += page["entries"]
        after = page["next"]
        after = None if after is None else at(os.fsencode(after))

    assert found == wanted


def test_above_the_roots_there_are_the_roots(site: Served, site_box: Box):
    for path in ("/", site_box.directory):
        page = site.ask(f"/v1/snapshots/latest/tree?path={at(os.fsencode(path))}").document
        assert page["entry"] is None
        assert [one["path"] for one in page["entries"]] == [str(site_box.source)]


def test_a_file_and_its_ranges(site: Served, site_box: Box):
    first = site.ask("/v1/snapshots?limit=2").document["snapshots"][1]["id"]
    path = site_box.source / "run" / "weights.bin"
    place = f"/v1/snapshots/{first}/content?path={at(path)}"
    whole = site_box.read(path, first)
    key = {"Authorization": f"Bearer {site.token}"}

    answer = site.ask(place)
    assert (answer.status, answer.body) == (200, whole)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert site.ask(place, method="HEAD").headers["content-length"] == str(len(whole))
    for text, begin, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=1048570-2097170", 1048570, 2097171),
        ("bytes=-5", len(whole) - 5, len(whole)),
        ("bytes=3000000-", 3000000, len(whole)),
    ):
        part = site.ask(place, headers={**key, "Range": text})
        assert (part.status, part.body) == (206, whole[begin:end])
        assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(whole)}"
    beyond = site.ask(place, headers={**key, "Range": f"bytes={len(whole)}-"})
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(whole)}")
    odd = site_box.source / "run" / os.fsdecode(ODD)
    assert site.ask(f"/v1/snapshots/latest/content?path={at(odd)}").body == b"odd"
    empty = site_box.source / "run" / "empty"
    assert site.ask(f"/v1/snapshots/latest/content?path={at(empty)}").body == b""


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_a_slice(size: int, begin: int, end: int):
    data = bytes(range(size))

    def asked(text: str) -> bytes | None:
        try:
            span = parse_range(text, size) or ByteSpan(0, size)
        except RangeError:
            return None
        return data[span.begin : span.end]

    assert asked(f"bytes={begin}-") == (data[begin:] if begin < size else None)
    if begin <= end:
        assert asked(f"bytes={begin}-{end}") == (data[begin : end + 1] if begin < size else None)
    assert asked(f"bytes=-{end}") == (data[-end:] if end and size else None)


def test_a_number_of_any_length_is_beyond_the_file():
    long = "9" * 5000
    assert parse_range(f"bytes=1-{long}", 10) == ByteSpan(1, 10)
    assert parse_range(f"bytes=-{long}", 10) == ByteSpan(0, 10)
    assert parse_range(f"bytes={'0' * 30}2-", 10) == ByteSpan(2, 10)
    with pytest.raises(RangeError):
        parse_range(f"bytes={long}-", 10)


@pytest.mark.parametrize("text", ["bytes=", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2"])
def test_a_range_that_means_nothing_is_ignored(text: str):
    assert parse_range(text, 100) is None


def test_changes_are_those_of_diff(site: Served, site_box: Box):
    new, old = [one["id"] for one in site.ask("/v1/snapshots").document["snapshots"]]
    wanted = site_box.ciuic("diff", old, new, "--json", "--quick").document
    found, more, skip = [], True, 0
    while more:
        page = site.ask(f"/v1/diff?before={old}&after={new}&limit=1&skip={skip}").document
        found += page["changes"]
        more, skip = page["more"], skip + 1

    assert found == [{name: one[name] for name in found[0]} for one in wanted]


@pytest.mark.parametrize(
    ("place", "status", "kind"),
    [
        ("/v1/snapshots/cs-000000", 404, "snapshot_not_found"),
        ("/v1/snapshots/what", 400, "usage"),
        ("/v1/snapshots/latest/tree?path=/nowhere", 404, "path_not_found"),
        ("/v1/snapshots/latest/content?path=/etc/passwd", 404, "path_not_found"),
        ("/v1/snapshots/latest/content?path=/../../etc/passwd", 404, "path_not_found"),
        ("/v1/snapshots/latest/content", 400, "usage"),
        ("/v1/snapshots?limit=many", 400, "usage"),
        ("/v1/snapshots?limit=-1", 400, "usage"),
        ("/v1/snapshots?limit=0", 400, "usage"),
        ("/v1/snapshots?limit=1001", 400, "usage"),
        ("/v1/snapshots?limit=" + "9" * 5000, 400, "usage"),
        ("/v1/snapshots?after=cs-000000", 404, "snapshot_not_found"),
        ("/v1/diff?before=latest", 400, "usage"),
        ("/v1/jobs/none", 404, "job_not_found"),
        ("/v1/jobs/none/events", 404, "job_not_found"),
        ("/v1/none", 404, "path_not_found"),
    ],
)
def test_a_wrong_request_is_an_error_that_says_so(site: Served, place: str, status: int, kind: str):
    answer = site.ask(place)

    assert answer.status == status
    assert answer.document["error"]["kind"] == kind
    assert models.ErrorAnswer.model_validate(answer.document)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"do": "format"}',
        b'{"do": "verify"}',
        b'{"do": "verify", "snapshot": "latest", "more": 1}',
        b'{"do": "restore", "snapshot": "latest", "paths": []}',
        b'{"do": "restore", "snapshot": "latest", "paths": ["/a"], "destination": "relative"}',
        b'{"do": "restore", "snapshot": "latest", "paths": [5]}',
        b'{"do": "restore", "snapshot": "latest", "paths": ["\\ud800"]}',
    ],
)
def test_a_body_that_is_no_job_is_refused(site: Served, body: bytes):
    answer = site.ask("/v1/jobs", method="POST", body=body)

    assert answer.status == 400
    assert answer.document["error"]["kind"] == "usage"
    # A reader of the API does not know these: the names of its classes.
    assert not re.search("validation error|Work", answer.document["error"]["message"])


def test_damage_is_an_error_and_never_wrong_bytes(box: Box):
    small, large = box.source / "small", box.source / "large"
    small.write_bytes(b"small" * 1000)
    large.write_bytes(b"a" * 1024 * 1024 + b"b" * 1024 * 1024 + b"c" * 1024 * 1024)
    box.take()
    flip_content(box.store, b"small" * 1000)
    flip_content(box.store, b"c" * 1024 * 1024)
    with served(box) as site:
        answer = site.ask(f"/v1/snapshots/latest/content?path={at(small)}")
        assert answer.status == 503
        assert answer.document["error"]["kind"] in {"corruption", "digest"}
        with pytest.raises(IncompleteRead) as cut:
            site.ask(f"/v1/snapshots/latest/content?path={at(large)}")
        assert large.read_bytes().startswith(cut.value.partial)
        # The server says on stderr why it broke the connection.
        site.errors.write_text("")


def test_a_store_that_goes_away_and_comes_back(box: Box):
    (box.source / "a").write_text("1")
    box.take()
    away = box.directory / "away"
    with served(box) as site:
        box.store.rename(away)
        for place in ("/v1/snapshots", "/v1/snapshots/latest", "/snapshots"):
            assert site.ask(place).status == 503
        overview = site.ask("/v1/overview").document
        assert overview["level"] == "problem"
        assert site.ask("/").status == 200
        away.rename(box.store)
        assert site.ask("/v1/snapshots").status == 200


def test_a_snapshot_that_is_pruned_while_it_is_shown(box: Box):
    (box.source / "old").write_bytes(b"old" * 1000)
    (box.source / "kept").write_bytes(b"kept" * 1000)
    first = box.take().id
    (box.source / "old").unlink()
    second = box.take().id
    with served(box) as site:
        old = f"/v1/snapshots/{first}/content?path={at(box.source / 'old')}"
        assert site.ask(old).body == b"old" * 1000
        assert site.ask(f"/snapshots/{first}").status == 200
        assert site.ask("/timeline").status == 200
        assert box.ciuic("forget", first, "--trash", "0", "--prune").code == 0

        for place in (old, f"/v1/snapshots/{first}", f"/snapshots/{first}"):
            assert site.ask(place).status == 404
        listed = site.ask("/v1/snapshots").document["snapshots"]
        assert [one["id"] for one in listed] == [second]
        assert first not in site.ask("/timeline").body.decode()
        kept = site.ask(f"/v1/snapshots/{second}/content?path={at(box.source / 'kept')}")
        assert kept.body == b"kept" * 1000
        assert site.ask("/").status == 200


def test_the_overview_is_what_doctor_says(site: Served, site_box: Box):
    found = site.ask("/v1/overview").document
    said = json.loads(site_box.ciuic("doctor", "--json").out)

    assert {one["about"] for one in said["findings"]} - {"configuration"} == {
        one["about"] for one in found["findings"]
    }
    assert found["level"] == ("warning" if said["ok"] else "problem")
    assert found["newest"]["id"] == site_box.snapshots()[0].id
    assert quote(str(site_box.store)) == quote(found["store"])


def test_a_command_in_an_error_reaches_the_store(box: Box):
    with served(box) as site:
        answered = site.ask("/v1/snapshots/cs-000000").document["error"]["hint"]
        page = site.ask("/snapshots/cs-000000").body.decode()
        job = site.start(do="verify", snapshot="cs-000000", checksum=False).document["id"]
        ended = site.ended(job)["error"]["hint"]
    command = f"ciuic --config {box.config} list"
    assert f"'{command}'" in answered
    assert f"'{command}'" in ended
    assert command in html.unescape(page)


def test_the_overview_shows_what_was_checked_and_the_last_drill(box: Box, tmp_path: Path):
    (box.source / "model.bin").write_bytes(os.urandom(5000))
    box.take()
    with served(box) as site:
        found = site.ask("/v1/overview").document
        assert (found["packs"], found["checked_packs"], found["last_drill"]) == (2, 0, None)
        assert box.ciuic("scrub").code == 0
        assert box.ciuic("drill", "--scratch", tmp_path).code == 0
        found = site.ask("/v1/overview").document
        assert (found["packs"], found["checked_packs"]) == (2, 2)
        assert (found["last_drill"]["files"], found["last_drill"]["outcome"]) == (1, "")
        assert "went well: 1 file" in site.ask("/").body.decode()
