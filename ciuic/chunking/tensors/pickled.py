"""What ``torch.save`` has pickled -> the names, types and shapes of its tensors; nothing is run.

A pickle is a program for a machine with a stack. Here it is read, not executed: no module is
imported, no class is made, nothing is called. What torch makes tensors with is known by its name
(``torch._utils._rebuild_tensor_v2`` and its relatives); dictionaries, lists and tuples are kept, so
that the keys on the way to a tensor give it a name such as ``optimizer.state.3.exp_avg``; all else
is an object of which only what it holds matters. A distributed checkpoint has no names in its
files: there they are in a pickle beside them, ``.metadata``.

Guarantees:
    - for any bytes ``read`` and ``parts`` return: of an odd pickle, that there are no tensors.
    - memory and time are bounded by ``_OPS_MAX`` and ``_VALUES_MAX``, and names by
      ``NAME_BYTES_MAX``.
"""

import math
import pickletools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ciuic.chunking.tensors.headers import DIMENSIONS_MAX, NAME_BYTES_MAX

__all__ = ["PICKLE_BYTES_MAX", "Part", "Pickled", "parts", "read"]

_OPS_MAX: Final = 3_000_000
"""Some 40 for each tensor of an optimizer's."""
_VALUES_MAX: Final = 1_000_000
"""On the stack, in the memo, or made: some 17 for each tensor."""
PICKLE_BYTES_MAX: Final = 16 * 1024 * 1024
_DEPTH_MAX: Final = 64
_ATTRIBUTES_MAX: Final = 16
"""Of an object of a distributed checkpoint; all may be the same one, with any number of them."""
_INTEGER_MAX: Final = 2**63

_STORAGES: Final = {
    "BFloat16Storage": "BF16",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ComplexDoubleStorage": "C128",
    "ComplexFloatStorage": "C64",
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "ShortStorage": "I16",
}
_DTYPES: Final = {
    "bfloat16": "BF16",
    "bool": "BOOL",
    "complex128": "C128",
    "complex64": "C64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "int8": "I8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "uint8": "U8",
}
_REBUILDS: Final = {
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
}
_WRAPPERS: Final = {
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_parameter_with_state",
}
_FROM_TYPE: Final = "torch._tensor _rebuild_from_type_v2"
_PLACE_OF_DTYPE: Final = 6
"""Among the arguments of ``_rebuild_tensor_v3``, whose storages have no type of their own."""


class Pickled(NamedTuple):
    """A tensor as a pickle has it.

    Attributes:
        name: The keys on the way to it; empty if there are none.
        element: The type of its elements; empty if it is none that is known here.
        elements: How many its storage has.
        shape: None if it is not all of that.
    """

    name: str
    element: str
    elements: int
    shape: tuple[int, ...] | None


class Part(NamedTuple):
    """A stretch of a file of a distributed checkpoint, and what that says of it.

    Attributes:
        offset_bytes: Where in the file it begins.
        length_bytes: How long it is.
        name: Of what lies there: a tensor, or the part of it that begins where the name says.
    """

    offset_bytes: int
    length_bytes: int
    name: str


class _OddError(Exception):
    """The pickle is not what ``torch.save`` writes, or too much of it."""


class _Global(NamedTuple):
    """A function or class, by its name."""

    name: str


class _Storage(NamedTuple):
    key: str
    element: str
    elements: int


class _Tensor(NamedTuple):
    storage: _Storage
    element: str
    shape: tuple[int, ...] | None


class _Object:
    """Whatever holds other values: under keys, or in a row."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []

    def append(self, value: Any) -> None:
        """One more in the row."""
        self.items.append((len(self.items), value))


_MARK: Final = object()
_OTHER: Final = object()
"""Any value that nothing can be read from: a number with a fraction, bytes, None."""


def read(pickle: bytes) -> dict[str, Pickled]:
    """The tensors of a pickle, by the names of their storages: ``17`` for ``data/17``.

    Of several tensors in one storage the first has it.
    """
    return _tensors(_held(pickle))


def parts(pickle: bytes) -> dict[str, list[Part]]:
    """What each file of a distributed checkpoint holds, in order, by the ``.metadata`` beside it.

    Files are called as it calls them; what it does not tell in full is left out.
    """
    found: dict[str, list[Part]] = {}
    storage = _attributes(_held(pickle)).get("storage_data")
    for key, value in storage.items if isinstance(storage, _Object) else ():
        index, place = _attributes(key), _attributes(value)
        match index.get("fqn"), *[place.get(one) for one in ("relative_path", "offset", "length")]:
            case [str(name), str(file), int(offset), int(length)] if offset >= 0 < length:
                begins = _integers(index.get("offset"))
                if any(begins):
                    name += f"[{', '.join(map(str, begins))}]"
                if len(name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX:
                    found.setdefault(file, []).append(Part(offset, length, name))
    for one in found.values():
        one.sort()
    return found


def _held(pickle: bytes) -> Any:
    """What a pickle would give back; if it is odd, nothing that holds anything."""
    if len(pickle) > PICKLE_BYTES_MAX:
        return _OTHER
    try:
        # Of text with odd escapes Python warns whoever is near; there is nobody to mend it.
        with warnings.catch_warnings(action="ignore"):
            return _Machine().run(pickle)
    except (_OddError, ValueError, IndexError, KeyError):
        return _OTHER


def _attributes(value: Any) -> dict[str, Any]:
    """Those of an object, from its state."""
    few = value.items[:_ATTRIBUTES_MAX] if isinstance(value, _Object) else []
    return {
        name: one
        for key, state in few
        if key is None and isinstance(state, _Object)
        for name, one in state.items[:_ATTRIBUTES_MAX]
        if isinstance(name, str)
    }


def _integers(value: Any) -> tuple[int, ...]:
    """Of a ``torch.Size``, which is called with them."""
    match value.items if isinstance(value, _Object) else ():
        case [(None, (tuple(found),))] if _shape(found) is not None:
            return found
    return ()


class _Machine:
    """Goes through the opcodes, and does on its stack what they would do on the real one."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._values = 0

    def run(self, pickle: bytes) -> Any:
        """What the pickle would give back."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
            if number > _OPS_MAX:
                raise _OddError
            if opcode.name == "STOP":
                break
            handler = _HANDLERS.get(opcode.name)
            if handler is not None:
                handler(self, argument)
            elif opcode.name in _CONSTANTS:
                self._push(_constant(argument))
            else:
                raise _OddError
        return self._pop()

    def _count(self) -> None:
        self._values += 1
        if self._values > _VALUES_MAX:
            raise _OddError

    def _push(self, value: Any) -> None:
        if len(self._stack) >= _VALUES_MAX:
            raise _OddError
        self._stack.append(value)

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise _OddError
        return value

    def _popped_to_mark(self) -> list[Any]:
        found = []
        while (value := self._stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def nothing(self, _: Any) -> None:
        """PROTO, FRAME."""

    def mark(self, _: Any) -> None:
        """MARK."""
        self._push(_MARK)

    def pop(self, _: Any) -> None:
        """POP, of a mark too."""
        self._stack.pop()

    def pop_mark(self, _: Any) -> None:
        """POP_MARK."""
        self._popped_to_mark()

    def dup(self, _: Any) -> None:
        """DUP."""
        self._push(self._stack[-1])

    def put(self, argument: Any) -> None:
        """PUT, BINPUT, LONG_BINPUT and, without an argument, MEMOIZE."""
        self._count()
        self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]

    def get(self, argument: Any) -> None:
        """GET, BINGET, LONG_BINGET."""
        self._push(self._memo[argument])

    def empty(self, _: Any) -> None:
        """EMPTY_DICT, EMPTY_LIST, EMPTY_SET."""
        self._count()
        self._push(_Object())

    def empty_tuple(self, _: Any) -> None:
        """EMPTY_TUPLE."""
        self._push(())

    def tuple_of(self, count: int) -> None:
        """TUPLE1, TUPLE2, TUPLE3."""
        self._count()
        self._push(tuple([self._pop() for _ in range(count)][::-1]))

    def tuple_to_mark(self, _: Any) -> None:
        """TUPLE."""
        self._count()
        self._push(tuple(self._popped_to_mark()))

    def row(self, _: Any) -> None:
        """LIST, FROZENSET."""
        values = self._popped_to_mark()
        self.empty(None)
        for one in values:
            self._stack[-1].append(one)

    def dict_to_mark(self, _: Any) -> None:
        """DICT."""
        values = self._popped_to_mark()
        self.empty(None)
        self._set(values)

    def append(self, _: Any) -> None:
        """APPEND."""
        value = self._pop()
        self._held().append(value)

    def appends(self, _: Any) -> None:
        """APPENDS, ADDITEMS."""
        values = self._popped_to_mark()
        held = self._held()
        for one in values:
            held.append(one)

    def set_item(self, _: Any) -> None:
        """SETITEM."""
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def set_items(self, _: Any) -> None:
        """SETITEMS."""
        self._set(self._popped_to_mark())

    def global_(self, argument: str) -> None:
        """GLOBAL."""
        self._count()
        self._push(_Global(argument))

    def stack_global(self, _: Any) -> None:
        """STACK_GLOBAL."""
        name, module = self._pop(), self._pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise _OddError
        if len(name) + len(module) > NAME_BYTES_MAX:
            raise _OddError
        self.global_(f"{module} {name}")

    def call(self, _: Any) -> None:
        """REDUCE, NEWOBJ."""
        arguments, function = self._pop(), self._pop()
        self._push(self._called(function, arguments))

    def call_with_keywords(self, _: Any) -> None:
        """NEWOBJ_EX."""
        keywords, arguments, function = self._pop(), self._pop(), self._pop()
        self._push(self._called(function, (arguments, keywords)))

    def call_to_mark(self, argument: str | None) -> None:
        """INST, and without an argument OBJ."""
        values = self._popped_to_mark()
        function = values.pop(0) if argument is None else _Global(argument)
        self._push(self._called(function, tuple(values)))

    def build(self, _: Any) -> None:
        """BUILD: an object's state, whose keys are its attributes."""
        state = self._pop()
        target = self._stack[-1]
        if isinstance(target, _Object):
            target.items.append((None, state))

    def persistent(self, _: Any) -> None:
        """BINPERSID: a storage, and how many elements it has."""
        match self._pop():
            case ("storage", _Global(name), str(key), _, int(count)):
                self._count()
                self._push(_Storage(key, _STORAGES.get(name.rpartition(" ")[2], ""), count))
            case _:
                self._push(_OTHER)

    def _held(self) -> _Object:
        target = self._stack[-1]
        if not isinstance(target, _Object):
            raise _OddError
        return target

    def _set(self, values: list[Any]) -> None:
        held = self._held()
        if len(values) % 2:
            raise _OddError
        held.items.extend(zip(values[::2], values[1::2], strict=True))

    def _called(self, function: Any, arguments: Any) -> Any:
        """What a call would give back, as far as tensors go."""
        self._count()
        if isinstance(function, _Global) and isinstance(arguments, tuple):
            if function.name == _FROM_TYPE and len(arguments) > 2:
                function, arguments = arguments[0], arguments[2]
            if isinstance(function, _Global) and isinstance(arguments, tuple):
                if function.name in _REBUILDS:
                    return _rebuilt(arguments)
                if function.name in _WRAPPERS and arguments:
                    return arguments[0]
        made = _Object()
        made.items.append((None, arguments))
        return made


def _constant(argument: Any) -> Any:
    """Words and whole numbers, of which keys and shapes are made."""
    if isinstance(argument, str):
        return argument
    if type(argument) is int and -_INTEGER_MAX <= argument < _INTEGER_MAX:
        return argument
    return _OTHER


def _rebuilt(arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (_Storage() as storage, int(offset), tuple(size), *_):
            pass
        case _:
            return _OTHER
    element = storage.element
    if len(arguments) > _PLACE_OF_DTYPE and isinstance(arguments[_PLACE_OF_DTYPE], _Global):
        element = _DTYPES.get(arguments[_PLACE_OF_DTYPE].name.removeprefix("torch "), "")
    return _Tensor(storage, element, None if offset else _shape(size))


def _shape(size: tuple[Any, ...]) -> tuple[int, ...] | None:
    if len(size) > DIMENSIONS_MAX or not all(type(one) is int and one >= 0 for one in size):
        return None
    return size


class _Way(NamedTuple):
    """The keys on the way to a value, the last one first."""

    depth: int
    before: "_Way | None"
    key: str


_TOP: Final = _Way(0, None, "")


def _tensors(top: Any) -> dict[str, Pickled]:
    """Every tensor that is held somewhere below a value. Not by recursion: it may be deep."""
    found: dict[str, Pickled] = {}
    seen: set[int] = set()
    waiting = [(_TOP, top)]
    while waiting:
        way, value = waiting.pop()
        if isinstance(value, _Tensor):
            if value.storage.key not in found:
                found[value.storage.key] = _pickled(way, value)
            continue
        if not isinstance(value, (_Object, tuple)) or id(value) in seen or way.depth > _DEPTH_MAX:
            continue
        seen.add(id(value))
        waiting += reversed(list(_inner(way, value)))
    return found


def _pickled(way: _Way, tensor: _Tensor) -> Pickled:
    storage, shape = tensor.storage, tensor.shape
    is_all = shape is not None and math.prod(shape) == storage.elements
    return Pickled(_name(way), tensor.element, storage.elements, shape if is_all else None)


def _inner(way: _Way, value: "_Object | tuple[Any, ...]") -> Iterator[tuple[_Way, Any]]:
    items = value.items if isinstance(value, _Object) else enumerate(value)
    for key, one in items:
        if isinstance(one, (_Object, _Tensor, tuple)):
            # A call's arguments and an object's state are what it holds: they have no name.
            text = str(key) if isinstance(key, (str, int)) else ""
            yield _Way(way.depth + 1, way, text), one


def _name(way: _Way) -> str:
    keys: list[str] = []
    at: _Way | None = way
    while at is not None:
        if at.key:
            keys.append(at.key)
        at = at.before
    if sum([len(one) for one in keys]) > NAME_BYTES_MAX:
        return ""
    name = ".".join(keys[::-1])
    return name if len(name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX else ""


_Handler = Callable[[_Machine, Any], None]


def _tuple_of(count: int) -> _Handler:
    return lambda machine, _: machine.tuple_of(count)


_HANDLERS: Final[dict[str, _Handler]] = {
    "PROTO": _Machine.nothing,
    "FRAME": _Machine.nothing,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.dup,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "EMPTY_DICT": _Machine.empty,
    "EMPTY_LIST": _Machine.empty,
    "EMPTY_SET": _Machine.empty,
    "EMPTY_TUPLE": _Machine.empty_tuple,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": _Machine.tuple_to_mark,
    "LIST": _Machine.row,
    "FROZENSET": _Machine.row,
    "DICT": _Machine.dict_to_mark,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_keywords,
    "INST": _Machine.call_to_mark,
    "OBJ": _Machine.call_to_mark,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
_CONSTANTS: Final = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "NONE", "NEWTRUE"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "NEWFALSE", "BYTEARRAY8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    )
)
"""All but extensions, buffers outside the pickle and persistent IDs as text: torch has none."""
