"""A report to take away, as a button: built on the click, so that a page costs nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from lab.errors import LabError
from lab.run.sides import Name
from lab.show.report import Report, report
from lab.show.report_html import to_html
from lab.show.report_markdown import to_markdown
from lab.show.ui import pricing

FORMS: tuple[tuple[str, Callable[[Report], str], str, str], ...] = (
    ("Report, one HTML file", to_html, "html", "text/html"),
    ("The same in Markdown", to_markdown, "md", "text/markdown"),
)


def downloads(names: Sequence[Name]) -> None:
    """Both forms of the report on these runs, at the price that the session chose, if it chose one."""
    price = pricing.chosen()  # here: where the file is built there is no session

    def written(form: Callable[[Report], str]) -> str:
        try:
            return form(report(names, price=price))
        except LabError as error:
            return f"No report: {error}\n"

    with st.container(horizontal=True):
        for label, form, ending, mime in FORMS:
            st.download_button(
                label,
                data=partial(written, form),
                file_name=f"report-{names[0].run_id}.{ending}",
                mime=mime,
                key=f"report_{ending}",
                icon=":material/description:",
                on_click="ignore",
                help="Claim, verdict, validity, charts with their data, cost, and what a reviewer would ask",
            )
