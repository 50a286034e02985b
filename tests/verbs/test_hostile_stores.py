"""Content that no honest snapshot has: verify names it, and no command uses it."""

import json
from pathlib import Path

import msgspec
import pytest

from ciuic.errors import CorruptionError
from ciuic.model import Entry, Root
from ciuic.store.adding import new_writer
from ciuic.store.packs.writer import StoreWriter
from ciuic.store.records import manifest
from ciuic.store.records.kinds import TREE
from ciuic.store.records.sealed import seal
from ciuic.store.store import open_store
from tests.kit.box import Box
from tests.kit.hostile import HOSTILE, commit, commit_chain, directory, file, node
from tests.kit.program import Outcome

DAMAGE = 4


def commit_entries(box: Box, *leaves: list[Entry]) -> None:
    """A snapshot whose root has these entries, cut into these leaves."""

    def spelled(writer: StoreWriter) -> bytes:
        names = [node(writer, TREE, 0, one) for one in leaves]
        if len(names) == 1:
            return names[0]
        children = [[1, b"", name] for name in names]
        return node(writer, TREE, 0, [directory(b"inner", node(writer, TREE, 1, children), 1)])

    commit(box.store, box.source, spelled)


def spell(name: bytes, mode: int, **more: object) -> Entry:
    return Entry(name, mode, 0, 0, 1, 1, 7, **more)  # type: ignore[arg-type]


NAMES = [b"", b".", b"..", b"a/b", b"/abs", b"../up", b"nul\0", b"x" * 1024]
LEAVES = {
    **{f"name {name[:9]!r}": [[file(name)]] for name in NAMES},
    "unsorted": [[file(b"b"), file(b"a")]],
    "twice": [[file(b"a"), file(b"a")]],
    "unsorted leaves": [[file(b"b")], [file(b"a")]],
    "twice in two leaves": [[file(b"a")], [file(b"a")]],
    "no type": [[spell(b"a", 0o000644)]],
    "unknown type": [[spell(b"a", 0o030644)]],
    "socket": [[spell(b"a", 0o140644)]],
    "mode of 17 bits": [[spell(b"a", 0o300644)]],
    "unknown state": [[spell(b"a", 0o100644, state=4)]],
    "content is no ID": [[file(b"a", b"short", 5)]],
    "level of a file": [[file(b"a", bytes(32), 5, 10)]],
    "level of a directory": [[directory(b"a", bytes(32), 9)]],
    "size of a directory": [[spell(b"a", 0o040755, size_bytes=5)]],
    "content of a FIFO": [[spell(b"a", 0o010644, content=b"x")]],
    "symlink to nowhere": [[spell(b"a", 0o120777)]],
    "symlink to 4096 bytes": [[spell(b"a", 0o120777, content=b"x" * 4096)]],
}


@pytest.mark.parametrize("leaves", LEAVES.values(), ids=LEAVES.keys())
def test_verify_and_restore_agree_on_what_is_sound(
    box: Box, tmp_path: Path, leaves: list[list[Entry]]
) -> None:
    commit_entries(box, *leaves)

    verified = box.ciuic("verify", HOSTILE, "--json")
    restored = box.ciuic(
        "restore", "-s", HOSTILE, "-p", box.source, "-d", tmp_path / "out", "--json"
    )

    (snapshot,) = verified.document["snapshots"]
    damaged = {one["path"] for one in snapshot["damaged"]}
    assert verified.code == DAMAGE
    assert restored.code == DAMAGE
    assert {one["path"] for one in restored.document["failed"]} == damaged


@pytest.mark.parametrize("leaves", LEAVES.values(), ids=LEAVES.keys())
def test_verify_with_checksums_and_every_look_into_it_name_the_directory(
    box: Box, leaves: list[list[Entry]]
) -> None:
    commit_entries(box, *leaves)

    def says_so(outcome: Outcome) -> bool:
        return outcome.code == DAMAGE and "Traceback" not in outcome.err

    assert says_so(box.ciuic("verify", "--all", "--checksum"))
    assert says_so(box.ciuic("ls", "-R", HOSTILE))
    assert says_so(box.ciuic("find", "*", "-s", HOSTILE))
    # Needed chunks are known with any names, but not with an unknown type.
    assert box.ciuic("prune", "--dry-run").code in {0, DAMAGE}


def root_of(path: bytes, mode: int = 0o040755, count: int = 1) -> list[Entry]:
    return [spell(path, mode)] * count


@pytest.mark.parametrize(
    "records", [root_of(b"x"), root_of(b".", 0o100644), root_of(b".", count=2), []], ids=str
)
def test_the_node_of_a_root_is_one_directory_by_the_name_of_a_dot(
    box: Box, tmp_path: Path, records: list[Entry]
) -> None:
    commit(box.store, box.source, lambda writer: node(writer, TREE, 0, []))
    path = box.store / "snapshots" / f"{HOSTILE}.json"
    right = manifest.decode_manifest(path.read_bytes(), HOSTILE)
    with open_store(str(box.store), write=True) as store:
        writer = new_writer(store)
        tree = node(writer, TREE, 0, records)
        writer.finish()
    wrong = msgspec.structs.replace(right, roots=(Root(bytes(box.source), tree),))
    path.write_bytes(manifest.encode_manifest(wrong))

    assert box.ciuic("verify", HOSTILE).code == DAMAGE
    assert (
        box.ciuic("restore", "-s", HOSTILE, "-p", box.source, "-d", tmp_path / "out").code == DAMAGE
    )
    assert box.ciuic("ls", HOSTILE).code == DAMAGE


ROOTS = [
    ["relative"],
    [""],
    ["/a/../b"],
    ["/a/./b"],
    ["/a//b"],
    ["//a"],
    ["//"],
    ["/a/"],
    ["/.."],
    ["/a\\x00b"],
    ["/a", "/a"],
    ["/a", "/a/b"],
    ["/", "/a"],
    ["/a", "/a-b", "/a/b"],
    ["/a/b", "/a"],
]


def resealed(box: Box, paths: list[str]) -> bytes:
    """The manifest of the hostile snapshot with other roots and a right seal."""
    path = box.store / "snapshots" / f"{HOSTILE}.json"
    document = json.loads(path.read_bytes())
    (root,) = document["roots"]
    document["roots"] = [{**root, "path": one} for one in paths]
    document.pop("checksum")
    path.unlink()
    data = _sealed(document)
    path.write_bytes(data)
    return data


def _sealed(document: dict[str, object]) -> bytes:
    fields = [(name, type(value)) for name, value in document.items()]
    made = msgspec.defstruct("Record", [*fields, ("checksum", str, "")])
    return seal(made(**document))


@pytest.mark.parametrize("paths", ROOTS, ids=str)
def test_roots_that_no_snapshot_has_are_damage(box: Box, tmp_path: Path, paths: list[str]) -> None:
    commit(box.store, box.source, lambda writer: node(writer, TREE, 0, [file(b"in")]))
    data = resealed(box, paths)

    with pytest.raises(CorruptionError, match="root"):
        manifest.decode_manifest(data, HOSTILE)
    assert box.ciuic("verify", "--all").code == DAMAGE
    done = box.ciuic("restore", "-s", HOSTILE, "-p", box.source, "-d", tmp_path / "out")
    assert done.code == DAMAGE
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("paths", [["/"], ["/a"], ["/a", "/a-b", "/ab"], ["/b", "/a"], ["/a/b"]])
def test_roots_beside_each_other_are_none(box: Box, paths: list[str]) -> None:
    commit(box.store, box.source, lambda writer: node(writer, TREE, 0, [file(b"in")]))
    found = manifest.decode_manifest(resealed(box, paths), HOSTILE)

    assert [one.path.decode() for one in found.roots] == paths
    assert manifest.decode_manifest(manifest.encode_manifest(found), HOSTILE) == found


@pytest.mark.parametrize("path", [b"/a/../b", b"/a/", b"a", b"/a\0"])
def test_no_writer_makes_a_hostile_root(box: Box, path: bytes) -> None:
    with pytest.raises(ValueError, match="root"):
        commit(box.store, path, lambda writer: node(writer, TREE, 0, []))
    assert box.snapshots() == []


@pytest.mark.parametrize("links", [64, 70])
def test_a_delta_chain_that_is_too_long_is_damage(box: Box, links: int) -> None:
    commit_chain(box.store, box.source, links)
    found = {one.path for bad in box.verify(checksum=True).snapshots for one in bad.damaged}
    assert found == {bytes(box.source / f"{number:08}") for number in range(65, links + 1)}
