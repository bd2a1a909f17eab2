"""The command ``exact-resume``.

What a command needs beyond the terminal is imported inside it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from resume_core.cli.diff.command import diff
from resume_core.cli.drill.command import drill
from resume_core.cli.exits import EXIT_CODES, NO_ANSWER, answering
from resume_core.cli.ls.command import ls
from resume_core.cli.options import AsJson, Scratch, StorageOptions, parse_storage_options
from resume_core.cli.plan.command import plan
from resume_core.cli.progress import busy
from resume_core.cli.prune.command import prune
from resume_core.cli.report.command import report
from resume_core.cli.show.command import show
from resume_core.cli.verify.command import verify

__all__ = [
    "DemoFramework",
    "ExportFormat",
    "Plugin",
    "app",
    "demo",
    "diff",
    "drill",
    "export",
    "ls",
    "main",
    "plan",
    "prune",
    "report",
    "show",
    "verify",
]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, epilog=EXIT_CODES)


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
        raise typer.Exit(NO_ANSWER)


@app.command()
def demo(
    framework: Annotated[DemoFramework, typer.Option(help="What trains.")] = DemoFramework.lightning,
    plugin: Annotated[Plugin, typer.Option(help="off: the framework alone, killed at the same places.")] = Plugin.on,
    out: Annotated[Path, typer.Option(help="Folder for demo.png, demo.json, logs and checkpoints.")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(min=0, max=10**9, help="Global seed of the run.")] = 7,
    epochs: Annotated[int, typer.Option(min=1, max=50, help="Epochs to train.")] = 5,
    kills: Annotated[int, typer.Option(min=1, max=10, help="How often to kill, each time in another epoch.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Train a small model on real data twice: once in peace, once killed with SIGKILL again and again. Compare.

    Exit code 0: the two ended in the same bits. 1: something differs. 2: the demo itself failed.
    """
    from resume_core.cli.demo.frameworks import FRAMEWORKS

    chosen = FRAMEWORKS[framework.value]
    _check_demo(chosen.needs, epochs, kills)
    from resume_core.cli.demo import Settings, run_demo

    settings = Settings(plugin is Plugin.on, out, seed, epochs, kills, chosen)
    code = run_demo(settings, Console(highlight=False, stderr=as_json))
    if as_json and code != NO_ANSWER:
        typer.echo((out / "demo.json").read_text(encoding="utf-8"))
    raise typer.Exit(code)


class ExportFormat(str, enum.Enum):
    """What an export is written as."""

    lightning = "lightning"
    accelerate = "accelerate"
    trainer = "trainer"
    safetensors = "safetensors"


@app.command()
def export(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="URL [NAME] OUT",
            help="A run's directory, an attempt in it, or one checkpoint; the name of a checkpoint in it (120, "
            "attempt-0002/120, latest, best); the file (lightning, safetensors) or folder to write.",
        ),
    ],
    format: Annotated[ExportFormat, typer.Option(help="The run's own framework, or safetensors: the weights alone.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    scratch: Scratch = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="A module that calls register_leaf; may be given again.")
    ] = None,
) -> None:
    """Write a checkpoint as its framework would have: for load_from_checkpoint, load_state, resume_from_checkpoint.

    Of a run, or of an attempt, it is the newest.

    Exit code 0: written. 1: the checkpoint is damaged. 2: there is none, or it cannot be written; nothing was left.
    """
    if not 2 <= len(places) <= 3:
        raise typer.BadParameter(f"it takes URL, NAME if you like, and OUT, got {len(places)} arguments")
    url, name, out = places[0], places[1] if len(places) == 3 else None, Path(places[-1])
    options = parse_storage_options(storage_options)
    with answering("nothing was exported"), busy("exporting"):
        from resume_core.cli.export import Request
        from resume_core.cli.export import export as write

        _import_all(imports or ())
        try:
            done = write(Request(url, out, format.value, force, scratch, options, name))
        except OSError as error:
            if error.errno is not None and error.filename is None:
                error.filename = out  # a full disk does not say where
            raise
    if as_json:
        typer.echo(json.dumps({"out": str(out), "format": format.value, **asdict(done)}, indent=1))
        return
    typer.echo(f"{out}: {done.path} ({done.place}), for {format.value}")
    for note in done.notes:
        typer.echo(f"- {note}")


def _import_all(modules: list[str] | tuple[str, ...]) -> None:
    """Modules of the user's, found as ``python -m`` finds them."""
    if modules:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        importlib.import_module(module)


app.command()(diff)
app.command(context_settings={"ignore_unknown_options": True})(drill)
app.command()(ls)
app.command()(plan)
app.command()(prune)
app.command()(report)
app.command()(show)
app.command()(verify)
