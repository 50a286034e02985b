"""The JSON documents that start jobs through the HTTP API.

A text that may hold bytes which are not UTF-8 (a path, a message that names one) is bytes here, and
in JSON a string with lone surrogates, as everywhere in ciuic.
"""

import os
from typing import Annotated, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from ciuic.model import path_text

__all__ = [
    "PATHS_MAX",
    "CommandWork",
    "CompareRunsWork",
    "CompareWork",
    "ForgetWork",
    "PinWork",
    "RestoreWork",
    "SnapshotWork",
    "StatsWork",
    "TagWork",
    "Text",
    "VerifyWork",
    "Work",
    "parse_work",
]

PATHS_MAX: Final = 1000
_TAGS_MAX: Final = 20
_NAME_MAX: Final = 100
_ARGUMENT_BYTES_MAX: Final = 64 * 1024


def _encoded(text: object) -> object:
    return os.fsencode(text) if isinstance(text, str) else text


Text = Annotated[
    bytes,
    BeforeValidator(_encoded),
    PlainSerializer(path_text),
    WithJsonSchema({"type": "string", "description": "bytes that are not UTF-8: \\udcXX"}),
]


def _passable(text: bytes) -> bytes:
    if b"\0" in text:
        raise ValueError("no program can be given a NUL character")
    return text


Argument = Annotated[Text, Field(max_length=_ARGUMENT_BYTES_MAX), AfterValidator(_passable)]
"""What a command gets as an argument: Linux refuses NUL, and more than 128 KiB."""
Name = Annotated[str, Field(max_length=_NAME_MAX, pattern=r"^[ -~]*$")]
"""The name of a snapshot: an ID, a prefix of one, ``latest``, ``latest-valid``, or a time."""


class _Work(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class RestoreWork(_Work):
    """Restore paths, as ``ciuic restore`` does; ``dry_run`` computes the plan alone."""

    do: Literal["restore"]
    snapshot: Name
    paths: list[Argument] = Field(min_length=1, max_length=PATHS_MAX)
    destination: Argument | None = None
    overwrite: bool = False
    delete: bool = False
    fallback: bool = False
    dry_run: bool = True


class VerifyWork(_Work):
    """Verify one snapshot, as ``ciuic verify`` does."""

    do: Literal["verify"]
    snapshot: Name
    checksum: bool = False


class CompareWork(_Work):
    """Compare snapshots with their tensors, as ``ciuic compare`` does."""

    do: Literal["compare"]
    snapshots: list[Name] = Field(min_length=2, max_length=12)


class CompareRunsWork(_Work):
    """Compare runs with their tensors, as ``ciuic compare --runs`` does."""

    do: Literal["compare_runs"]
    runs: list[Argument] = Field(min_length=2, max_length=12)
    best: Argument | None = None


class TagWork(_Work):
    """Add and remove tags of a snapshot, as ``ciuic tag`` does."""

    do: Literal["tag"]
    snapshot: Name
    add: list[Argument] = Field(default=[], max_length=_TAGS_MAX)
    remove: list[Argument] = Field(default=[], max_length=_TAGS_MAX)


class PinWork(_Work):
    """Pin a snapshot, or remove its pin, as ``ciuic pin`` does."""

    do: Literal["pin"]
    snapshot: Name
    remove: bool = False


class ForgetWork(_Work):
    """Forget snapshots, as ``ciuic forget`` does; ``dry_run`` computes the plan alone."""

    do: Literal["forget"]
    snapshots: list[Name] = Field(
        default=[], max_length=PATHS_MAX, description="empty: by the retention policy"
    )
    dry_run: bool = True


class SnapshotWork(_Work):
    """Take a snapshot now, as ``ciuic snapshot`` does."""

    do: Literal["snapshot"]
    base: bool = False


class StatsWork(_Work):
    """Find what takes the space, as ``ciuic stats --by`` does."""

    do: Literal["stats"]
    by: Literal["path", "kind", "age"] = "path"


CommandWork = (
    CompareWork | CompareRunsWork | TagWork | PinWork | ForgetWork | SnapshotWork | StatsWork
)
"""Work that the command itself does, with its own plans and refusals."""
Work = Annotated[RestoreWork | VerifyWork | CommandWork, Field(discriminator="do")]


_work: Final[TypeAdapter[RestoreWork | VerifyWork | CommandWork]] = TypeAdapter(Work)


def parse_work(body: object) -> RestoreWork | VerifyWork | CommandWork:
    """Check the request for a job.

    Raises:
        ValueError: The request is refused; the message says why.
    """
    try:
        return _work.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # The first part of a place is the kind of the job, which was found out from "do".
        place = ".".join([str(part) for part in first["loc"][1:]])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error
