"""The options of ``exact-resume drill``, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from resume_core.cli.exits import BAD, GOOD, NO_ANSWER, answering
from resume_core.cli.options import AsJson, StorageOptions, parse_storage_options

if TYPE_CHECKING:
    from resume_core.cli.drill.rehearsal import Rehearsed

__all__ = ["drill"]


def drill(
    url: Annotated[str, typer.Argument(help="The run's directory, as the script names it; local or a URL.")],
    command: Annotated[
        list[str],
        typer.Argument(help="The training command, behind --: -- python train.py", metavar="COMMAND..."),
    ],
    checkpoint: Annotated[str | None, typer.Option(help="Go on from this one, and not from the newest.")] = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Seconds until the command is killed.")] = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Rehearse a resume: start the training command on its newest checkpoint, and compare its first steps.

    The command restores, trains on for the steps of Check(steps=...), compares them with what the run recorded, and
    ends. Nothing is written to the run's directory, so it may go on beside the training itself, from cron or in CI.

    Exit code 0: what was found is what was recorded. 1: it differs, or the command fails. 2: it cannot be started.
    """
    options = parse_storage_options(storage_options)
    with answering("nothing was rehearsed"):
        from resume_core.cli.drill.rehearsal import rehearse

        done = rehearse(url, command, checkpoint=checkpoint, options=options, timeout_s=timeout, quiet=as_json)
    verdict = _verdict(done)
    if as_json:
        typer.echo(json.dumps({"url": url, "verdict": verdict, **asdict(done)}, indent=1))
    else:
        _print(done, verdict, Console(highlight=False))
    raise typer.Exit(GOOD if verdict in _GOOD else NO_ANSWER if verdict in (_NO_PLUGIN, _ELSEWHERE) else BAD)


_FAILED, _TIMED_OUT, _NO_PLUGIN, _ELSEWHERE = "failed", "took too long", "no resume", "elsewhere"
_GOOD = ("same", "not checked", "changed", "over")
_SENTENCES = {
    "same": "a restart would go on as the run did: {steps} steps after {checkpoint} are those that it recorded",
    "differs": "a restart would not go on as the run did: what follows {checkpoint} is not what it recorded",
    "changed": "what follows {checkpoint} is not what the run recorded, as it may be with {reason}",
    "not checked": "a restart would go on from {checkpoint}, where it stood; behind that the run had recorded nothing "
    "yet to be compared",
    _ELSEWHERE: "nothing was rehearsed: the command trains in {directory}, which is another directory",
    "over": "{checkpoint} is the end of the run: nothing is left to train",
    _FAILED: "a restart would fail: the command ended with code {code} before its steps were checked",
    _TIMED_OUT: "the command was killed after {seconds:.0f} s, before its steps were checked",
    _NO_PLUGIN: "the command ended by itself, and has not resumed: is a callback or plugin with that directory in it?",
}


def _verdict(done: Rehearsed) -> str:
    if done.result:
        return str(done.result["verdict"])
    if done.code is None:
        return _TIMED_OUT
    return _FAILED if done.code else _NO_PLUGIN


def _print(done: Rehearsed, verdict: str, console: Console) -> None:
    style = "green" if verdict in _GOOD else "bold red"
    facts = {"steps": 0, "checkpoint": "the checkpoint", "reason": "", "code": done.code, "seconds": done.seconds}
    console.print(_SENTENCES[verdict].format(**{**facts, **done.result}), style=style, markup=False)
    if done.first_step_s is not None:
        console.print(f"first step after {done.first_step_s:.1f} s, all of it {done.seconds:.1f} s", markup=False)
    for line in _details(done.result):
        console.print(line, markup=False)


def _details(result: Mapping[str, Any]) -> list[str]:
    from resume_core.evidence.compare import ADVICE, Row, table

    live, rows = result.get("live", {}), result.get("rows", [])
    found = [f"not as the checkpoint has it: {place}" for place in live.get("differs", ())]
    found += [table([Row(**row) for row in rows], several=any(row["rank"] for row in rows))] if rows else []
    return [*found, ADVICE] if found and result.get("verdict") == "differs" else found
