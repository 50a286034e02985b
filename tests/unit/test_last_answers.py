"""What a bucket said about its packs, and for how long it counts."""

import pytest

from ciuic.ids import PackId
from ciuic.store.place.fetched.answers import LastAnswers
from ciuic.store.records.layout import pack_name
from tests.kit.clock import ManualClock

HERE, GONE = PackId(bytes(32)), PackId(bytes([1] * 32))


@pytest.fixture
def clock():
    return ManualClock(0)


@pytest.fixture
def answers(clock):
    return LastAnswers(clock)


def listing(answers, *pack_ids):
    answers.note_listing(answers.begin_listing(), dict.fromkeys(pack_ids, 1))


def test_a_listing_counts_for_a_few_seconds(answers, clock):
    assert answers.names() is None
    listing(answers, HERE)
    clock.advance(4)
    assert answers.names() == {pack_name(HERE)}
    clock.advance(2)
    assert answers.names() is None


def test_a_listing_that_took_long_counts_for_longer(answers, clock):
    begun = answers.begin_listing()
    clock.advance(60)
    answers.note_listing(begun, {HERE: 1})
    clock.advance(500)
    assert answers.names() == {pack_name(HERE)}
    clock.advance(200)
    assert answers.names() is None


def test_a_pack_that_is_missing_is_asked_for_again_after_a_few_seconds(answers, clock):
    answers.note_missing(GONE)
    assert answers.is_missing(GONE)
    assert not answers.is_missing(HERE)
    clock.advance(6)
    assert not answers.is_missing(GONE)


def test_a_listing_with_a_pack_that_is_missing_does_not_count(answers):
    listing(answers, HERE, GONE)
    answers.note_missing(GONE)
    assert answers.names() is None, "a prune may have moved its chunks"
    listing(answers, HERE, GONE)
    assert answers.names() is None, "the server listed it before it was gone"
    listing(answers, HERE)
    answers.note_missing(GONE)
    assert answers.names() == {pack_name(HERE)}


def test_a_listing_during_which_a_pack_came_does_not_count(answers):
    begun = answers.begin_listing()
    answers.outdate()
    answers.note_listing(begun, {HERE: 1})
    assert answers.names() is None
