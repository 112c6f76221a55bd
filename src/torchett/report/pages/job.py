"""One job as a page in one file, with nothing from elsewhere: the Job page of `ett serve`."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.report.pages.job_view import job_view
from torchett.report.pages.render import environment, style
from torchett.report.sections.next_steps import NextStep


def job_page(
    ledger: Ledger,
    history: History,
    *,
    compiles: Mapping[str, Any] | None = None,
    evidence: Mapping[int, str] | None = None,
    advice: Sequence[NextStep] = (),
) -> str:
    """The whole page."""
    view = job_view(
        ledger, history, compiles=compiles, evidence=evidence, advice=advice, with_ranks=True
    )
    return environment().get_template("single.html").render(view=view, style=Markup(style()))
