"""``ciuic stats --detail``: tables of the packs and of the newest snapshot."""

from collections.abc import Iterator, Mapping

import click

from ciuic.cli.table import Column, cut_end, print_pair, print_table
from ciuic.report.amounts import Amount, Breakdown, ChainCost
from ciuic.units import counted, format_bytes

__all__ = ["print_weights"]


def print_weights(weights: Breakdown) -> None:
    """Print the tables by codec, file format and element type, and the cost of delta chains."""
    _print_table("CODEC", "FRAMES", weights.codecs)
    if weights.snapshot_id is None:
        return
    click.echo()
    print_pair("", f"{weights.snapshot_id}, the newest snapshot:", 0)
    _print_table("KIND", "FILES", weights.kinds)
    if weights.elements:
        _print_table("TYPE", "TENSORS", weights.elements)
    for line in _chain_lines(weights.chains):
        print_pair("", line, 0)


def _print_table(key: str, what: str, weights: Mapping[str, Amount]) -> None:
    click.echo()
    rows = [
        (
            name,
            f"{weight.count:,}",
            format_bytes(weight.plain_bytes),
            format_bytes(weight.stored_bytes),
            "" if weight.ratio is None else f"{weight.ratio:.2f}",
        )
        for name, weight in sorted(weights.items(), key=lambda item: -item[1].plain_bytes)
    ]
    columns = (
        Column(key, cut=cut_end),
        Column(what, right=True, drop=2),
        Column("SIZE", right=True),
        Column("STORED", right=True),
        Column("RATIO", right=True, drop=1),
    )
    print_table(columns, rows)


def _chain_lines(chains: ChainCost) -> Iterator[str]:
    """Yield how the snapshot's chunks depend on delta bases, and what that costs to read."""
    yield ""
    yield (
        f"deltas: {chains.deltas:,} of {counted(chains.chunks, 'chunk')}, delta chains up to"
        f" {chains.depth_max:,} long, {chains.depth_mean:.2f} on average"
    )
    if chains.read_cost is not None:
        yield (
            f"to restore: {format_bytes(chains.read_bytes)} must be read, {chains.read_cost:.2f}"
            f" times the size without deltas (about {format_bytes(chains.alone_bytes)})"
        )
