"""The options of ``exact-resume plan``. What reads, computes and draws is imported when it runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from resume_core.cli.exits import NO_ANSWER, answering, check_folder
from resume_core.cli.options import StorageOptions, parse_storage_options
from resume_core.cli.plan.sizes import OptimizerName, PrecisionName
from resume_core.cli.plan.units import (
    parse_bandwidth,
    parse_count,
    parse_hours,
    parse_price,
    parse_seconds,
    parse_share,
)
from resume_core.cli.progress import busy

if TYPE_CHECKING:
    from resume_core.cli.plan.advice import Plan
    from resume_core.cli.plan.inputs import Given

__all__ = ["plan"]

_T = TypeVar("_T")
_SIZE, _TIME, _COST, _ROOM = "Size", "Time", "Cost", "Room"


def _typed(parse: Callable[[str], _T], metavar: str, *names: str, help: str, panel: str) -> Any:
    """An option whose text ``parse`` understands, or says why not."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return typer.Option(*names, parser=convert, metavar=metavar, help=help, rich_help_panel=panel, show_default=False)


def plan(
    url: Annotated[
        str | None,
        typer.Argument(help="A run's directory, local or a URL: what it has measured is taken.", show_default=False),
    ] = None,
    parameters: Annotated[
        int | None, _typed(parse_count, "7B", "--parameters", help="Of the model: 7B, 350M, 1.3e9.", panel=_SIZE)
    ] = None,
    trained: Annotated[
        int | None,
        _typed(parse_count, "40M", "--trained", help="Of these trained, as with LoRA. Default: all.", panel=_SIZE),
    ] = None,
    optimizer: Annotated[
        OptimizerName | None, typer.Option(help="Default: adamw.", rich_help_panel=_SIZE, show_default=False)
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(
            help="Of the weights. mixed: half precision beside an fp32 copy. autocast: fp32, as under Lightning's "
            "16-mixed and bf16-mixed. bf16: nothing else. Default: fp32.",
            rich_help_panel=_SIZE,
            show_default=False,
        ),
    ] = None,
    copy_bandwidth: Annotated[
        float | None,
        _typed(
            parse_bandwidth,
            "20GB/s",
            "--copy-bandwidth",
            help="From one GPU to its host's memory. Default: 20GB/s.",
            panel=_TIME,
        ),
    ] = None,
    bandwidth: Annotated[
        float | None,
        _typed(
            parse_bandwidth,
            "2GB/s",
            "--bandwidth",
            help="From one machine to the directory. Default: 1GB/s.",
            panel=_TIME,
        ),
    ] = None,
    mtbf: Annotated[
        float | None,
        _typed(
            parse_hours,
            "24h",
            "--mtbf",
            "--mtbf-hours",
            help="Between interruptions of the job. Default: 24h.",
            panel=_TIME,
        ),
    ] = None,
    machine_mtbf: Annotated[
        float | None,
        _typed(
            parse_hours, "30d", "--machine-mtbf", help="Of one machine; each stops the job. Default: 24h.", panel=_TIME
        ),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="That the job needs. Default: one for 8 GPUs.", rich_help_panel=_TIME),
    ] = None,
    restart: Annotated[
        float | None,
        _typed(
            parse_seconds,
            "5m",
            "--restart",
            help="From an interruption until it trains again. Default: 5m.",
            panel=_TIME,
        ),
    ] = None,
    max_overhead: Annotated[
        float | None,
        _typed(
            parse_share,
            "1%",
            "--max-overhead",
            help="Share of the time that saving may take. Default: 1%.",
            panel=_TIME,
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of the job. Default: 1.", rich_help_panel=_COST)
    ] = None,
    price: Annotated[
        float | None, _typed(parse_price, "2.5", "--price", help="Of a GPU and hour.", panel=_COST)
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep(last=). Default: 3.", rich_help_panel=_ROOM)
    ] = None,
    milestones_per_day: Annotated[
        float | None,
        _typed(parse_price, "4", "--milestones-per-day", help="Keep(every_steps=), by the day.", panel=_ROOM),
    ] = None,
    thin_after: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep(thin_after=).", rich_help_panel=_ROOM)
    ] = None,
    run_time: Annotated[
        float | None,
        _typed(parse_seconds, "7d", "--run-time", help="Of the whole run, for its milestones.", panel=_ROOM),
    ] = None,
    storage_price: Annotated[
        float | None, _typed(parse_price, "0.02", "--storage-price", help="Of a GB and month.", panel=_ROOM)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the plot to this file.", metavar="FILE", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Say how large checkpoints are, how often to save, and what that and interruptions cost.

    What is not given is read from the run, or assumed; each line says which. Nothing is written to the directory.

    Exit code 0: done. 1: the run is damaged. 2: there is none, the page cannot be written, the options make no sense.
    """
    options = parse_storage_options(storage_options)
    _check_page(html)
    from resume_core.cli.plan.inputs import Given

    given = Given(
        parameters=parameters,
        trained=trained,
        optimizer=optimizer,
        precision=precision,
        copy_bytes_per_s=copy_bandwidth,
        write_bytes_per_s=bandwidth,
        mtbf_s=mtbf,
        machine_mtbf_s=machine_mtbf,
        machines=machines,
        gpus=gpus,
        restart_s=restart,
        max_overhead=max_overhead,
        price=price,
        keep_last=keep_last,
        milestones_per_day=milestones_per_day,
        thin_after=thin_after,
        run_s=run_time,
        storage_price=storage_price,
    )
    _show(_make(given, url, options), html, as_json=json)


def _check_page(html: Path | None) -> None:
    needs = ("matplotlib", "jinja2")
    missing = [name for name in needs if html is not None and importlib.util.find_spec(name) is None]
    if missing:
        typer.echo(f'the page needs {", ".join(missing)}: pip install "exact-resume[plan]"', err=True)
        raise typer.Exit(NO_ANSWER)
    if html is not None:
        with answering("the page was not written"):
            check_folder(html)


def _make(given: Given, url: str | None, options: dict[str, Any]) -> Plan:
    from resume_core.cli.plan.advice import make_plan
    from resume_core.cli.plan.inputs import check, resolve
    from resume_core.cli.plan.known import look

    with answering("no plan"), busy("reading"):
        check(given, has_run=url is not None)
        return make_plan(resolve(given, None if url is None else look(url, options)))


def _show(made: Plan, html: Path | None, *, as_json: bool) -> None:
    if html is not None:
        with answering("the page was not written"):
            from resume_core.cli.plan.page import as_page

            html.write_text(as_page(made), encoding="utf-8")
    if as_json:
        from resume_core.cli.plan import document

        typer.echo(document.as_json(made))
    else:
        from rich.console import Console

        from resume_core.cli.plan.terminal import print_plan

        print_plan(made, Console(highlight=False))
    if html is not None:
        typer.echo(f"the page is {html}", err=as_json)
