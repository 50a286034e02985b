"""Completes snapshot IDs, tags and paths in a snapshot.

A completion has no place to print an error: if the store cannot be read, it offers nothing.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Final

import click
from click.shell_completion import CompletionItem

from ciuic.cli.opening import opened
from ciuic.cli.session import Session
from ciuic.errors import CiuicError
from ciuic.ids import SnapshotId, matching_ids
from ciuic.store.store import Store

__all__ = ["SNAPSHOT", "known_tags", "stored_path", "trashed_id"]

_PATH: Final = "path"
_NAMED: Final = ("snapshot_id", "snapshot")
_PREFIX: Final = "cs-"
_WORDS: Final = ("latest", "latest-valid")


def _session_of(context: click.Context) -> Session:
    """Return the session of a line that is being completed: the options of the whole line count."""
    named = context.find_root().params
    return Session(
        context.meta.get("ciuic.config", named.get("config")),
        context.meta.get("ciuic.store", named.get("store")),
    )


def stored_path(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer paths in the snapshot that the line names, or in the newest snapshot."""
    from ciuic.catalog import find_snapshot, latest_snapshot
    from ciuic.report.completing import continuations

    with contextlib.suppress(CiuicError, OSError), opened(_session_of(context)) as store:
        named = next((text for key in _NAMED if (text := context.params.get(key))), None)
        found = latest_snapshot(store) if named is None else find_snapshot(store, named)
        if found is not None:
            paths = continuations(store, store.manifest(found.id), os.fsencode(incomplete))
            return [CompletionItem(os.fsdecode(path), _PATH) for path in paths]
    return []


def known_tags(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the tags that snapshots have."""
    from ciuic.catalog import list_snapshots

    with contextlib.suppress(CiuicError, OSError), opened(_session_of(context)) as store:
        tags = sorted({tag for snapshot in list_snapshots(store) for tag in snapshot.tags})
        # As a path, because bash then quotes what needs quotes.
        return [CompletionItem(tag, _PATH) for tag in tags if tag.startswith(incomplete)]
    return []


def trashed_id(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the forgotten snapshots that can be brought back."""
    with contextlib.suppress(CiuicError, OSError), opened(_session_of(context)) as store:
        return _offered(store.trash.ids(), store, incomplete)
    return []


def _offered(
    snapshot_ids: Iterable[SnapshotId], store: Store, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the short form of each ID that may be meant; the whole ID if that much is typed.

    The answer to digits without ``cs-`` is without it too: a shell keeps what is typed.
    """
    short = store.short_ids()
    typed = _PREFIX if _PREFIX.startswith(incomplete) else incomplete
    dropped = 0 if typed.startswith(_PREFIX) else len(_PREFIX)
    found = []
    for snapshot_id in matching_ids(typed, snapshot_ids):
        shown = short.get(snapshot_id, snapshot_id)
        is_enough = len(shown) - dropped >= len(typed)
        found.append(CompletionItem[str]((shown if is_enough else snapshot_id)[dropped:]))
    return found


class _SnapshotType(click.ParamType[str]):
    """A snapshot's ID; completes from the store that the command line names."""

    name = "id"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - the signature is click's
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        with contextlib.suppress(CiuicError, OSError):
            with opened(_session_of(ctx)) as store:
                ids = _offered(store.listed_ids(), store, incomplete)
            words = [CompletionItem(word) for word in _WORDS if word.startswith(incomplete)]
            return [*ids, *words]
        return []


SNAPSHOT: Final = _SnapshotType()
