"""A report as one page: what it tells is in it, and the library that draws it; it asks no network for anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from markupsafe import Markup
from rich.filesize import decimal

from resume_core.cli.pages import environment, text_of
from resume_core.cli.report.charts import charts
from resume_core.cli.report.charts.parts import ended, shown_time
from resume_core.cli.report.curve import LOSS
from resume_core.cli.report.facts import AttemptTold, Report
from resume_core.cli.words import counted, first_sentence, seconds

__all__ = ["GENERATOR", "as_page"]

GENERATOR = "exact-resume report"
"""What the page says that it was made by, so that it may be replaced by a newer one."""

_MOST_SAVES = 60  # rows of the table, the newest
_VERDICTS = {"same": "good", "differs": "bad", "changed": "odd", "not checked": "odd"}


def as_page(report: Report) -> str:
    """The page; whatever a run or a user has named is escaped, also where a script reads it."""
    page = environment()
    page.filters |= {"seconds": _seconds, "size": _size, "value": _value, "time": shown_time, "ended": ended}
    page.filters |= {"origin": _origin, "counted": counted, "first_sentence": first_sentence}
    return page.from_string(text_of(__package__, "page.html")).render(
        report=report,
        generator=GENERATOR,
        headline=headline(report),
        shares=_shares(report),
        charts=charts(report),
        metrics=_metrics(report),
        verdicts=_VERDICTS,
        saves=report.saves[-_MOST_SAVES:][::-1],
        num_older=max(len(report.saves) - _MOST_SAVES, 0),
        num_lost=sum(one.lost_batches or 0 for one in report.attempts),
        medians={name: _median(report, name) for name in ("blocked_s", "durable_s")},
        script=Markup(text_of(__package__, "page.js")),
        library=_library(),
    )


def headline(report: Report) -> str:
    """The run in a sentence."""
    newest = report.attempts[-1]
    step = max((one.reached_step for one in report.attempts if one.reached_step is not None), default=None)
    parts = [counted(len(report.attempts), "attempt"), counted(report.interruptions, "interruption")]
    parts.append("" if step is None else f"step {step:,}")
    parts.append(newest.cause or "not ended")
    parts.append(f"loss {newest.diverged.value} from step {newest.diverged.step:,} on" if newest.diverged else "")
    return ", ".join(part for part in parts if part)


def _shares(report: Report) -> list[tuple[str, str, float, float]]:
    """Name, class, seconds and share of the wall time of all that it went into."""
    known = [
        ("trained and kept", "kept", report.kept_s),
        ("trained again later", "lost", report.lost_s),
        ("waiting for saves", "blocked", report.blocked_s),
        ("starting", "starting", report.starting_s),
        ("between attempts", "away", report.away_s),
    ]
    rest = max(report.wall_s - sum(each[2] for each in known), 0.0)
    total = max(report.wall_s, sum(each[2] for each in known), 1e-9)
    return [(*each, each[2] / total) for each in (*known, ("not accounted for", "rest", rest)) if each[2] > 0]


def _metrics(report: Report) -> list[str]:
    """Those that can be shown, what is best shown first."""
    names = sorted({point.name for point in report.points} | {gap.name for gap in report.gaps})
    return sorted(names, key=lambda name: (name != LOSS, not name.endswith(LOSS), LOSS not in name))


def _origin(one: AttemptTold) -> str:
    if one.resumed_from is None:
        return "began anew"
    return f"step {one.resumed_step:,} of {one.resumed_from.partition('/')[0]}"


def _median(report: Report, name: str) -> float | None:
    found = sorted(value for save in report.saves if (value := getattr(save, name)) is not None)
    return found[len(found) // 2] if found else None


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _size(value: int | None) -> str:
    return "" if value is None else decimal(value)


def _value(difference: Mapping[str, Any], side: str) -> str:
    return json.dumps(difference[side], ensure_ascii=False) if side in difference else "(absent)"


@cache
def _library() -> Markup:
    """Vega, Vega-Lite and what embeds them, so that nothing in them ends the element that they stand in."""
    import vl_convert

    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return Markup(library.replace("</script", "<\\/script").replace("<!--", "<\\!--"))
