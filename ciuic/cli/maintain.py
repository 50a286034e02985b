"""``ciuic init``, ``stats``, ``status`` and ``completion``."""

import sys
from collections.abc import Iterator
from typing import Any

import click

from ciuic.cli.render import print_json, print_table, printable
from ciuic.cli.session import DAMAGE, Session, json_option
from ciuic.errors import UsageError
from ciuic.units import format_bytes, format_duration, parse_size_bytes

__all__ = ["completion", "init", "stats", "status"]


@click.command(short_help="Create the store; harmless when it is there.")
@click.option(
    "--chunking",
    type=click.Choice(["content", "tensors", "fixed"]),
    default="content",
    show_default=True,
    help="How files are cut.",
)
@click.option(
    "--chunk-size",
    default="1 MiB",
    show_default=True,
    metavar="SIZE",
    help="Length at which files are cut at the latest, 4 KiB to 16 MiB.",
)
@click.option(
    "--chunk-average",
    metavar="SIZE",
    help="Of chunks cut by content, a power of two.  [default: half the chunk size]",
)
@click.option(
    "--chunk-least",
    metavar="SIZE",
    help="None of these is shorter, a power of two.  [default: a quarter of the average]",
)
@json_option
@click.pass_obj
def init(
    session: Session,
    *,
    chunking: str,
    chunk_size: str,
    chunk_average: str | None,
    chunk_least: str | None,
    as_json: bool,
) -> None:
    """Create the store; harmless when it is there.

    How files are cut holds for the life of the store. With 'content' tensors, databases and disk
    images are cut at their places, and other files where their content says so: what is inserted
    into one is all that is stored again. With 'tensors' all files but those of tensors are cut at
    multiples of the chunk size, and with 'fixed' those too.
    """
    from ciuic.clock import SystemClock
    from ciuic.store import create_store

    if chunking != "content" and (chunk_average or chunk_least):
        raise UsageError("--chunk-average and --chunk-least go with --chunking content")
    path = session.store_path()
    created = create_store(
        path,
        SystemClock(),
        chunk_bytes=_size(chunk_size),
        chunking=chunking,
        average_bytes=_size(chunk_average),
        least_bytes=_size(chunk_least),
    )
    if as_json:
        print_json({"store": path, "created": created})
    else:
        click.echo(
            f"{printable(path)}: {'store created' if created else 'the store is there already'}"
        )


def _size(text: str | None) -> int:
    if text is None:
        return 0
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


@click.command(short_help="Show how many bytes the store holds, and of what.")
@click.option(
    "--detail", is_flag=True, help="Also by codec, kind of file and element type; takes longer."
)
@json_option
@click.pass_obj
def stats(session: Session, *, detail: bool, as_json: bool) -> None:
    """Show how much the store holds: logical, unique and stored bytes.

    With --detail also what the packs hold by codec, and what the newest snapshot holds by kind of
    file (told by how files begin; those under 64 KiB are small) and by the type of its tensors'
    elements: their bytes, and what these take in the store. Then how many of its chunks are
    stored as differences, how long their chains are, and how much must be read to rebuild it, as
    a multiple of what it would take without differences (estimated by what the chains end at).
    """
    from ciuic.catalog import latest_snapshot, list_snapshots
    from ciuic.verbs.scrub import health

    weights = None
    with session.opened() as store:
        snapshots = list_snapshots(store)
        unique, stored, chunks = store.totals()
        checks = health(store)
        if detail:
            from ciuic.cli.progress import progress
            from ciuic.verbs.weigh import weigh

            latest = latest_snapshot(store)
            newest = None if latest is None else latest.id
            with progress("weigh", quiet=as_json) as reporter:
                weights = weigh(store, newest, progress=reporter.update)
    document: dict[str, Any] = {
        "snapshots": len(snapshots),
        "logical_bytes": sum(one.logical_bytes for one in snapshots),
        "unique_bytes": unique,
        "stored_bytes": stored,
        "chunks": chunks,
        "checks": checks.as_json(),
    }
    if weights is not None:
        document["detail"] = weights.as_json()
    if as_json:
        print_json(document)
    else:
        _print_stats(document, checks, weights)
    if weights is not None and weights.trouble:
        click.echo(
            f"ciuic: {weights.trouble:,} files or chunks of {weights.snapshot} can't be had:"
            " see 'ciuic verify'",
            err=True,
        )
        sys.exit(DAMAGE)


def _print_stats(document: dict[str, Any], checks: Any, weights: Any) -> None:
    rows = [
        ("logical", format_bytes(document["logical_bytes"]), "all files of all snapshots"),
        ("unique", format_bytes(document["unique_bytes"]), "each piece of content once"),
        ("stored", format_bytes(document["stored_bytes"]), "in packs, encoded"),
    ]
    count = document["snapshots"]
    click.echo(f"{count:,} snapshot{'' if count == 1 else 's'}")
    print_table(("BYTES", "SIZE", "OF WHAT"), rows, right=frozenset({1}))
    for key, value in _check_lines(checks):
        click.echo(f"{key}: {value}")
    if weights is None:
        return
    _print_weights("CODEC", "FRAMES", weights.codecs)
    if weights.snapshot is None:
        return
    click.echo(f"\n{weights.snapshot}, the newest snapshot:")
    _print_weights("KIND", "FILES", weights.kinds)
    if weights.elements:
        _print_weights("TYPE", "TENSORS", weights.elements)
    for line in _chain_lines(weights.chains):
        click.echo(line)


def _print_weights(what: str, counted: str, weights: dict[str, Any]) -> None:
    click.echo()
    rows = [
        (
            name,
            f"{one.count:,}",
            format_bytes(one.plain_bytes),
            format_bytes(one.stored_bytes),
            "" if one.ratio is None else f"{one.ratio:.2f}",
        )
        for name, one in sorted(weights.items(), key=lambda item: -item[1].plain_bytes)
    ]
    print_table((what, counted, "SIZE", "STORED", "RATIO"), rows, right=frozenset({1, 2, 3, 4}))


def _chain_lines(chains: Any) -> Iterator[str]:
    """How its chunks build on others, and what that costs to read."""
    yield ""
    yield (
        f"differences: {chains.deltas:,} of {chains.chunks:,} chunks, chains up to"
        f" {chains.depth_max:,} long, {chains.depth_mean:.2f} on average"
    )
    if chains.read_cost is not None:
        yield (
            f"to rebuild it: {format_bytes(chains.read_bytes)} are read, {chains.read_cost:.2f}"
            f" times what it would take alone (about {format_bytes(chains.alone_bytes)})"
        )


@click.command(short_help="Show the daemon's state and the newest snapshot's age.")
@json_option
@click.pass_obj
def status(session: Session, *, as_json: bool) -> None:
    """Show what the daemon is doing, and how old the newest snapshot is."""
    from ciuic.catalog import latest_snapshot
    from ciuic.clock import SystemClock, local_time_text
    from ciuic.control import request_status
    from ciuic.verbs.scrub import health

    path = session.store_path()
    with session.opened() as store:
        newest = latest_snapshot(store)
        checks = health(store)
    daemon = request_status(path)
    if as_json:
        print_json(
            {
                "store": path,
                "daemon": daemon,
                "newest": None if newest is None else newest.as_json(),
                "checks": checks.as_json(),
            }
        )
        return
    lines = [("store", path)]
    if newest is None:
        lines.append(("newest", "no snapshot yet"))
    else:
        age_s = max(0.0, (SystemClock().now_ns() - newest.taken_ns) / 1e9)
        when = local_time_text(newest.taken_ns)
        lines.append(("newest", f"{newest.id} of {when}, {format_duration(age_s)} ago"))
    lines += _check_lines(checks)
    lines += [("daemon", "not running on this store")] if daemon is None else _daemon_lines(daemon)
    for key, value in lines:
        click.echo(f"{key + ':':8} {printable(value)}")


def _check_lines(checks: Any) -> Iterator[tuple[str, str]]:
    """What is remembered of the packs' checks, in one or two lines."""
    from ciuic.clock import SystemClock

    if not checks.packs:
        return
    if checks.oldest_ns is None:
        unread = f"{checks.unchecked:,} of {checks.packs:,} packs"
        yield "checked", f"{unread} were not read since they were written: 'ciuic scrub' does it"
    else:
        age_s = max(0.0, (SystemClock().now_ns() - checks.oldest_ns) / 1e9)
        yield "checked", f"every pack was read within the last {format_duration(age_s)}"
    if checks.damaged:
        packs = len(checks.damaged)
        yield (
            "damaged",
            f"{packs:,} pack{'' if packs == 1 else 's'}, {checks.lost_chunks:,} chunks lost:"
            " see 'ciuic repair'",
        )


def _daemon_lines(daemon: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the daemon says, which may be of another version: any field may be missing."""
    yield "daemon", f"{daemon.get('state')}, process {daemon.get('pid')}, {daemon.get('config')}"
    roots = ", ".join(map(str, daemon.get("snapshot_paths") or ()))
    interval_s = daemon.get("snapshot_interval_s")
    if isinstance(interval_s, (int, float)):
        yield "takes", f"{roots} every {format_duration(interval_s)}"
    if isinstance(daemon.get("next"), str):
        yield "next", _local(daemon["next"])
    progress = daemon.get("progress")
    if isinstance(progress, dict):
        done = f", {progress['path']}" if "path" in progress else ""
        yield "now", f"{progress.get('state')}{done}"
    awaited = daemon.get("follow_up")
    if isinstance(awaited, dict):
        yield (
            "awaits",
            f"{awaited.get('open')} of {awaited.get('files')} files in flux in"
            f" {awaited.get('after')} to be closed, for a follow-up snapshot, until"
            f" {_local(str(awaited.get('until')))}",
        )
    upkeep = daemon.get("upkeep")
    if isinstance(upkeep, dict):
        yield from _upkeep_lines(upkeep)
    error = daemon.get("last_error")
    if isinstance(error, dict):
        yield "failed", f"{error.get('message')} ({_local(str(error.get('time')))})"


def _upkeep_lines(upkeep: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the daemon does between two snapshots, and how it went last."""
    if upkeep.get("doing"):
        yield "now", f"{upkeep['doing']}, until there is something better to do"
    for what in ("forget", "prune", "scrub"):
        last = upkeep.get(what)
        if not isinstance(last, dict):
            continue
        when = f" ({_local(str(last.get('time')))})"
        if "error" in last:
            yield what, f"failed: {last['error']}{when}"
        elif what == "forget":
            yield (
                what,
                f"{len(last.get('forgotten') or ())} forgotten, {last.get('kept')} kept{when}",
            )
        elif what == "prune":
            yield what, f"{format_bytes(int(last.get('freed_bytes') or 0))} freed{when}"
        else:
            spent = format_duration(float(upkeep.get("scrubbed_today_s") or 0))
            found = "no damage" if last.get("ok") else "there is damage"
            yield what, f"{found}, {spent} today{when}"


def _local(moment: str) -> str:
    """A moment from a JSON document, as people read it here."""
    from ciuic.clock import from_local_text, local_time_text

    moment_ns = from_local_text(moment)
    return moment if moment_ns is None else local_time_text(moment_ns)


@click.command(short_help="Print what makes a shell complete commands and IDs.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options and snapshot IDs.

    For bash: eval "$(ciuic completion bash)" in ~/.bashrc.
    """
    from click.shell_completion import get_completion_class

    from ciuic.cli import cli

    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"no completion for {shell}")
    click.echo(found(cli, {}, "ciuic", "_CIUIC_COMPLETE").source())
