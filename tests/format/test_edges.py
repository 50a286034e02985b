"""docs/format.md: what ciuic accepts beyond the rules, and what it only just refuses."""

import json

import pytest

from ciuic import codec
from ciuic.codec import dense_delta, sparse_delta
from ciuic.codec.plan import DeltaPlan
from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.model import Entry
from ciuic.store.directory.find import read_header
from ciuic.store.directory.pack_file import read_footer
from ciuic.store.format.frame import (
    Frame,
    UnusableFrameError,
    check_delta_bases,
    decode_frame,
    parse_header,
)
from ciuic.store.format.pack import PackedFrame, encode_footer
from ciuic.store.records import nodes, recipe_nodes, tree_nodes
from ciuic.store.records.kinds import DATA, RECIPE, TREE
from ciuic.store.records.manifest import decode_manifest
from ciuic.store.records.sealed import seal
from ciuic.system.hashing import checksum, data_id, node_id
from tests.format import reader
from tests.format.test_examples import RAW_PLANES, block, from_hex

FILE, DIRECTORY, DEVICE = 0o100644, 0o040755, 0o020600
ID = bytes(range(32))
OTHER = bytes(range(32, 64))
TEN, THREE = b"ten bytes.", b"abc"


def resealed(text):
    """Return a document with a correct seal, whatever the test has changed in it."""
    zeros = text[:-68] + "0" * 64 + text[-4:]
    return (zeros[:-68] + data_id(zeros.encode()).hex() + zeros[-4:]).encode()


def manifest(old, new):
    text = block("json", "manifest")
    assert old in text
    return decode_manifest(resealed(text.replace(old, new)), "cs-1a2b3c")


def frame(*chunks, number=0, delta_bases=()):
    plain = b"".join(chunks)
    table = tuple([(data_id(one), len(one)) for one in chunks])
    return Frame(DATA, number, delta_bases, len(plain), len(plain), checksum(plain), table)


def listed_at(directory, offsets):
    """Return a pack whose footer lists two frames, of 118 and 111 bytes, at these offsets."""
    frames = [
        PackedFrame(at, one, one.encode_header())
        for at, one in zip(offsets, (frame(TEN), frame(THREE)), strict=True)
    ]
    pack_id, footer = encode_footer(frames, 1000, bytes(16))
    (directory / "pack").write_bytes(bytes(1000) + footer)
    return frames, bytes(1000) + footer, pack_id


def stored(kind, node):
    """Return a function that reads a node, which has these items."""
    data = nodes.encode_node(node)
    return node_id(kind, data), lambda _kind, _id: data


def tree_leaf(*entries):
    node, get = stored(TREE, [0, entries])
    return list(tree_nodes.iter_tree(get, node, 0))


def entry(name=b"name", mode=FILE, **fields):
    return Entry(name, mode, 0, 0, 0, 0, 0, **fields)


class TestDocuments:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"files": 3,', '"files": 3, "files": 4,'),
            ('"files": 3,', '"files": 3, "files": 3,'),
            ('"missing": "",', '"missing": "", "\\u006dissing": "",'),
            ('"host"', '"later": {"a": [{"b": 1, "b": 2}]}, "host"'),
        ],
    )
    def test_a_document_that_repeats_a_key_is_refused(self, old, new):
        with pytest.raises(CorruptionError, match="repeats the key"):
            manifest(old, new)
        with pytest.raises(reader.FormatError, match="repeats a key"):
            reader.unseal(resealed(block("json", "manifest").replace(old, new)))

    def test_a_header_that_repeats_a_key_is_refused(self, tmp_path):
        text = block("json", "header").replace('"kind": "fixed",', '"kind": "fixed", "kind": "x",')
        (tmp_path / "ciuic-store.json").write_bytes(resealed(text))
        with pytest.raises(CorruptionError, match="repeats the key 'kind'"):
            read_header(str(tmp_path))

    def test_equal_keys_of_different_objects_are_not_repeated(self):
        assert manifest('"host"', '"later": [{"a": 1}, {"a": 1}], "host"').summary.files == 3

    @pytest.mark.parametrize("number", ["1.0", "1e0", '"1"', "true"])
    def test_a_number_that_is_no_json_integer_is_refused(self, number):
        with pytest.raises(CorruptionError):
            manifest('"format": 1,', f'"format": {number},')

    def test_a_later_format_with_a_correct_seal_is_not_damage(self):
        with pytest.raises(UnknownFormatError):
            manifest('"format": 1,', '"format": 2,')

    def test_a_later_format_without_a_correct_seal_is_damage(self):
        data = block("json", "manifest").replace('"format": 1,', '"format": 2,').encode()
        with pytest.raises(CorruptionError):
            decode_manifest(data, "cs-1a2b3c")

    def test_the_format_of_a_header_counts_before_its_seal(self, tmp_path):
        text = block("json", "header").replace('"format": 1,', '"format": 2,')
        (tmp_path / "ciuic-store.json").write_text(text)
        with pytest.raises(UnknownFormatError):
            read_header(str(tmp_path))

    def test_a_store_of_unknown_chunking_is_refused(self, tmp_path):
        document = json.loads(block("json", "header"))
        document["chunking"]["kind"] = "other"
        (tmp_path / "ciuic-store.json").write_bytes(seal(document))
        with pytest.raises(UnknownFormatError):
            read_header(str(tmp_path))

    @pytest.mark.parametrize("start", ["8BD6B2", "8b d6 b2", "8b d6b2"])
    def test_the_id_of_a_tree_has_no_capitals_and_no_blanks(self, start):
        with pytest.raises(CorruptionError, match="not an ID"):
            manifest('"8bd6b2', f'"{start}')

    @pytest.mark.parametrize("path", ["data", "/data/", "//data", "/data//run", "/data/../run", ""])
    def test_a_root_of_another_form_is_refused(self, path):
        with pytest.raises(CorruptionError):
            manifest(r"/data/run\\xff", path)

    def test_kind_and_parent_are_not_checked(self):
        found = manifest('"kind": "base"', '"kind": "other"').summary
        assert (found.kind, manifest("null", '"?"').summary.parent) == ("other", "?")


class TestFramesAndPacks:
    @pytest.mark.parametrize("chunks", [(b"",), (b"", TEN), (TEN, b"")])
    def test_a_frame_that_lists_a_chunk_of_no_bytes_is_not_used(self, chunks):
        header = frame(*chunks).encode_header()
        with pytest.raises(UnusableFrameError):
            parse_header(header)
        assert not reader.parse_frame(header).usable

    def test_a_delta_of_several_chunks_or_of_a_node_is_not_used(self):
        old, new = bytes(800), bytes(799) + b"1"
        payload = sparse_delta.encode(new, old, 8, 0)
        one, two = (
            ((data_id(new), 800),),
            tuple([(data_id(half), 400) for half in (new[:400], new[400:])]),
        )
        for kind, table in ((DATA, one), (DATA, two), (TREE, one)):
            found = Frame(kind, 4, (ID,), 800, len(payload), checksum(payload), table)
            read = parse_header(found.encode_header())
            if (kind, table) == (DATA, one):
                assert bytes(decode_frame(read, payload, old)) == new
            else:
                with pytest.raises(UnknownFormatError):
                    decode_frame(read, payload, old)
            assert reader.parse_frame(found.encode_header()).usable == (
                (kind, table) == (DATA, one)
            )

    @pytest.mark.parametrize("excess", [1, 2**32 - 1 - len(TEN)])
    def test_a_payload_longer_than_what_it_decodes_to_is_refused(self, excess):
        header = frame(TEN)._replace(stored_bytes=len(TEN) + excess).encode_header()
        with pytest.raises(UnusableFrameError):
            parse_header(header)
        assert not reader.parse_frame(header).usable

    @pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
    @pytest.mark.parametrize("bases", [(), (ID,), (ID, OTHER)])
    def test_a_codec_with_a_wrong_number_of_delta_bases_is_damage(self, number, bases):
        found = frame(TEN, number=number, delta_bases=bases)
        read = parse_header(found.encode_header())
        assert read == found
        assert reader.parse_frame(found.encode_header()).delta_bases == list(bases)
        if len(bases) == (number >= 3):
            check_delta_bases(read)
        else:
            with pytest.raises(CorruptionError, match="delta base"):
                decode_frame(read, TEN, *bases)
        assert reader.parse_frame(found.encode_header()).usable == (len(bases) == (number >= 3))

    def test_a_second_delta_base_takes_a_slot_of_the_table(self):
        header = frame(TEN, number=99, delta_bases=(ID, OTHER)).encode_header()
        assert len(header) == 72 + 2 * 36
        assert (header[8], header[20], header[24:56]) == (2, 1, ID)
        assert header[-36:] == OTHER + bytes(4)

    @pytest.mark.parametrize(
        ("at", "data"), [(20, b"\2"), (21, b"\1"), (24, bytes(32)), (140, b"\1"), (8, b"\1")]
    )
    def test_a_frame_whose_table_is_too_small_for_its_delta_bases_is_not_used(self, at, data):
        header = bytearray(frame(TEN, number=99, delta_bases=(ID, OTHER)).encode_header())
        header[at : at + len(data)] = data
        header = header[:108] if at == 8 else header
        header[64:72] = checksum(bytes(header[:64] + header[72:])).to_bytes(8, "little")
        with pytest.raises((UnusableFrameError, UnknownFormatError)):
            parse_header(bytes(header))
        assert not reader.parse_frame(bytes(header)).usable

    @pytest.mark.parametrize("offsets", [(8, 400), (400, 8), (8, 126)])
    def test_frames_may_be_in_any_order_with_gaps(self, tmp_path, offsets):
        frames, data, pack_id = listed_at(tmp_path, offsets)
        with open(tmp_path / "pack", "rb") as file:
            assert read_footer(file.fileno(), pack_id) == frames
        assert [at for at, _ in reader._frames_of_footer(data, pack_id.hex())] == list(offsets)

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("offsets", [(8, 8), (100, 101), (8, 125), (400, 399)])
    def test_a_footer_whose_frames_overlap_is_damaged(self, tmp_path, offsets, strict):
        _, data, pack_id = listed_at(tmp_path, offsets)
        with open(tmp_path / "pack", "rb") as file, pytest.raises(CorruptionError, match="overlap"):
            read_footer(file.fileno(), pack_id, strict=strict)
        with pytest.raises(reader.FormatError, match="overlap"):
            reader._frames_of_footer(data, pack_id.hex())

    @pytest.mark.parametrize("offset", [7, 1000 - 118 + 1])
    def test_a_frame_must_lie_between_magic_and_footer(self, tmp_path, offset):
        path, one = tmp_path / "pack", frame(TEN)
        pack_id, footer = encode_footer(
            [PackedFrame(offset, one, one.encode_header())], 1000, bytes(16)
        )
        path.write_bytes(bytes(1000) + footer)
        with open(path, "rb") as file, pytest.raises(CorruptionError):
            read_footer(file.fileno(), pack_id)


class TestPayloads:
    @pytest.mark.parametrize("more", [b"m", b"more", from_hex("zstd")])
    def test_bytes_after_a_zstd_frame_are_refused(self, more):
        plain = b"step 1 loss 2.5\n" * 8
        assert codec.decode(1, from_hex("zstd"), len(plain)) == plain
        with pytest.raises(CorruptionError):
            codec.decode(1, from_hex("zstd") + more, len(plain))
        with pytest.raises(reader.FormatError):
            reader.decode_payload(1, from_hex("zstd") + more, len(plain))

    def test_the_inner_payload_of_a_sparse_delta_has_its_width(self):
        old, new = bytes(32), bytes(8) + b"abcdefgh" + bytes(16)
        whole = bytes(sparse_delta.encode(new, old, 8, 0))
        inner = dense_delta.encode(
            new[8:16], bytes(8), DeltaPlan(2, 0, b"", ((0, RAW_PLANES),), 1.0)
        )
        # The header takes 7 bytes, and the gaps take 6.
        with pytest.raises(CorruptionError):
            codec.decode(4, whole[:13] + bytes(inner), 32, old)
        with pytest.raises(reader.FormatError):
            reader.decode_payload(4, whole[:13] + bytes(inner), 32, old)
        assert bytes(codec.decode(4, whole, 32, old)) == new


class TestLists:
    def test_an_empty_recipe_is_one_of_a_file_without_bytes(self):
        node, get = stored(RECIPE, [0, []])
        assert list(recipe_nodes.iter_pieces(get, entry(content=node, level=1))) == []

    def test_an_index_without_children_is_refused(self):
        node, get = stored(TREE, [1, []])
        with pytest.raises(CorruptionError):
            list(tree_nodes.iter_tree(get, node, 1))

    def test_a_start_of_zero_may_be_explicit(self):
        node, get = stored(RECIPE, [0, [[3, ID, 0]]])
        (piece,) = recipe_nodes.iter_pieces(get, entry(size_bytes=3, content=node, level=1))
        assert piece == recipe_nodes.Piece(3, ID)

    def test_wrong_counts_stop_only_a_read_from_the_middle(self):
        leaf = from_hex("recipe-leaf")
        children = [[4112, b"", node_id(RECIPE, leaf)], [8, b"", node_id(RECIPE, leaf)]]
        index = nodes.encode_node([1, children])
        top = entry(size_bytes=8224, content=node_id(RECIPE, index), level=2)
        data = {node_id(RECIPE, one): one for one in (leaf, index)}

        def get(_kind, node):
            return data[node]

        assert len(list(recipe_nodes.iter_pieces(get, top))) == 6
        with pytest.raises(CorruptionError):
            list(recipe_nodes.pieces_from(get, top, 5000))

    @pytest.mark.parametrize("names", [(b"b", b"a"), (b"a", b"a"), (b"",), (b"..",), (b"a/b",)])
    def test_unsorted_names_and_names_that_no_file_has_are_refused(self, names):
        with pytest.raises(CorruptionError):
            tree_leaf(*[entry(name) for name in names])

    @pytest.mark.parametrize(
        "wrong",
        [
            entry(mode=0o644),
            entry(mode=FILE | 1 << 16),
            entry(state=4),
            entry(content=b"short"),
            entry(level=10, content=ID),
            entry(mode=DIRECTORY, level=9, content=ID),
            entry(mode=DIRECTORY, size_bytes=1),
            entry(mode=DEVICE, rdev=1 << 44),
            entry(mode=FILE, rdev=1 << 20),
        ],
    )
    def test_values_out_of_range_are_refused(self, wrong):
        with pytest.raises(CorruptionError):
            tree_leaf(wrong)

    @pytest.mark.parametrize(
        "names", [(b"user.b", b"user.a"), (b"user.a", b"user.a"), (b"user.\0",), (b"b", b"c", b"a")]
    )
    def test_extended_attributes_out_of_order_or_with_a_nul_are_refused(self, names):
        wrong = entry(xattrs=tuple([(name, b"value") for name in names]))
        with pytest.raises(CorruptionError):
            tree_leaf(wrong)
        _, records = reader.unpack_msgpack(nodes.encode_node([0, [wrong]]))
        with pytest.raises(reader.FormatError, match="extended attribute"):
            reader.make_entry(records[0])

    def test_extended_attributes_in_order_are_read(self):
        right = entry(xattrs=((b"user.a", b"2"), (b"user.a.b", b"1"), (b"user.b", b"")))
        assert tree_leaf(right) == [right]
        _, records = reader.unpack_msgpack(nodes.encode_node([0, [right]]))
        assert tuple(reader.make_entry(records[0]).xattrs) == right.xattrs

    @pytest.mark.parametrize(
        "lax",
        [
            entry(mode=DIRECTORY),
            entry(state=3),
            entry(mode=DIRECTORY, state=1, content=ID),
            entry(mode=DEVICE, state=2),
            entry(size_bytes=5),
        ],
    )
    def test_ciuic_accepts_some_values_that_a_reader_may_refuse(self, lax):
        assert tree_leaf(lax) == [lax]
