"""Nodes: how lists are cut into nodes, and the cost of a small change."""

import itertools

import msgspec
import pytest

from ciuic.errors import ChunkMissingError, CorruptionError
from ciuic.model import BEING_WRITTEN, Entry
from ciuic.store.records import nodes, recipe_nodes, tree_nodes
from ciuic.store.records.kinds import RECIPE, TREE
from ciuic.store.records.recipe_nodes import Piece, RecipeBuilder
from ciuic.store.records.tree_nodes import TreeBuilder
from ciuic.system.hashing import data_id, node_id


class Memory:
    """Nodes in a dictionary. ``written`` counts new nodes, and ``read`` counts reads."""

    def __init__(self):
        self.nodes = {}
        self.written = 0
        self.read = 0

    def put(self, kind, data):
        name = node_id(kind, data)
        self.written += (kind, name) not in self.nodes
        self.nodes[kind, name] = data
        return name

    def get(self, kind, name):
        self.read += 1
        if (kind, name) not in self.nodes:
            raise ChunkMissingError(f"node {name.hex()[:12]} is missing")
        return self.nodes[kind, name]

    def raw(self, kind, *node):
        return self.put(kind, msgspec.msgpack.encode(node))


@pytest.fixture
def memory():
    return Memory()


def entry(name, **more):
    return Entry(name, 0o100644, 1, 2, 3, 4, 5, **more)


def directory(memory, names):
    builder = TreeBuilder(memory.put)
    for name in sorted(names):
        builder.add(entry(name))
    return builder.finish()


def recipe(memory, pieces):
    builder = RecipeBuilder(memory.put)
    for piece in pieces:
        builder.add(piece)
    name, level = builder.finish()
    size = sum([piece.length_bytes for piece in pieces])
    return entry(b"file", size_bytes=size, content=name, level=level + 1)


def names_of(count):
    return [b"file %06d" % number for number in range(count)]


def pieces_of(count):
    return [Piece(4096, data_id(b"%d" % number)) for number in range(count)]


def test_every_field_of_an_entry_reads_back(memory):
    one = Entry(b"\xff", 0o120777, 2**32 - 1, 7, -1, 2**63 - 1, 2**64 - 1, content=b"to")
    xattrs = ((b"n", b"v"), (b"o", b""))
    other = Entry(
        b"\xff\x01", 0o100001, 2, 3, 4, 5, 6, 7, BEING_WRITTEN, bytes(32), 8, 9, 10 << 32, xattrs
    )
    builder = TreeBuilder(memory.put)
    builder.add(one)
    builder.add(other)
    assert list(tree_nodes.iter_tree(memory.get, *builder.finish())) == [one, other]


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 2048, 2049, 5000, 40_000])
def test_directories_of_every_size_read_back(memory, count):
    names = names_of(count)
    name, level = directory(memory, names)
    assert [one.name for one in tree_nodes.iter_tree(memory.get, name, level)] == names
    assert (level > 0) == (memory.written > 1)


@pytest.mark.parametrize("count", [1, 31, 32, 512, 513, 3000, 40_000])
def test_recipes_of_every_size_read_back(memory, count):
    pieces = pieces_of(count)
    assert list(recipe_nodes.iter_pieces(memory.get, recipe(memory, pieces))) == pieces


def test_a_name_is_found_by_reading_one_node_a_level(memory):
    names = names_of(20_000)
    name, level = directory(memory, names)
    assert level >= 1
    for wanted in (names[0], names[777], names[-1]):
        memory.read = 0
        found = tree_nodes.Lookup(memory.get, name, level).find(wanted)
        assert found is not None
        assert found.name == wanted
        assert memory.read == level + 1
    for missing in (b"", b"file 000000x", b"zzz"):
        assert tree_nodes.Lookup(memory.get, name, level).find(missing) is None


def test_an_empty_directory_has_a_node(memory):
    name, level = directory(memory, [])
    assert (level, memory.written) == (0, 1)
    assert tree_nodes.Lookup(memory.get, name, level).find(b"x") is None


def test_one_more_file_in_a_large_directory_rewrites_one_leaf_and_the_nodes_above(memory):
    names = names_of(20_000)
    _, level = directory(memory, names)
    all_nodes, memory.written = memory.written, 0
    directory(memory, [*names, b"file 010000x"])
    assert all_nodes > 20
    assert memory.written <= 2 * (level + 1)


def test_one_changed_chunk_of_a_large_file_rewrites_one_leaf_and_the_nodes_above(memory):
    pieces = pieces_of(20_000)
    level = recipe(memory, pieces).level
    all_nodes, memory.written = memory.written, 0
    pieces[10_000] = Piece(4096, data_id(b"changed"))
    recipe(memory, pieces)
    assert all_nodes > 50
    assert memory.written <= 2 * level


def test_a_file_of_one_chunk_needs_no_node(memory):
    one = entry(b"f", size_bytes=5, content=data_id(b"x"))
    assert list(recipe_nodes.iter_pieces(memory.get, one)) == [Piece(5, data_id(b"x"))]
    assert list(recipe_nodes.iter_pieces(memory.get, entry(b"empty"))) == []


def test_fields_that_were_added_later_are_ignored(memory):
    fields = list(msgspec.msgpack.decode(msgspec.msgpack.encode(entry(b"name", size_bytes=9))))
    other = [b"other", *fields[1:7]]
    name = memory.raw(TREE, 0, [[*fields, "added", {}], other], b"added")
    assert list(tree_nodes.iter_tree(memory.get, name, 0)) == [
        entry(b"name", size_bytes=9),
        entry(b"other"),
    ]


@pytest.mark.parametrize("change", [-1, 1, 2**40])
def test_pieces_that_do_not_add_up_are_damage(memory, change):
    one = recipe(memory, pieces_of(40))
    one.size_bytes += change
    with pytest.raises(CorruptionError, match="pieces are"):
        list(recipe_nodes.iter_pieces(memory.get, one))


@pytest.mark.parametrize(
    "piece",
    [
        (0, b""),
        (-1, b""),
        (5, b"short"),
        (5, b"x" * 33),
        (2**64 - 1, b""),
        (5, b"", 1),
        (5, b"x" * 32, -1),
        (5, b"x" * 32, 2**63),
        (5, b"x" * 32, b""),
    ],
)
def test_impossible_pieces_are_damage(memory, piece):
    name = memory.raw(RECIPE, 0, [piece])
    with pytest.raises(CorruptionError):
        list(recipe_nodes.iter_pieces(memory.get, entry(b"f", size_bytes=5, content=name, level=1)))


def test_slices_read_back(memory):
    name = data_id(b"chunk")
    pieces = [Piece(4096, name), Piece(1, b""), Piece(7, name, 1), Piece(2**40, name, 2**63 - 1)]
    assert list(recipe_nodes.iter_pieces(memory.get, recipe(memory, pieces))) == pieces


def test_a_piece_has_one_encoding_so_that_equal_files_have_equal_ids(memory):
    whole = recipe(memory, [Piece(5, data_id(b"chunk")), Piece(9, b"")])
    assert memory.raw(RECIPE, 0, [[5, data_id(b"chunk")], [9, b""]]) == whole.content
    slices = recipe(memory, [Piece(5, data_id(b"chunk"), 300), Piece(9, b"")])
    assert memory.raw(RECIPE, 0, [[5, data_id(b"chunk"), 300], [9, b""]]) == slices.content


@pytest.mark.parametrize("start", [0, 3, 8])
def test_a_slice_is_cut_out_of_its_chunk_and_never_beyond_its_end(start):
    chunk = memoryview(b"0123456789")
    found = recipe_nodes.cut(chunk, Piece(2, data_id(chunk), start))
    assert bytes(found) == b"%d%d" % (start, start + 1)
    with pytest.raises(CorruptionError, match="shorter"):
        recipe_nodes.cut(chunk, Piece(11 - start, data_id(chunk), start))


def test_a_length_without_content_is_damage(memory):
    with pytest.raises(CorruptionError):
        list(recipe_nodes.iter_pieces(memory.get, entry(b"f", size_bytes=5)))


@pytest.mark.parametrize("level", [-1, 1, 9, 2**63])
def test_a_node_of_another_level_than_expected_is_damage(memory, level):
    name, _ = directory(memory, [b"a"])
    with pytest.raises(CorruptionError):
        list(tree_nodes.iter_tree(memory.get, name, level))
    with pytest.raises(CorruptionError):
        tree_nodes.Lookup(memory.get, name, level).find(b"a")


@pytest.mark.parametrize("top", [nodes.LEVEL_MAX + 1, -1, -900])
def test_towers_of_nodes_are_refused_at_their_top(memory, top):
    below = memory.raw(TREE, top - 900, [])
    for level in range(top - 899, top + 1):
        below = memory.raw(TREE, level, [[1, b"", below]])
    memory.read = 0
    with pytest.raises(CorruptionError, match=f"level {top}"):
        list(tree_nodes.iter_tree(memory.get, below, top))
    assert memory.read <= 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"\x92\x00",
        b"\x92\x00\xc0",
        b"\x92\x00\x91\x90",
        b"\x92\x00\x90\x00",
        b"\x91" * 100_000,
        b"\x92\x00\xdd\xff\xff\xff\xff",
        b"\x92\x00\x91\x93\xa1\xff\x00\x00",
    ],
    ids=range(10),
)
def test_an_invalid_node_is_damage(memory, data):
    name = memory.put(TREE, data)
    with pytest.raises(CorruptionError):
        list(tree_nodes.iter_tree(memory.get, name, 0))


OUT_OF_RANGE = [
    {"mode": 2**32},
    {"uid": 2**32},
    {"gid": -1},
    {"mtime_ns": 2**63},
    {"ctime_ns": 2**63},
    {"ino": -1},
    {"link_dev": -1},
    {"size_bytes": 2**63},
    {"size_bytes": -1},
    {"rdev": 1 << 44},
    {"rdev": 1 << 20},
    {"mode": 0o120777, "content": b"to\0where"},
    {"xattrs": ((b"user.\0", b""),)},
]


@pytest.mark.parametrize("change", OUT_OF_RANGE, ids=" ".join)
def test_impossible_values_are_damage(memory, change):
    one = msgspec.structs.replace(entry(b"a"), **change)
    name = memory.raw(TREE, 0, [entry(b"0"), one])
    with pytest.raises(CorruptionError, match="out of range"):
        list(tree_nodes.iter_tree(memory.get, name, 0))
    with pytest.raises(CorruptionError, match="out of range"):
        tree_nodes.Lookup(memory.get, name, 0).find(b"a")


def stacked(memory, kind, leaf, count):
    """Return eight levels. Each names the level below it ``count`` times, as entries or pieces."""
    below = memory.raw(kind, 0, leaf)
    for level in range(1, nodes.LEVEL_MAX + 1):
        below = memory.raw(kind, level, [[1, b"a", below]] * count)
    memory.read = 0
    return below


@pytest.mark.parametrize("leaf", [[], [entry(b"a")], [entry(b"b"), entry(b"a")]], ids=len)
def test_a_tree_that_repeats_its_nodes_endlessly_is_refused_at_once(memory, leaf):
    top = stacked(memory, TREE, leaf, 100)
    with pytest.raises(CorruptionError, match=r"in order|empty"):
        list(tree_nodes.iter_tree(memory.get, top, nodes.LEVEL_MAX))
    assert memory.read <= 2 + nodes.LEVEL_MAX


def test_a_recipe_of_empty_nodes_is_refused_at_once(memory):
    for leaf in ([], [[1, b""]]):
        top = stacked(memory, RECIPE, leaf, 100)
        one = entry(b"f", size_bytes=5, content=top, level=nodes.LEVEL_MAX + 1)
        with pytest.raises(CorruptionError, match=r"empty|longer"):
            list(recipe_nodes.iter_pieces(memory.get, one))
        assert memory.read <= 6 + nodes.LEVEL_MAX


@pytest.mark.parametrize("kind", [TREE, RECIPE])
def test_an_empty_index_node_is_refused(memory, kind):
    top = memory.raw(kind, 1, [])
    one = entry(b"f", size_bytes=1, content=top, level=2)
    walk = (
        tree_nodes.iter_tree(memory.get, top, 1)
        if kind == TREE
        else recipe_nodes.iter_pieces(memory.get, one)
    )
    with pytest.raises(CorruptionError, match="has no children"):
        list(walk)


def test_a_missing_leaf_is_named_after_the_entries_before_it(memory):
    names = names_of(20_000)
    name, level = directory(memory, names)
    leaf = tree_nodes.Lookup(memory.get, name, level).find(names[-1])
    assert leaf is not None
    last = [key for key, data in memory.nodes.items() if names[-1] in data and data[1] == 0]
    for key in last:
        del memory.nodes[key]
    found = []
    with pytest.raises(ChunkMissingError, match="is missing"):
        found.extend(one.name for one in tree_nodes.iter_tree(memory.get, name, level))
    assert len(found) > 10_000
    assert found == names[: len(found)]


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_the_pieces_from_any_byte_on_are_those_that_a_walk_finds(memory, count):
    pieces = pieces_of(count)
    one = recipe(memory, pieces)
    starts = [0, *itertools.accumulate([piece.length_bytes for piece in pieces])]
    whole = list(zip(starts, pieces, strict=False))
    for number in {0, count // 3, count - 1}:
        for offset in {starts[number], starts[number + 1] - 1}:
            assert list(recipe_nodes.pieces_from(memory.get, one, offset)) == whole[number:]


def test_the_pieces_behind_a_byte_are_found_by_reading_one_node_a_level(memory):
    one = recipe(memory, pieces_of(5000))
    memory.read = 0
    next(recipe_nodes.pieces_from(memory.get, one, one.size_bytes - 1))
    assert memory.read == one.level


def test_a_file_of_one_chunk_has_one_piece_from_any_byte_on(memory):
    one = entry(b"file", size_bytes=9, content=b"c" * 32)
    assert list(recipe_nodes.pieces_from(memory.get, one, 5)) == [(0, Piece(9, b"c" * 32))]


def test_an_index_node_with_wrong_lengths_is_damage(memory):
    leaf = memory.raw(RECIPE, 0, [[5, b"c" * 32]])
    for counts in ([10], [5], [4, 6], [6, 4], [0, 10], [-5, 15], [5, 4], [5, 6], [2**63, 5]):
        top = memory.raw(RECIPE, 1, [[count, b"", leaf] for count in counts])
        one = entry(b"f", size_bytes=10, content=top, level=2)
        with pytest.raises(CorruptionError, match="pieces are"):
            list(recipe_nodes.pieces_from(memory.get, one, 0))
