"""``ciuic diff``."""

import sys
from typing import Final

import click

from ciuic.catalog import naming_removal, refuse_removed
from ciuic.cli.candidates import SNAPSHOT
from ciuic.cli.changes import print_changes
from ciuic.cli.opening import find_snapshot
from ciuic.cli.options import copies_option, json_option
from ciuic.cli.read_copies import opened_with_copies
from ciuic.cli.render import printable
from ciuic.cli.session import Session
from ciuic.cli.table import print_pair
from ciuic.errors import DAMAGE
from ciuic.store.records.manifest import Manifest
from ciuic.units import listed
from ciuic.view.diff import diff

__all__ = ["command"]

_NAMED_MAX: Final = 5


@click.command("diff")
@click.argument("before", type=SNAPSHOT, metavar="A")
@click.argument("after", type=SNAPSHOT, metavar="B")
@click.option("--tensors", is_flag=True, help="Also show which tensors changed, and how much.")
@click.option(
    "--quick",
    is_flag=True,
    help="Don't compute new content, which requires reading all trees of A.",
)
@copies_option
@json_option
@click.pass_obj
def command(
    session: Session, *, before: str, after: str, tensors: bool, quick: bool, as_json: bool
) -> None:
    """Show what changed from snapshot A to snapshot B.

    + added, - removed, M content changed, m metadata changed, T changed its type,
    x excluded by the rules of B, ? a root that could not be read when A or B was taken.

    If A and B are snapshots of different directories, ciuic says so on stderr: what only A holds
    counts as removed, and what only B holds as added.

    Each file is followed by its size (before and after, if the size changed) and by the bytes of
    its new content: chunks that are nowhere in A, before compression. A chunk that several files of
    B share counts for the first of them. A file that was copied or renamed has no new content.

    With --tensors, ciuic also compares each tensor in files by torch.save, distributed checkpoints,
    safetensors, numpy, GGUF, HDF5 and Keras: how many of its elements have the same bits, and how
    far it moved, as a share of its length (L2). 8-bit floats are compared as the numbers they
    encode. Elements of an unknown type, such as quantized blocks, are compared as bytes and have no
    distance. A new file is compared with the file of the step before: step_600.pt with step_500.pt.
    Nothing in a file is executed.
    """
    with opened_with_copies(session) as store:
        old = store.manifest(find_snapshot(session, store, before).id)
        new = store.manifest(find_snapshot(session, store, after).id)
        compared = (old.summary.id, new.summary.id)
        with naming_removal(store, *compared):
            if tensors:
                # Imported here because it loads numpy.
                from ciuic.cli.tensors import print_tensor_changes

                is_damaged = print_tensor_changes(store, old, new, quick=quick, as_json=as_json)
            else:
                changes = diff(store, old, new)
                is_damaged = print_changes(store, old, changes, quick=quick, as_json=as_json)
        if is_damaged:
            refuse_removed(store, *compared)
    # Last: above a long list, it would be out of sight.
    _name_other_roots(old, new)
    if is_damaged:
        sys.exit(DAMAGE)


def _name_other_roots(before: Manifest, after: Manifest) -> None:
    """Say on stderr which roots only one of the snapshots has: nothing there has changed."""
    for one, other, lacking, sign in (
        (before, after, "B", "removed"),
        (after, before, "A", "added"),
    ):
        held = {root.path for root in other.roots}
        roots = [printable(root.path) for root in one.roots if root.path not in held]
        if roots:
            named = listed(roots[:_NAMED_MAX], len(roots))
            what = f"{lacking} is not a snapshot of {named}: what is there counts as {sign}"
            print_pair("ciuic:", what, len("ciuic: "), err=True)
