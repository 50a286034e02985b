"""``ciuic completion``."""

import click

from ciuic.cli.shells import SCRIPTS

__all__ = ["command"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, IDs, tags and stored paths.

    For bash: eval "$(ciuic completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc, after
    compinit; for fish: ciuic completion fish | source.
    """
    click.echo(SCRIPTS[shell], nl=False)
