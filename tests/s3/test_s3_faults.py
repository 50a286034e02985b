"""A place on a real S3 server keeps its promises when the network and the server fail."""

import dataclasses
import os
import re
import socket
import traceback

import pytest

from ciuic.errors import (
    AccessDeniedError,
    CiuicError,
    LostRaceError,
    MissingError,
    OfflineError,
    StoreError,
    StoreFullError,
    UnsupportedError,
)
from ciuic.store.place.address import open_place
from ciuic.store.place.location import PlaceOptions
from ciuic.store.place.place import ByteRange
from ciuic.store.place.probe import Abilities, probe
from ciuic.store.place.uploads.body import FileBody
from tests.kit import faulty_proxy as faults
from tests.kit.ceph import ACCESS_KEY, SECRET_KEY
from tests.kit.clock import ManualClock
from tests.kit.place_contract import keys

pytestmark = [pytest.mark.slow, pytest.mark.root]

TEMPORARY = {
    "500": faults.status(500, "InternalError"),
    "502": faults.status(502),
    "503": faults.status(503, "SlowDown"),
    "504": faults.status(504),
    "429": faults.status(429, "TooManyRequests"),
    "409": faults.status(409, "ConditionalRequestConflict"),
    "408": faults.status(408, "RequestTimeout"),
    "dropped": faults.drop,
    "answer lost": faults.lose_answer,
    "error after it was done": faults.fail_after(500),
    "arrives twice": faults.repeat,
    "answer cut": faults.cut,
}


@pytest.fixture
def proxy(server):
    with faults.faulty_proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def place(server, proxy, clock, address):
    """A place behind the proxy. Its pauses take no time."""
    options = PlaceOptions(endpoint=proxy.endpoint, quick_s=5)
    return open_place(address, server.environment, options, clock=clock)


@pytest.fixture
def other(server, place):
    """The same place, reached by another machine without faults."""
    return open_place(place.name, server.environment, PlaceOptions(endpoint=server.endpoint))


@pytest.fixture(params=TEMPORARY, ids=str)
def fault(request):
    return TEMPORARY[request.param]


def test_a_read_survives_each_fault(place, proxy, fault):
    data = bytes(range(256)) * 100
    place.put("packs/a", data)
    for ask, expected in (
        (lambda: place.get("packs/a", 100_000), data),
        (lambda: place.get_versioned("packs/a", 100_000).data, data),
        (lambda: place.get_ranges("packs/a", [ByteRange(3, 5)]), [data[3:8]]),
        (lambda: place.size_bytes("packs/a"), len(data)),
        (lambda: keys(place), ["packs/a"]),
    ):
        proxy.inject(fault, fault)
        assert ask() == expected
        # A request that arrives twice is answered; so is one whose answer has no body to cut.
        assert proxy.heal() == 0 or fault in {faults.cut, faults.repeat}


def test_a_write_survives_each_fault(place, proxy, other, fault):
    proxy.inject(fault, fault)
    place.put("packs/a", b"content")
    assert other.get("packs/a", 100) == b"content"

    proxy.inject(fault, fault)
    place.delete(["packs/a", "packs/none"])
    assert keys(other) == []


@pytest.fixture
def large(tmp_path):
    """A file that is sent from the disk."""
    path = tmp_path / "pack"
    path.write_bytes(os.urandom(2_000_000))
    with path.open("rb", buffering=0) as file:
        yield FileBody(file, 2_000_000)


def test_a_file_survives_each_fault(place, proxy, other, fault, large):
    proxy.inject(fault, fault)
    place.put_file("packs/a", large)

    assert other.get("packs/a", 2_000_000) == large.read()


def test_a_file_that_changes_on_its_way_is_refused_and_sent_again(place, proxy, other, large):
    senders = []

    def change(request, forward):
        senders.append("user-agent" in {name.lower() for name in request.headers})
        if len(senders) == 1:
            last = bytes([request.body[-1] ^ 1])
            request = dataclasses.replace(request, body=request.body[:-1] + last)
        return forward(request)

    proxy.always(change)
    place.put_file("packs/a", large)
    assert other.get("packs/a", 2_000_000) == large.read()
    assert senders == [False, True], "from the disk, and then by the client"


def test_a_file_is_sent_by_one_request_that_the_server_accepts(place, proxy, other, large):
    place.put_file("packs/a", large)

    assert other.get("packs/a", 2_000_000) == large.read()
    assert len(proxy.requests) == 1


def test_a_create_survives_each_fault_and_knows_its_own_object(place, proxy, other, fault):
    proxy.inject(fault, fault)
    place.create("marks/1", b"mine")

    assert other.get("marks/1", 100) == b"mine"
    proxy.inject(fault, fault)
    with pytest.raises(LostRaceError):
        place.create("marks/1", b"other")
    assert other.get("marks/1", 100) == b"mine"


def test_a_replacement_survives_each_fault(place, proxy, other, fault):
    version = place.create("state", b"1")
    proxy.inject(fault, fault)
    second = place.replace("state", b"2", version)

    assert other.get("state", 100) == b"2"
    proxy.inject(fault, fault)
    with pytest.raises(LostRaceError):
        place.replace("state", b"3", version)
    assert other.get("state", 100) == b"2"
    assert place.replace("state", b"4", second)


def test_an_object_that_another_writer_created_meanwhile_is_not_taken_for_the_own(
    place, proxy, other
):
    def another_is_first(request, forward):
        other.create("marks/1", b"another")
        return faults.lose_answer(request, forward)

    proxy.inject(another_is_first)

    with pytest.raises(LostRaceError, match=r"another writer has created it"):
        place.create("marks/1", b"mine")
    assert other.get("marks/1", 100) == b"another"


def test_a_create_whose_answer_is_lost_and_whose_object_is_deleted_has_lost(place, proxy, other):
    def done_and_deleted(request, forward):
        answer = forward(request)
        other.delete(["marks/1"])
        return faults.Answer(412, [], answer.body)

    proxy.inject(done_and_deleted)

    with pytest.raises(LostRaceError):
        place.create("marks/1", b"mine")


def test_a_request_that_arrives_late_changes_no_created_object(server, proxy, address, other):
    # Real pauses: the first request runs into its time limit.
    options = PlaceOptions(endpoint=proxy.endpoint, quick_s=1)
    place = open_place(other.name, server.environment, options)
    held = faults.Held()
    proxy.inject(held)

    version = place.create("marks/1", b"mine")
    held.release()

    assert held.late_status == 412
    assert other.get_versioned("marks/1", 100).version.tag == version.tag


def test_a_listing_whose_pages_are_cut_is_complete(place, proxy, other):
    from concurrent.futures import ThreadPoolExecutor

    expected = [f"packs/{number:04}" for number in range(2100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: other.put(key, b"x"), expected))
    seen = 0

    def cut_every_other(request, forward):
        nonlocal seen
        seen += 1
        return faults.cut(request, forward) if seen % 2 else forward(request)

    proxy.always(cut_every_other)
    assert keys(place, "packs") == expected
    assert keys(place, "packs", "packs/1500") == expected[1501:]
    assert seen > 6


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (faults.status(503, "SlowDown"), "the server answered 503 SlowDown"),
        (faults.drop, "(the connection failed|the server's answer ended early)"),
        (faults.cut, "the server's answer ended early"),
    ],
)
def test_a_server_that_never_answers_ends_in_one_sentence_in_time(place, proxy, clock, fault, why):
    place.put("a", b"content")
    began_s = clock.monotonic_s()
    proxy.always(fault)

    with pytest.raises(OfflineError) as caught:
        place.get("a", 100)

    tried = r"\(\d+ attempts in \d+ s\)"
    assert re.fullmatch(f"cannot read {place.name}/a: {why} {tried}", caught.value.message)
    assert caught.value.hint
    assert 60 < clock.monotonic_s() - began_s <= 90
    assert 10 < len(proxy.requests) < 100


def test_the_pauses_grow_and_are_random(place, proxy, clock, monkeypatch):
    pauses = []
    advance = clock.sleep
    monkeypatch.setattr(clock, "sleep", lambda s: (pauses.append(s), advance(s)))
    proxy.inject(*[faults.status(503)] * 12)

    place.put("a", b"x")

    assert len(pauses) == 12
    assert all(pause <= 0.1 * 2**number for number, pause in enumerate(pauses))
    assert max(pauses[:4]) < 0.8 < max(pauses[6:])
    assert max(pauses) <= 10
    assert len(set(pauses)) == 12


def test_a_server_that_is_not_there_is_named(server, clock, bucket):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        options = PlaceOptions(endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}")
        place = open_place(f"s3://{bucket}/x", server.environment, options, clock=clock)

        with pytest.raises(
            OfflineError,
            match=rf"^cannot list s3://.*: the server {options.endpoint} cannot be reached",
        ):
            keys(place)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (faults.status(403, "QuotaExceeded"), StoreFullError),
        (faults.status(507), StoreFullError),
        (faults.status(403, "AccessDenied"), AccessDeniedError),
        (faults.status(401), AccessDeniedError),
        (faults.status(501, "NotImplemented"), UnsupportedError),
        (faults.status(400, "InvalidRequest"), StoreError),
        (faults.status(404, "NoSuchBucket"), StoreError),
        (faults.status(301, "PermanentRedirect"), StoreError),
    ],
)
def test_an_error_that_lasts_is_not_tried_again(place, proxy, fault, kind):
    proxy.always(fault)
    for write in (place.put, place.create):
        before = len(proxy.requests)
        with pytest.raises(kind) as caught:
            write("a", b"x")
        assert type(caught.value) is kind
        assert len(proxy.requests) == before + 1
        assert caught.value.hint
    with pytest.raises(kind) as caught:
        keys(place)
    assert type(caught.value) is kind


def test_a_key_that_may_not_be_deleted_is_refused_at_once(place, proxy):
    place.put("a", b"x")
    place.put("b", b"y")
    proxy.always(faults.refuse_each_key("AccessDenied"))
    for wanted in (["a"], ["a", "b"]):
        before = len(proxy.requests)
        with pytest.raises(AccessDeniedError, match=r"cannot delete s3://.*AccessDenied") as caught:
            place.delete(wanted)
        assert len(proxy.requests) == before + 1
        assert "delete" in caught.value.hint
    assert keys(place) == ["a", "b"]


def test_a_key_that_is_refused_for_an_unknown_reason_is_not_tried_again(place, proxy):
    proxy.always(faults.refuse_each_key("ObjectLocked"))
    with pytest.raises(StoreError, match="ObjectLocked") as caught:
        place.delete(["a"])
    assert type(caught.value) is StoreError
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
def test_a_key_that_the_server_cannot_delete_now_is_tried_again(place, proxy, code):
    place.put("a", b"x")
    proxy.inject(*[faults.refuse_each_key(code)] * 3)
    place.delete(["a"])
    assert keys(place) == []


def test_a_key_that_the_server_reports_as_absent_counts_as_deleted(place, proxy):
    place.put("b", b"x")
    proxy.inject(*[faults.refuse_each_key("NoSuchKey")] * 2)
    place.delete(["a", "b"])
    assert keys(place) == []


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (403, "RequestTimeTooSkewed", "the clock of this machine"),
        (403, "ExpiredToken", "new credentials"),
        (400, "ExpiredToken", "new credentials"),  # as Amazon says it
        (400, "TokenRefreshRequired", "new credentials"),
        (400, "InvalidToken", "Correct the credentials"),
    ],
)
def test_credentials_that_are_refused_for_a_known_reason_come_with_a_remedy(
    place, proxy, status, code, hint
):
    proxy.always(faults.status(status, code))
    with pytest.raises(AccessDeniedError, match=code) as caught:
        place.put("a", b"x")
    assert hint in caught.value.hint


def test_a_look_that_is_refused_without_a_reason_may_be_of_expired_credentials(place, proxy):
    proxy.always(faults.status(400))
    with pytest.raises(AccessDeniedError, match="answered 400") as caught:
        place.size_bytes("a")
    assert "temporary" in caught.value.hint


@pytest.fixture
def key_file(tmp_path):
    """A file with an access key that the server does not know."""
    path = tmp_path / "key"
    write_key(path, "revoked")
    return path


def write_key(path, key_id):
    path.touch(0o600)
    path.write_text(
        f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = {SECRET_KEY}\n"
    )


@pytest.mark.parametrize(
    "act",
    [
        lambda place: place.put("b", b"x"),
        lambda place: place.put("b", b"x" * 2_000_000),
        lambda place: place.create("b", b"x"),
        lambda place: place.replace("a", b"y", place.get_versioned("a", 20_000_000).version),
        lambda place: place.get("a", 10),
        lambda place: place.get_ranges("a", [ByteRange(0, 1), ByteRange(9_000_000, 1)]),
        lambda place: place.size_bytes("a"),
        keys,
        lambda place: place.delete(["a"]),
    ],
)
def test_a_request_that_is_refused_is_sent_again_with_the_new_key_of_the_file(
    server, other, address, key_file, act
):
    other.put("a", b"x" * 10_000_000)
    options = PlaceOptions(endpoint=server.endpoint, credentials_file=str(key_file))
    place = open_place(address, {}, options)
    with pytest.raises(AccessDeniedError, match="the server answered 403") as caught:
        act(place)
    if "InvalidAccessKeyId" in caught.value.message:  # an answer to HEAD does not say it
        assert f"that of {key_file}" in caught.value.hint
    key_file.write_text("")  # it is just being written
    with pytest.raises(AccessDeniedError):
        act(place)

    write_key(key_file, ACCESS_KEY)

    act(place)


def test_a_server_that_ignores_conditions_is_found_out(place, proxy, other, sign):
    proxy.always(faults.ignore_conditions(sign))

    assert probe(place) == Abilities(creates=False, replaces=False, lists_at_once=True)
    assert keys(other) == []


def test_a_server_without_conditions_is_found_out(place, proxy):
    def refuse(request, forward):
        if {"if-match", "if-none-match"} & {name.lower() for name in request.headers}:
            return faults.status(501, "NotImplemented")(request, forward)
        return forward(request)

    proxy.always(refuse)

    assert probe(place) == Abilities(creates=False, replaces=False, lists_at_once=True)


def test_a_server_with_stale_listings_is_found_out(place, proxy):
    proxy.always(faults.StaleListings())
    keys(place, "probe")

    assert not probe(place).lists_at_once


def test_a_probe_through_a_bad_network_finds_what_is_there(place, proxy):
    proxy.inject(*TEMPORARY.values(), *TEMPORARY.values())

    assert probe(place) == Abilities(creates=True, replaces=True, lists_at_once=True)


def all_texts(place, error: CiuicError) -> str:
    shown = [repr(place), str(place), error.message, error.hint, repr(error)]
    return "\n".join([*shown, *traceback.format_exception(error)])


def test_no_message_shows_a_credential(server, proxy, clock, address):
    token = "a-token-that-no-message-shows"
    wrong = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY + "x",
        "AWS_SESSION_TOKEN": token,
    }
    place = open_place(address, wrong, PlaceOptions(endpoint=proxy.endpoint), clock=clock)

    def echo(request, _forward):
        return faults.Answer(400, [], f"{request.headers} {SECRET_KEY}".encode())

    for fault, kind in (
        (None, AccessDeniedError),
        (echo, StoreError),
        (faults.drop, OfflineError),
    ):
        proxy.always(fault)
        for act in (
            lambda: place.get("a", 10),
            lambda: place.put("a", b"x"),
            lambda: place.create("a", b"x"),
            lambda: keys(place),
            lambda: place.delete(["a"]),
            lambda: probe(place),
        ):
            with pytest.raises(kind) as caught:
                act()
            text = all_texts(place, caught.value)
            assert not [word for word in (ACCESS_KEY, SECRET_KEY, token) if word in text]
            assert "Signature" not in caught.value.message.replace("SignatureDoesNotMatch", "")


def test_a_missing_bucket_is_named(server, clock):
    options = PlaceOptions(endpoint=server.endpoint)
    place = open_place("s3://no-such-bucket/x", server.environment, options, clock=clock)

    for act in (lambda: place.put("a", b"x"), lambda: keys(place), lambda: place.get("a", 1)):
        with pytest.raises(StoreError, match="the bucket does not exist") as caught:
            act()
        assert not isinstance(caught.value, MissingError)
