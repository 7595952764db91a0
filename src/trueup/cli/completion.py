"""`trueup completion`: the script that teaches a shell to complete our commands."""

from __future__ import annotations

import click

from trueup.cli.complete import SHELLS, Shell


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: Shell) -> None:
    """Print the script that completes trueup in SHELL.

    It completes commands, options and their choices, the nodes and clusters of the configuration, tables that were
    compared before, and the ids of tasks. No server is asked.

    \b
    Examples:
      eval "$(trueup completion bash)"
      trueup completion bash > ~/.local/share/bash-completion/completions/trueup
      trueup completion zsh > ~/.zfunc/_trueup
      trueup completion fish > ~/.config/fish/completions/trueup.fish

    The first is for this shell, or as a line of ~/.bashrc (of ~/.zshrc with zsh); the others are for every new shell.
    bash 4.4 or newer is needed. For zsh, `fpath+=~/.zfunc` must stand before `autoload -Uz compinit && compinit`.
    """
    from trueup.cli.complete import script

    click.echo(script(ctx.find_root().command, shell))
