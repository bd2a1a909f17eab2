"""The command ``exact-resume``.

What a command needs beyond the terminal is imported inside it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import enum
import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["Plugin", "app", "demo", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_DEMO_NEEDS = {"lightning": "lightning", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}


class Plugin(str, enum.Enum):
    """Whether the demo trains with ``ResumeCallback``."""

    on = "on"
    off = "off"


def _print_version(wanted: bool) -> None:
    if wanted:
        from resume_core import __version__

        typer.echo(f"exact-resume {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Training runs that continue after a kill as if they had never been killed, to the last bit."""


def _check_demo(epochs: int, kills: int) -> None:
    if kills > epochs:
        raise typer.BadParameter(f"each kill takes an epoch of its own: {kills} do not fit into {epochs}")
    missing = [package for module, package in _DEMO_NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing or os.name != "posix":
        reason = f'the demo needs {", ".join(missing)}: pip install "exact-resume[demo]"'
        typer.echo(reason if missing else "the demo kills with SIGKILL, which only POSIX systems have", err=True)
        raise typer.Exit(2)


@app.command()
def demo(
    plugin: Annotated[Plugin, typer.Option(help="off: stock Lightning, killed at the same places.")] = Plugin.on,
    out: Annotated[Path, typer.Option(help="Folder for demo.png, demo.json, logs and checkpoints.")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(min=0, max=10**9, help="Global seed of the run.")] = 7,
    epochs: Annotated[int, typer.Option(min=1, max=50, help="Epochs to train.")] = 5,
    kills: Annotated[int, typer.Option(min=1, max=10, help="How often to kill, each time in another epoch.")] = 2,
) -> None:
    """Train a small CNN on real data twice: once in peace, once killed with SIGKILL again and again. Compare.

    Exit code 0: the two ended in the same bits. 1: something differs. 2: the demo itself failed.
    """
    _check_demo(epochs, kills)
    from resume_core.cli.demo import Settings, run_demo

    settings = Settings(plugin=plugin is Plugin.on, out=out, seed=seed, epochs=epochs, kills=kills)
    raise typer.Exit(run_demo(settings, Console(highlight=False)))
