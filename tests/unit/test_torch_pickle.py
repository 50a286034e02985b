"""Pickles: ciuic takes names and types of tensors from those of torch, and nothing from others."""

import collections
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic.formats import pickle_machine, zip_archive
from ciuic.formats.headers import NAME_BYTES_MAX, Headers, Part
from ciuic.formats.names import described
from ciuic.formats.torch_pickle import Pickled, parts, read
from tests.fuzz.reach import run_at_most
from tests.kit.distributed import Index, Info, Metadata, Size
from tests.kit.tensors import saved, torch_zip
from tests.kit.torch_pickles import Parameter, Pickles, Storage, Tensor, pickles_of_torch


class Holder:
    """An object with attributes."""


@pytest.fixture
def pickled(monkeypatch: pytest.MonkeyPatch) -> Pickles:
    """Pickles a state as torch does."""
    return pickles_of_torch(monkeypatch)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_tensors_have_the_keys_on_their_path_as_names(pickled: Pickles, protocol: int):
    weight = Tensor(Storage("FloatStorage", "0", 6), 2, 3)
    average = Tensor(Storage("BFloat16Storage", "1", 6), 6)
    holder = Holder()
    holder.inner = [Tensor(Storage("LongStorage", "2", 1))]
    state = {
        "model": collections.OrderedDict({"layers.0.weight": Parameter(weight)}),
        "optimizer": {"state": {0: {"step": 3, "exp_avg": average}}, "again": weight},
        "extra": (1.5, None, holder, {b"x"}, b"bytes", 2**70, "text", frozenset([1]), True),
        7: Tensor(Storage("UntypedStorage", "3", 4), 4, dtype="float8_e4m3fn"),
        "odd": Tensor(Storage("OddStorage", "4", 4), 4),
        "part": Tensor(Storage("FloatStorage", "5", 9), 4, offset=5),
        "less": Tensor(Storage("FloatStorage", "6", 9), 4),
    }
    assert read(pickled(state, protocol)) == {
        "0": Pickled("model.layers.0.weight", "F32", 6, (2, 3)),
        "1": Pickled("optimizer.state.0.exp_avg", "BF16", 6, (6,)),
        "2": Pickled("extra.2.inner.0", "I64", 1, ()),
        "3": Pickled("7", "F8_E4M3", 4, (4,)),
        "4": Pickled("odd", "", 4, (4,)),
        "5": Pickled("part", "F32", 9, None),
        "6": Pickled("less", "F32", 9, None),
    }


def test_a_tensor_alone_has_no_name(pickled: Pickles):
    alone = pickled(Tensor(Storage("FloatStorage", "0", 1), 1))
    assert read(alone) == {"0": Pickled("", "F32", 1, (1,))}


def test_a_state_that_holds_itself_is_walked_once(pickled: Pickles):
    state: dict[str, object] = {"a": Tensor(Storage("FloatStorage", "0", 1), 1)}
    state["self"] = [state, state]
    assert read(pickled(state)) == {"0": Pickled("a", "F32", 1, (1,))}


def test_names_and_paths_that_are_too_long_are_left_out(pickled: Pickles):
    deep: object = Tensor(Storage("FloatStorage", "0", 1), 1)
    for _ in range(200):
        deep = [deep]
    assert read(pickled({"a": deep})) == {}
    for key in ("x" * (NAME_BYTES_MAX + 1), "é" * NAME_BYTES_MAX, "x" * 10_000_000):
        state = {key: Tensor(Storage("FloatStorage", "0", 1), 1)}
        assert read(pickled(state))["0"].name == ""
    state = {"x" * NAME_BYTES_MAX: Tensor(Storage("FloatStorage", "0", 1), 1)}
    assert len(read(pickled(state))["0"].name) == NAME_BYTES_MAX


def test_no_code_in_a_pickle_runs(tmp_path, pickled: Pickles):
    class Exploit:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'done')!r}, 'w')",))

    state = {"x": Exploit(), "a": Tensor(Storage("FloatStorage", "0", 1), 1)}
    assert read(pickled(state)) == {"0": Pickled("a", "F32", 1, (1,))}
    assert read(b"cos\nsystem\n(S'touch " + bytes(tmp_path / "done") + b"'\ntR.") == {}
    assert read(b"cciuic_no_such_module\nx\n.") == {}
    assert not list(tmp_path.iterdir())


A_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
    b"0X\3\0\0\0cpuK\1tQK\0K\1\x85K\1\x85\x89NtR"
)
"""One element, no name."""


def test_the_tensor_in_front_of_hostile_pickles_is_valid():
    assert read(b"\x80\2" + A_TENSOR + b".") == {"0": Pickled("", "F32", 1, (1,))}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\2",
        b"\x80\2.",
        b"(.",
        b"\xff.",
        b"\x82\1" + A_TENSOR + b"\x86.",
        b"P1\n.",
        b"0" * 10 + A_TENSOR + b".",
        A_TENSOR,
        A_TENSOR[:-1] + b".",
        b"h\7" + A_TENSOR + b"\x86.",
        b"(((t" + A_TENSOR + b"\x87.",
        b"N" + A_TENSOR + b"a.",
        b"N" + A_TENSOR + b"b\x85.",
        b"}" + A_TENSOR + b"(" + A_TENSOR + b"u.",
        b"\x8c\1x\x8a\xff" + bytes(255) + b"\x93.",
        b"\x8d" + struct.pack("<Q", 2**63) + b"x.",
        b"\x8d" + struct.pack("<Q", 2**40) + b"x.",
        b"\x96" + struct.pack("<Q", 2**62) + b"x.",
        b"\x8b" + struct.pack("<i", -1) + b".",
        b"L" + b"9" * 5000 + b"L\n.",
        b"I" + b"x\n.",
        b"S'unended\n.",
        b"V\\ud8\n.",
        b"\x97.",
        b"\x98.",
        b"(o.",
        b"1.",
        b"2.",
        b"t.",
        b"R.",
        b"Q.",
        b"NNR.",
        b"\x94.",
    ],
)
def test_odd_pickles_have_no_tensors(data: bytes):
    assert read(data) == {}


@pytest.mark.parametrize("count", [1000, 11_000])
def test_pickles_that_would_grow_endlessly_have_no_tensors(
    monkeypatch: pytest.MonkeyPatch, count: int
):
    monkeypatch.setattr(pickle_machine, "_VALUES_MAX", 10_000)
    monkeypatch.setattr(pickle_machine, "_OPS_MAX", 20_000)
    puts = b"".join([b"r" + struct.pack("<I", number) for number in range(count)])
    for grown in (b"}" * count, b"(" * count, b"N" + b"2" * count, b"N" + puts, b"N0" * count):
        assert bool(read(grown + A_TENSOR + b".")) == (count == 1000)


def test_a_pickle_above_the_maximum_length_is_not_read():
    assert read(b"N" + A_TENSOR + b"." + bytes(16 * 1024 * 1024)) == {}
    assert read(b"N" + A_TENSOR + b"." + bytes(15 * 1024 * 1024))


def test_deep_nesting_causes_no_recursion_and_shared_parts_are_walked_once():
    assert read(b"]" * 30_000 + A_TENSOR + b"a" * 30_000 + b".") == {}
    assert read(A_TENSOR + b"\x85" * 30_000 + b".") == {}
    assert read(A_TENSOR + b"2\x86" * 50 + b".")["0"].elements == 1
    assert read(A_TENSOR + b"2\x86" * 30_000 + b".") == {}


def test_wrong_shapes_and_types_are_rejected():
    def told(pickle: bytes, size: int = 4) -> tuple[str, tuple[int, ...] | None]:
        data = torch_zip([bytes(size)], pickle=pickle)
        (one,) = described(lambda at, length: data[at : at + length], len(data))
        assert (one.name, one.place, one.length_bytes) == ("data/0", "data/0", size)
        return one.element, one.shape

    whole = b"\x80\2" + A_TENSOR + b"."
    assert told(whole) == ("F32", (1,))
    assert told(whole, 8) == ("", None)
    assert told(whole, 5) == ("", None)
    assert told(whole.replace(b"K\1tQ", b"K\2tQ"), 4) == ("", None)
    assert told(whole.replace(b"K\0K\1\x85", b"K\0K\3\x85")) == ("F32", None)
    assert told(whole.replace(b"K\0K\1\x85", b"K\0J\xff\xff\xff\xff\x85")) == ("F32", None)
    assert told(whole.replace(b"K\0K\1\x85", b"K\0(" + b"K\1" * 9 + b"t")) == ("F32", None)
    assert told(whole.replace(b"FloatS", b"CloatS")) == ("", (1,))
    assert told(b"odd") == ("", None)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_tensors_in_the_files_of_a_distributed_checkpoint_are_found(protocol: int):
    stored = [
        (Index("b", Size((0,))), Info("__0_0.distcp", 500, 100)),
        (Index("w", Size((128, 0))), Info("__1_0.distcp", 0, 400)),
        (Index("w", Size((0, 0))), Info("__0_0.distcp", 0, 400)),
        (Index("step", None), Info("__0_0.distcp", 600, 7)),
    ]
    assert parts(pickle.dumps(Metadata(*stored), protocol)) == {
        "__0_0.distcp": [Part(0, 400, "w"), Part(500, 100, "b"), Part(600, 7, "step")],
        "__1_0.distcp": [Part(0, 400, "w[128, 0]")],
    }


@pytest.mark.parametrize(
    "stored",
    [
        (Index(7, None), Info("file", 0, 1)),
        (Index("a" * (NAME_BYTES_MAX + 1), None), Info("file", 0, 1)),
        (Index("a", None), Info(b"file", 0, 1)),
        (Index("a", None), Info("file", -1, 1)),
        (Index("a", None), Info("file", 0, 0)),
        (Index("a", None), Info("file", 2**70, 1)),
        (Index("a", None), Info("file", "0", 1)),
        (Index("a", None), 5),
        (5, Info("file", 0, 1)),
    ],
)
def test_impossible_parts_are_left_out(stored: tuple[object, object]):
    good = Index("b", [3]), Info("file", 0, 1)
    told = parts(pickle.dumps(Metadata(stored, good)))  # type: ignore[arg-type]
    assert told == {"file": [Part(0, 1, "b")]}


def test_other_pickles_have_no_parts():
    for odd in ({}, [], None, {"storage_data": 5}, Metadata, Holder):
        assert parts(pickle.dumps(odd)) == {}
    whole = pickle.dumps(Metadata((Index("a", None), Info("file", 0, 1))))
    assert parts(whole)
    for end in range(len(whole)):
        assert parts(whole[:end]) == {}


def test_an_object_with_many_attributes_is_searched_once():
    thing = Holder()
    thing.__dict__.update({f"a{number}": number for number in range(2000)})
    stored = [(Index(thing, thing), thing) for _ in range(2000)]
    data = pickle.dumps(Metadata(*stored))  # type: ignore[arg-type]
    run_at_most(1_500_000, lambda: parts(data))


def real_pickles() -> list[bytes]:
    found = []
    for name in ("state.pt", "part.distcp"):
        data = saved(name)
        headers = Headers(lambda at, n, data=data: data[at : at + n], len(data))
        found += [pickle for _, pickle in zip_archive.pickles(headers)]
    return found


REAL = real_pickles()


def test_consecutive_archives_have_their_own_pickles():
    data = saved("part.distcp")
    found = described(lambda at, length: data[at : at + length], len(data))
    assert [(one.name, one.element, one.shape, one.length_bytes) for one in found] == [
        ("1/data/0", "F32", (200, 150), 120_000),
        ("2/data/0", "F32", (5,), 20),
        ("3/data/0", "BF16", (300, 200), 120_000),
    ]


def test_big_endian_numbers_have_no_type():
    data = torch_zip([bytes(4)], pickle=b"\x80\2" + A_TENSOR + b".")
    for order, element in ((b"little", "F32"), (b"bigger", ""), (b"LITTLE", "")):
        other = data.replace(b"little", order)
        (one,) = described(lambda at, length, other=other: other[at : at + length], len(other))
        assert one.element == element


def test_odd_escapes_in_text_do_no_harm(recwarn: pytest.WarningsRecorder):
    assert read(b"(S'\\q'\n" + A_TENSOR + b"t.")["0"].elements == 1
    assert not recwarn


def test_pickles_of_torch_are_read():
    assert read(REAL[0]) == {
        "0": Pickled("state.w", "F32", 30_000, (200, 150)),
        "1": Pickled("state.b", "F32", 5, (5,)),
        "2": Pickled("state.h", "BF16", 60_000, (300, 200)),
    }


def test_a_truncated_pickle_has_no_tensors():
    for one in REAL:
        for end in range(len(one)):
            assert read(one[:end]) == {}


@given(st.sampled_from(REAL), st.data())
def test_any_valid_pickle_is_read_or_ignored(pickle: bytes, data: st.DataObject):
    changed = bytearray(pickle)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(pickle) - 1))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    for key, one in read(bytes(changed)).items():
        assert isinstance(key, str)
        assert len(one.name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_ignored(data: bytes):
    read(data)
    read(b"\x80\4" + data + b".")
    read(data + A_TENSOR + b".")
