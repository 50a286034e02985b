"""The metadata of ``torch.distributed.checkpoint`` as JSON: no pickle, so reading runs no code."""

import json
from typing import Any, Final, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ciuic.errors import CorruptionError, UnknownFormatError
from ciuic.training.values.structure import (
    Json,
    Path,
    StructureWriter,
    read_structure,
    written_path,
)

__all__ = ["DOCUMENT_NAME", "Stored", "read_document", "write_document"]

DOCUMENT_NAME: Final = "dcp.json"
_FORMAT: Final = 1


class Stored(NamedTuple):
    """Where an item is.

    Attributes:
        file: Path of the file below the root of the snapshot.
        name: The item's name in the file.
        array: What ``rebuild`` needs for a tensor; None: the item is bytes.
    """

    file: str
    name: str
    array: dict[str, Any] | None


def write_document(metadata: Metadata, stored: dict[MetadataIndex, Stored]) -> bytes:
    """Return the bytes of the document.

    Raises:
        TypeError: A planner of the user's own has data that JSON cannot hold.
    """

    def refuse(_value: object, path: Path) -> Json:
        raise TypeError(f"{written_path(path)} cannot be stored: it is a tensor or an array")

    document = {
        "format": _FORMAT,
        "version": metadata.version,
        "planner": StructureWriter(refuse).write(metadata.planner_data, ("planner_data",)),
        "items": {fqn: _item(found) for fqn, found in metadata.state_dict_metadata.items()},
        "stored": [
            {
                "fqn": index.fqn,
                "offset": None if index.offset is None else list(index.offset),
                "index": index.index,
                "file": place.file,
                "name": place.name,
                "array": place.array,
            }
            for index, place in stored.items()
        ],
    }
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def read_document(data: bytes) -> Metadata:
    """Return the metadata; its ``storage_data`` maps each index to a ``Stored``.

    Raises:
        CorruptionError: ``data`` is not such a document.
        UnknownFormatError: A later version of ciuic wrote it.
    """
    try:
        document = json.loads(data)
        version = document["format"]
        if version != _FORMAT:
            raise UnknownFormatError(
                f"{DOCUMENT_NAME} has version {version}, and this ciuic knows {_FORMAT}"
            )
        return Metadata(
            state_dict_metadata={fqn: _read_item(row) for fqn, row in document["items"].items()},
            planner_data=read_structure(document["planner"], _no_array),
            storage_data={
                MetadataIndex(row["fqn"], row["offset"], row["index"]): Stored(
                    row["file"], row["name"], row["array"]
                )
                for row in document["stored"]
            },
            version=document["version"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{DOCUMENT_NAME} cannot be read: {error!r}") from error


def _item(found: Any) -> Json:
    if isinstance(found, BytesStorageMetadata):
        return None
    return {
        "dtype": str(found.properties.dtype).removeprefix("torch."),
        "requires_grad": found.properties.requires_grad,
        "size": list(found.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in found.chunks],
    }


def _read_item(row: Json) -> Any:
    if row is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, row["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise UnknownFormatError(
            f"this version of torch has no element type {row['dtype']}",
            hint="Load the snapshot with a newer version of torch.",
        )
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype, requires_grad=row["requires_grad"]),
        torch.Size(row["size"]),
        [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            for offsets, sizes in row["chunks"]
        ],
    )


def _no_array(_: Json) -> Any:
    raise TypeError("planner data holds no array")
