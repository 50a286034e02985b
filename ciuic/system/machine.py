"""Which machine this is: its name, and a hash of its machine ID."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from ciuic.system.hashing import derived_hash

__all__ = ["Machine", "names_of", "this_machine"]

_MACHINE_ID: Final = "/etc/machine-id"
_CONTEXT: Final = "ciuic store format 1 machine"
_DIGITS: Final = 16
_SHOWN_DIGITS: Final = 4
_ID_BYTES_MAX: Final = 1024


class Machine(NamedTuple):
    """A machine.

    Attributes:
        name: Its host name; bytes that are not UTF-8 are escaped.
        id: A hash of its machine ID, which systemd asks to keep secret; empty if it has none.
    """

    name: str
    id: str

    def is_same(self, other: "Machine") -> bool:
        """Return whether both can be one machine.

        Names must be equal, because copies of a virtual machine share the machine ID. The machine
        IDs must be equal if both are known, because two machines may have one name.
        """
        return self.name == other.name and (not self.id or not other.id or self.id == other.id)

    @property
    def long_name(self) -> str:
        """The name, with digits that tell machines of one name apart."""
        return f"{self.name}:{self.id[:_SHOWN_DIGITS]}" if self.id else self.name

    def is_called(self, text: str) -> bool:
        """Return whether a user means this machine, by its name or as a table shows it."""
        return text in {self.name, self.long_name}


def names_of(machines: Iterable[Machine]) -> dict[Machine, str]:
    """Map machines to what tells them apart: the name or, if several have it, the long name."""
    found = set(machines)
    counts = Counter(machine.name for machine in found)
    return {one: one.name if counts[one.name] == 1 else one.long_name for one in found}


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    name = os.uname().nodename.encode("utf-8", "backslashreplace").decode()
    try:
        with open(_MACHINE_ID, "rb") as file:
            known = file.read(_ID_BYTES_MAX).strip()
    except OSError:
        known = b""
    # systemd writes "uninitialized" before the first boot is complete.
    is_known = len(known) == 32 and known.isalnum()
    return Machine(name, derived_hash(_CONTEXT, known).hex()[:_DIGITS] if is_known else "")
