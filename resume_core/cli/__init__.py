"""The command ``exact-resume``.

What a command needs beyond the terminal is imported inside it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from resume_core.cli.ls.command import ls
from resume_core.cli.options import StorageOptions, parse_storage_options
from resume_core.cli.plan.command import plan
from resume_core.cli.verify.command import verify

__all__ = ["DemoFramework", "ExportFormat", "Plugin", "app", "demo", "export", "ls", "main", "plan", "verify"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class DemoFramework(str, enum.Enum):
    """What the demo trains with."""

    lightning = "lightning"
    accelerate = "accelerate"
    trainer = "trainer"


class Plugin(str, enum.Enum):
    """Whether the demo trains with the plugin."""

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


def _check_demo(needs: Mapping[str, str], epochs: int, kills: int) -> None:
    if kills > epochs:
        raise typer.BadParameter(f"each kill takes an epoch of its own: {kills} do not fit into {epochs}")
    missing = [package for module, package in needs.items() if importlib.util.find_spec(module) is None]
    if missing or os.name != "posix":
        reason = f'the demo needs {", ".join(missing)}: pip install "exact-resume[demo]"'
        typer.echo(reason if missing else "the demo kills with SIGKILL, which only POSIX systems have", err=True)
        raise typer.Exit(2)


@app.command()
def demo(
    framework: Annotated[DemoFramework, typer.Option(help="What trains.")] = DemoFramework.lightning,
    plugin: Annotated[Plugin, typer.Option(help="off: the framework alone, killed at the same places.")] = Plugin.on,
    out: Annotated[Path, typer.Option(help="Folder for demo.png, demo.json, logs and checkpoints.")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(min=0, max=10**9, help="Global seed of the run.")] = 7,
    epochs: Annotated[int, typer.Option(min=1, max=50, help="Epochs to train.")] = 5,
    kills: Annotated[int, typer.Option(min=1, max=10, help="How often to kill, each time in another epoch.")] = 2,
) -> None:
    """Train a small model on real data twice: once in peace, once killed with SIGKILL again and again. Compare.

    Exit code 0: the two ended in the same bits. 1: something differs. 2: the demo itself failed.
    """
    from resume_core.cli.demo.frameworks import FRAMEWORKS

    chosen = FRAMEWORKS[framework.value]
    _check_demo(chosen.needs, epochs, kills)
    from resume_core.cli.demo import Settings, run_demo

    settings = Settings(plugin is Plugin.on, out, seed, epochs, kills, chosen)
    raise typer.Exit(run_demo(settings, Console(highlight=False)))


class ExportFormat(str, enum.Enum):
    """What an export is written as."""

    lightning = "lightning"
    accelerate = "accelerate"
    trainer = "trainer"
    safetensors = "safetensors"


@app.command()
def export(
    url: Annotated[str, typer.Argument(help="A run's directory, an attempt in it, or one checkpoint; local or a URL.")],
    out: Annotated[Path, typer.Argument(help="The file (lightning, safetensors) or folder to write.")],
    format: Annotated[ExportFormat, typer.Option(help="The run's own framework, or safetensors: the weights alone.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    scratch: Annotated[str | None, typer.Option(help="The run's scratch, where copies may lie.")] = None,
    storage_options: StorageOptions = "{}",
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="A module that calls register_leaf; may be given again.")
    ] = None,
) -> None:
    """Write a checkpoint as its framework would have: for load_from_checkpoint, load_state, resume_from_checkpoint.

    Of a run, or of an attempt, it is the newest. Exit code 0: written. 1: it could not be, and nothing was left.
    """
    options = parse_storage_options(storage_options)
    from resume_core.cli.export import Request
    from resume_core.cli.export import export as write
    from resume_core.errors import ResumeError

    try:
        _import_all(imports or ())
        done = write(Request(url, out, format.value, force, scratch, options))
    except (ResumeError, OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = out  # a full disk does not say where
        typer.echo(f"nothing was exported: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{out}: {done.path} ({done.place}), for {format.value}")
    for note in done.notes:
        typer.echo(f"- {note}")


def _import_all(modules: list[str] | tuple[str, ...]) -> None:
    """Modules of the user's, found as ``python -m`` finds them."""
    if modules:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        importlib.import_module(module)


app.command()(ls)
app.command()(plan)
app.command()(verify)
