"""`trueup completion`: print the completion script of a shell."""

from __future__ import annotations

import click

from trueup.cli.complete import SHELLS, Shell


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: Shell) -> None:
    """Print the completion script for SHELL.

    It completes commands, options and their choices, the nodes and clusters of the configuration, tables that were
    compared before, and the ids of tasks. It connects to no server.

    \b
    Examples:
      eval "$(trueup completion bash)"
      trueup completion bash > ~/.local/share/bash-completion/completions/trueup
      trueup completion zsh > ~/.zfunc/_trueup
      trueup completion fish > ~/.config/fish/completions/trueup.fish

    The first example is for the current shell or for ~/.bashrc (with zsh: ~/.zshrc); the others are for new shells.
    Needs bash 4.4 or newer. For zsh, write `fpath+=~/.zfunc` before `autoload -Uz compinit && compinit`.
    """
    from trueup.cli.complete import script

    click.echo(script(ctx.find_root().command, shell))
