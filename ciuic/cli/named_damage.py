"""Names damaged directories while a command lists the others."""

from collections.abc import Iterator
from typing import TypeVar

import click

from ciuic.cli.render import printable
from ciuic.errors import CorruptionError
from ciuic.units import counted

__all__ = ["NamedDamage"]

_Item = TypeVar("_Item")


class NamedDamage:
    """Names each damaged directory on stderr, once; see ``OnDamage``."""

    def __init__(self) -> None:
        self._paths: set[bytes] = set()

    def __call__(self, path: bytes, error: CorruptionError) -> None:
        """Name a directory."""
        if path not in self._paths:
            self._paths.add(path)
            what = printable(error.message)
            click.echo(f"ciuic: {printable(path)}: the directory cannot be read: {what}", err=True)

    def after(self, found: Iterator[_Item]) -> Iterator[_Item]:
        """Yield what was found, then raise if a directory was named.

        Raises:
            CorruptionError: For the exit code, and for the last element of a JSON array.
        """
        yield from found
        if self._paths:
            count = len(self._paths)
            what = counted(count, "directory", "directories")
            raise CorruptionError(f"{what} cannot be read")
