"""``ciuic prune``."""

import sys

import click

from ciuic.cli.interrupt import interruptible
from ciuic.cli.opening import opened
from ciuic.cli.options import (
    json_option,
    revoke_option,
    trash_option,
    wait_option,
)
from ciuic.cli.pruning import print_prune_report, prune_store
from ciuic.cli.render import print_json
from ciuic.cli.session import Session
from ciuic.errors import DAMAGE, UsageError
from ciuic.store.place.keys import is_url

__all__ = ["command"]


@click.command("prune")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@trash_option
@wait_option
@revoke_option
@json_option
@click.pass_obj
def command(
    session: Session,
    *,
    dry_run: bool,
    trash_s: float | None,
    wait_s: float,
    revoke_after_s: float | None,
    as_json: bool,
) -> None:
    """Free the space that no snapshot needs.

    ciuic removes forgotten snapshots for good when their time in the trash is over. It removes
    packs without needed chunks, rewrites fragmented packs without the unneeded chunks, and merges
    small packs. Snapshots can be restored meanwhile. You can interrupt prune at any moment, and run
    it again.

    In a bucket, other machines can take snapshots meanwhile. A pack that one of these snapshots may
    need stays until that snapshot has ended: prune waits as long as --wait says, and the next prune
    removes the rest.
    """
    if revoke_after_s is not None and not is_url(session.store_path()):
        raise UsageError(
            "--revoke-after applies only to a store in a bucket",
            hint="In a directory, a process that is killed holds no lock.",
        )
    trash_s = session.trash_s() if trash_s is None else trash_s
    parity = session.parity()
    with (
        interruptible() as cancelled,
        opened(session, write=True, removes=True, wait_s=wait_s, cancelled=cancelled) as store,
    ):
        report = prune_store(
            store,
            cancelled,
            trash_s=trash_s,
            parity=parity,
            dry_run=dry_run,
            wait_s=wait_s,
            revoke_after_s=revoke_after_s,
        )
    if as_json:
        print_json(report.as_json())
    else:
        print_prune_report(report)
    sys.exit(DAMAGE if report.damaged else 0)
