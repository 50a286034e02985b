"""A pickle's opcodes, read on a stack of their own and never executed.

A pickle is a program for a machine with a stack. This machine follows the opcodes without doing
what they say: it imports no module, creates no class and calls nothing. It knows the functions
that build tensors by their names (``torch._utils._rebuild_tensor_v2`` and its relatives). It keeps
dictionaries, lists and tuples. Of every other object it keeps only what the object contains.

Guarantee: memory and time are bounded by ``_OPS_MAX`` and ``_VALUES_MAX``.
"""

from collections.abc import Callable
from typing import Any, BinaryIO, Final, NamedTuple

from ciuic.formats.headers import DIMENSIONS_MAX, NAME_BYTES_MAX

__all__ = [
    "OTHER",
    "Container",
    "OddPickleError",
    "PickleMachine",
    "Storage",
    "Tensor",
    "shape_of",
]

_OPS_MAX: Final = 3_000_000
"""An optimizer takes about 40 opcodes per tensor."""
_VALUES_MAX: Final = 1_000_000
"""Values on the stack, in the memo, or created: about 17 per tensor."""
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
"""Index among the arguments of ``_rebuild_tensor_v3``, whose storages carry no type."""


class OddPickleError(Exception):
    """The pickle is not what ``torch.save`` writes, or exceeds a bound."""


class _Global(NamedTuple):
    """A function or class, by its name."""

    name: str


class Storage(NamedTuple):
    """The storage of one or more tensors: its key, element type and number of elements."""

    key: str
    element: str
    elements: int


class Tensor(NamedTuple):
    """A tensor. Its shape is None if the shape is odd or the tensor starts inside its storage."""

    storage: Storage
    element: str
    shape: tuple[int, ...] | None


class Container:
    """Anything that contains other values, under keys or in a sequence."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []

    def append(self, value: Any) -> None:
        """Add a value to the sequence."""
        self.items.append((len(self.items), value))


_MARK: Final = object()
OTHER: Final = object()
"""A value that says nothing about tensors: a float, bytes, None."""


class PickleMachine:
    """Follows the opcodes on its own stack.

    Attributes:
        storages: The storages that the pickle names, by their keys.
    """

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._values = 0

    def run(self, pickle: bytes | BinaryIO) -> Any:
        """Return the value that unpickling would return; of a file, the pickle is read to its end.

        Raises:
            OddPickleError: An opcode or the number of values is out of bounds.
            ValueError, IndexError, KeyError: The pickle is malformed.
        """
        # Imported late: most files are not pickles.
        import pickletools

        for number, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
            if number > _OPS_MAX:
                raise OddPickleError
            if opcode.name == "STOP":
                break
            handler = _HANDLERS.get(opcode.name)
            if handler is not None:
                handler(self, argument)
            elif opcode.name in _CONSTANTS:
                self._push(_constant(argument))
            else:
                raise OddPickleError
        return self._pop()

    def _count(self) -> None:
        self._values += 1
        if self._values > _VALUES_MAX:
            raise OddPickleError

    def _push(self, value: Any) -> None:
        if len(self._stack) >= _VALUES_MAX:
            raise OddPickleError
        self._stack.append(value)

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise OddPickleError
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
        """POP, which may also remove a mark."""
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
        self._push(Container())

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
        for value in values:
            self._stack[-1].append(value)

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
        for value in values:
            held.append(value)

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
            raise OddPickleError
        if len(name) + len(module) > NAME_BYTES_MAX:
            raise OddPickleError
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
        """BUILD: sets an object's state; the state's keys are the object's attributes."""
        state = self._pop()
        target = self._stack[-1]
        if isinstance(target, Container):
            target.items.append((None, state))

    def persistent(self, _: Any) -> None:
        """BINPERSID: a storage with its number of elements."""
        match self._pop():
            # The format before archives adds what a view is a view of.
            case ("storage", _Global(name), str(key), _, int(count), *_):
                self._count()
                found = Storage(key, _STORAGES.get(name.rpartition(" ")[2], ""), count)
                self.storages[key] = found
                self._push(found)
            case _:
                self._push(OTHER)

    def _held(self) -> Container:
        target = self._stack[-1]
        if not isinstance(target, Container):
            raise OddPickleError
        return target

    def _set(self, values: list[Any]) -> None:
        held = self._held()
        if len(values) % 2:
            raise OddPickleError
        held.items.extend(zip(values[::2], values[1::2], strict=True))

    def _called(self, function: Any, arguments: Any) -> Any:
        """Return what a call would return, as far as tensors are concerned."""
        self._count()
        if isinstance(function, _Global) and isinstance(arguments, tuple):
            if function.name == _FROM_TYPE and len(arguments) > 2:
                function, arguments = arguments[0], arguments[2]
            if isinstance(function, _Global) and isinstance(arguments, tuple):
                if function.name in _REBUILDS:
                    return _rebuilt(arguments)
                if function.name in _WRAPPERS and arguments:
                    return arguments[0]
        made = Container()
        made.items.append((None, arguments))
        return made


def _constant(argument: Any) -> Any:
    """Strings and integers are kept: keys and shapes consist of them."""
    if isinstance(argument, str):
        return argument
    if type(argument) is int and -_INTEGER_MAX <= argument < _INTEGER_MAX:
        return argument
    return OTHER


def _rebuilt(arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (Storage() as storage, int(offset), tuple(size), *_):
            pass
        case _:
            return OTHER
    element = storage.element
    if len(arguments) > _PLACE_OF_DTYPE and isinstance(arguments[_PLACE_OF_DTYPE], _Global):
        element = _DTYPES.get(arguments[_PLACE_OF_DTYPE].name.removeprefix("torch "), "")
    return Tensor(storage, element, None if offset else shape_of(size))


def shape_of(size: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Return a shape, or None if these are not a shape's lengths."""
    lengths = [length for length in size if type(length) is int and length >= 0]
    if len(size) > DIMENSIONS_MAX or len(lengths) != len(size):
        return None
    return size


_Handler = Callable[[PickleMachine, Any], None]


def _tuple_of(count: int) -> _Handler:
    return lambda machine, _: machine.tuple_of(count)


_HANDLERS: Final[dict[str, _Handler]] = {
    "PROTO": PickleMachine.nothing,
    "FRAME": PickleMachine.nothing,
    "MARK": PickleMachine.mark,
    "POP": PickleMachine.pop,
    "POP_MARK": PickleMachine.pop_mark,
    "DUP": PickleMachine.dup,
    "PUT": PickleMachine.put,
    "BINPUT": PickleMachine.put,
    "LONG_BINPUT": PickleMachine.put,
    "MEMOIZE": PickleMachine.put,
    "GET": PickleMachine.get,
    "BINGET": PickleMachine.get,
    "LONG_BINGET": PickleMachine.get,
    "EMPTY_DICT": PickleMachine.empty,
    "EMPTY_LIST": PickleMachine.empty,
    "EMPTY_SET": PickleMachine.empty,
    "EMPTY_TUPLE": PickleMachine.empty_tuple,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": PickleMachine.tuple_to_mark,
    "LIST": PickleMachine.row,
    "FROZENSET": PickleMachine.row,
    "DICT": PickleMachine.dict_to_mark,
    "APPEND": PickleMachine.append,
    "APPENDS": PickleMachine.appends,
    "ADDITEMS": PickleMachine.appends,
    "SETITEM": PickleMachine.set_item,
    "SETITEMS": PickleMachine.set_items,
    "GLOBAL": PickleMachine.global_,
    "STACK_GLOBAL": PickleMachine.stack_global,
    "REDUCE": PickleMachine.call,
    "NEWOBJ": PickleMachine.call,
    "NEWOBJ_EX": PickleMachine.call_with_keywords,
    "INST": PickleMachine.call_to_mark,
    "OBJ": PickleMachine.call_to_mark,
    "BUILD": PickleMachine.build,
    "BINPERSID": PickleMachine.persistent,
}
_CONSTANTS: Final = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "NONE", "NEWTRUE"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "NEWFALSE", "BYTEARRAY8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    )
)
"""Extensions, out-of-band buffers and textual persistent IDs are missing: torch uses none."""
