"""A plan as one page that needs nothing else: no network, no script, light and dark, on a phone too."""

from __future__ import annotations

import re

from markupsafe import Markup

from resume_core.cli.pages import environment, text_of
from resume_core.cli.plan.advice import Plan
from resume_core.cli.plan.picture import draw
from resume_core.cli.plan.tables import cost_table, input_table, size_table, space_table

__all__ = ["as_page"]


def as_page(plan: Plan) -> str:
    """The page; whatever a run or a user has named is escaped."""
    tables = [cost_table(plan), size_table(plan), space_table(plan), input_table(plan)]
    return (
        environment()
        .from_string(text_of(__package__, "page.html"))
        .render(
            plan=plan,
            verdict=_unbroken(plan.verdict),
            save_takes=_unbroken(plan.save_takes),
            picture=Markup(draw(plan)),
            tables=tables,
            described=f"Share of the time that is lost over the interval between saves. {plan.verdict}",
        )
    )


def _unbroken(text: str) -> str:
    """Numbers stay on the line of their units."""
    return re.sub(r"(?<=[0-9]) ", "\N{NO-BREAK SPACE}", text)
