"""The contract of every place, as tests: a subclass per place defines the fixture ``place``."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ciuic.errors import CorruptionError, LostRaceError, MissingError
from ciuic.store.place.place import ByteRange, Place
from ciuic.store.place.probe import probe
from ciuic.store.place.uploads.body import FileBody

BAD_KEYS = ["", "/a", "a/", "a//b", "..", "a/../b", ".", "a/./b", "a\0b", "a b", "ä", "a" * 300]
MIB = 1024 * 1024


def keys(place: Place, folder: str = "", after: str = "") -> list[str]:
    return [listed.key for listed in place.list(folder, after)]


class ReadsAndWrites:
    """Everything but conditional writes and the order of listings."""

    def test_an_object_is_read_as_it_was_written(self, place):
        place.put("packs/a", b"content")

        assert place.get("packs/a", 100) == b"content"
        assert place.size_bytes("packs/a") == 7

    def test_a_second_put_replaces_the_object(self, place):
        place.put("a", b"a longer content")
        place.put("a", b"short")

        assert place.get("a", 100) == b"short"

    @pytest.mark.parametrize("size", [0, 5, 3 * MIB + 1])
    def test_a_file_is_uploaded_whole(self, place, tmp_path, size):
        path = tmp_path / "file"
        path.write_bytes(os.urandom(size))
        with path.open("rb", buffering=0) as file:
            place.put_file("packs/a", FileBody(file, size))

        assert place.get("packs/a", size) == path.read_bytes()

    def test_an_empty_object_is_an_object(self, place):
        place.put("a", b"")

        assert place.get("a", 100) == b""
        assert place.size_bytes("a") == 0
        assert keys(place) == ["a"]

    def test_get_returns_at_most_the_length_asked_for(self, place):
        place.put("a", b"0123456789")

        assert place.get("a", 4) == b"0123"
        with pytest.raises(CorruptionError, match=r"larger than 4 bytes"):
            place.get_versioned("a", 4)

    def test_an_object_of_many_megabytes_is_whole(self, place):
        data = bytes(range(256)) * (3 * MIB // 256 * 4)
        place.put("packs/large", data)

        assert place.get("packs/large", 2 * len(data)) == data
        ranges = [ByteRange(5 * MIB, 10), ByteRange(0, 3), ByteRange(len(data) - 2, 2)]
        assert place.get_ranges("packs/large", ranges) == [
            data[5 * MIB : 5 * MIB + 10],
            data[:3],
            data[-2:],
        ]

    def test_ranges_come_in_the_order_asked_for(self, place):
        place.put("a", b"0123456789")
        ranges = [ByteRange(6, 4), ByteRange(0, 2), ByteRange(1, 3), ByteRange(4, 0)]

        assert place.get_ranges("a", ranges) == [b"6789", b"01", b"123", b""]
        assert place.get_ranges("a", []) == []

    @pytest.mark.parametrize("begin", [5, 10, 11, 5000])
    def test_a_range_behind_the_end_is_damage(self, place, begin):
        place.put("a", b"0123456789")

        with pytest.raises(CorruptionError):
            place.get_ranges("a", [ByteRange(0, 2), ByteRange(begin, 20)])

    def test_what_is_not_there_is_missing(self, place):
        place.put("packs/a", b"x")

        for ask in (
            lambda: place.get("packs/b", 10),
            lambda: place.get("none/b", 10),
            lambda: place.get_versioned("packs/b", 10),
            lambda: place.get_ranges("packs/b", [ByteRange(0, 1)]),
            lambda: place.size_bytes("packs/b"),
        ):
            with pytest.raises(MissingError, match=r"(?m)there is no .*/b$"):
                ask()

    def test_deleting_what_is_not_there_is_no_error(self, place):
        for key in ("a", "packs/a", "packs/b"):
            place.put(key, b"x")

        place.delete(["packs/none", "packs/a", "none/x", "a"])
        place.delete(["packs/a"])
        place.delete([])

        assert keys(place) == ["packs/b"]

    def test_staged_objects_are_there_after_make_durable(self, place):
        for number in range(5):
            place.stage(f"packs/{number}", b"x" * number)
        place.make_durable()
        place.make_durable()

        assert {listed.key: listed.size_bytes for listed in place.list()} == {
            f"packs/{number}": number for number in range(5)
        }

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_text_that_is_not_a_key_is_refused(self, place, key):
        for use in (
            lambda: place.get(key, 1),
            lambda: place.get_versioned(key, 1),
            lambda: place.get_ranges(key, [ByteRange(0, 1)]),
            lambda: place.size_bytes(key),
            lambda: place.put(key, b""),
            lambda: place.stage(key, b""),
            lambda: place.create(key, b""),
            lambda: place.delete(["fine", key]),
            lambda: list(place.list(key or "/")),
            lambda: place.keys(key or "/"),
        ):
            with pytest.raises(ValueError, match="is not a key"):
                use()

    def test_a_folder_that_is_not_there_is_empty(self, place):
        assert keys(place) == []
        assert keys(place, "packs") == []


class Creates:
    """Creating an object if the key is free."""

    def test_the_second_creator_loses(self, place):
        place.create("marks/1", b"first")

        with pytest.raises(LostRaceError, match=r"another writer has created it"):
            place.create("marks/1", b"second")
        assert place.get("marks/1", 100) == b"first"

    def test_a_repeated_create_with_the_same_content_succeeds(self, place):
        version = place.create("marks/1", b"first")

        assert place.create("marks/1", b"first") == version

    def test_of_many_creators_one_wins(self, place):
        writers = 8
        start = threading.Barrier(writers)

        def create(number: int) -> int | None:
            start.wait()
            try:
                place.create("marks/1", f"writer {number}".encode())
            except LostRaceError:
                return None
            return number

        with ThreadPoolExecutor(writers) as pool:
            won = [number for number in pool.map(create, range(writers)) if number is not None]

        assert len(won) == 1
        assert place.get("marks/1", 100) == f"writer {won[0]}".encode()

    def test_a_deleted_key_is_free_again(self, place):
        place.create("marks/1", b"first")
        place.delete(["marks/1"])
        place.create("marks/1", b"second")

        assert place.get("marks/1", 100) == b"second"


class Replaces:
    """Replacing an object if it has not changed."""

    def test_only_the_version_that_was_read_is_replaced(self, place):
        place.put("state", b"one")
        read = place.get_versioned("state", 100)
        second = place.replace("state", b"two", read.version)

        with pytest.raises(LostRaceError, match=r"has changed since it was read"):
            place.replace("state", b"three", read.version)
        assert place.get("state", 100) == b"two"
        assert place.get_versioned("state", 100).version == second
        place.replace("state", b"three", second)
        assert place.get("state", 100) == b"three"

    def test_the_version_of_a_created_object_can_be_replaced(self, place):
        version = place.create("state", b"one")
        place.replace("state", b"two", version)

        assert place.get("state", 100) == b"two"

    def test_a_repeated_replacement_succeeds(self, place):
        place.put("state", b"one")
        old = place.get_versioned("state", 100).version
        new = place.replace("state", b"two", old)

        assert place.replace("state", b"two", old) == new

    def test_a_deleted_object_is_not_replaced(self, place):
        place.put("state", b"one")
        version = place.get_versioned("state", 100).version
        place.delete(["state"])

        with pytest.raises(MissingError):
            place.replace("state", b"two", version)
        assert keys(place) == []

    def test_no_increment_of_many_writers_is_lost(self, place):
        place.put("count", b"0 nobody")
        writers, rounds = 4, 5

        def increment(writer: int) -> None:
            for number in range(rounds):
                while True:
                    found = place.get_versioned("count", 100)
                    count = int(found.data.split()[0])
                    data = f"{count + 1} {writer}.{number}".encode()
                    try:
                        place.replace("count", data, found.version)
                    except LostRaceError:
                        continue
                    break

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(increment, range(writers)))

        assert int(place.get("count", 100).split()[0]) == writers * rounds


class Lists:
    """Listings in the order of keys."""

    def test_a_listing_has_every_key_below_a_folder_in_order(self, place):
        names = ["a-b", "a/b", "a/b-c", "a/b/c", "a0", "ab", "packs/x", "z"]
        for name in reversed(names):
            if name != "a/b":  # a directory cannot be a file as well
                place.put(name, name.encode())
        expected = sorted(set(names) - {"a/b"})

        assert keys(place) == expected
        assert place.keys() == set(expected)
        assert place.keys("a") == {"a/b-c", "a/b/c"}
        assert place.keys("pack") == set()
        assert keys(place, "a") == ["a/b-c", "a/b/c"]
        assert keys(place, "pack") == []
        for at, name in enumerate(expected):
            assert keys(place, "", name) == expected[at + 1 :]
        assert keys(place, "a", "a/b-c") == ["a/b/c"]
        assert {listed.size_bytes for listed in place.list("packs")} == {7}

    def test_a_listing_has_more_than_a_page(self, place):
        count = 1105
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: place.stage(f"packs/{number:05}", b"x"), range(count)))
        place.make_durable()
        place.put("snapshots/x", b"x")

        expected = [f"packs/{number:05}" for number in range(count)]
        assert keys(place, "packs") == expected
        assert keys(place, "packs", expected[1001]) == expected[1002:]
        place.delete(expected)
        assert keys(place) == ["snapshots/x"]


class Contract(ReadsAndWrites, Creates, Replaces, Lists):
    """All of it."""

    def test_a_probe_finds_all_abilities_and_leaves_nothing(self, place):
        found = probe(place)

        assert found.creates
        assert found.replaces
        assert found.lists_at_once
        assert keys(place) == []
