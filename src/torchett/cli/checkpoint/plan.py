"""`ett checkpoint plan`: how often to save, from numbers or from a recorded run."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.ledger.metrics.saves import SaveCosts
    from torchett.levers.checkpoint.interval.interval import Costs
    from torchett.levers.checkpoint.interval.report import IntervalPlan

_PRIOR_MTBF_S = 8 * 3600.0
_DURATION = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ms|s|min|m|h|d)?", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


@click.command()
@click.option(
    "--blocking", metavar="TIME", help="Time for which a save blocks training: 15, 200ms."
)
@click.option("--failures-per-day", metavar="NUMBER", help="How often the job fails.")
@click.option(
    "--mtbf", metavar="TIME", help="Mean time between failures: 8h. Use it or --failures-per-day."
)
@click.option("--upload", metavar="TIME", help="Time from there until the save is durable.")
@click.option("--recover", metavar="TIME", help="Time from a failure until training continues.")
@click.option(
    "--memory-blocking", metavar="TIME", help="Time for which a snapshot in memory blocks training."
)
@click.option(
    "--memory-share",
    metavar="PERCENT",
    help="Percentage of failures after which memory can be used (default: 75).",
)
@click.option("--run", metavar="RUN", help="Take values that are not given from this recorded run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the plot to this file.")
@speaks_plainly
def plan(
    blocking: str | None,
    failures_per_day: str | None,
    mtbf: str | None,
    upload: str | None,
    recover: str | None,
    memory_blocking: str | None,
    memory_share: str | None,
    run: str | None,
    as_json: bool,
    svg: Path | None,
) -> None:
    """Say how often to save, and what that wastes.

    Example: ett checkpoint plan --blocking 15 --failures-per-day 3
    """
    from torchett.levers.checkpoint.interval.interval import DAY_S
    from torchett.levers.checkpoint.interval.report import plan as planned
    from torchett.levers.checkpoint.interval.two_tiers import two_tiers

    if failures_per_day is not None and mtbf is not None:
        raise InputError("expected --failures-per-day or --mtbf, found both")
    given = {
        "blocking_s": _duration("--blocking", blocking, above=0),
        "mtbf_s": _duration("--mtbf", mtbf, above=0),
        "upload_s": _duration("--upload", upload),
        "recover_s": _duration("--recover", recover),
    }
    if failures_per_day is not None:
        given["mtbf_s"] = DAY_S / _number("--failures-per-day", failures_per_day, above=0)
    job, saves = (None, None) if run is None else _measured(run)
    costs = _costs(given, job, saves)
    memory_s = _duration("--memory-blocking", memory_blocking, above=0)
    share = _share(memory_share, memory_s)
    tiers = None if memory_s is None else two_tiers(costs, memory_s, share)
    made = planned(costs if tiers is None else tiers.storage_costs)
    if svg is not None:
        from torchett.levers.checkpoint.interval.waste_plot import svg as drawn
        from torchett.runs.output_files import write_text_file

        mark_s = None if saves is None else saves.interval_s
        title = "What an interval between checkpoints wastes" + (f": {job}" if job else "")
        write_text_file(svg, [drawn(made, title, mark_s=mark_s)])
    if as_json:
        shown = made.to_json() | ({} if tiers is None else {"tiers": tiers.to_json()})
        print_json(shown | ({} if saves is None else {"run": _run_json(made, job, saves)}))
    else:
        if tiers is not None:
            click.echo(tiers.said())
        print_rich(_page(made, job, saves, own_rate=given["mtbf_s"] is None))


def _share(text: str | None, memory_s: float | None) -> float:
    """The share of failures that memory survives, between 0 and 1."""
    from torchett.levers.checkpoint.interval.two_tiers import SURVIVED

    if text is None:
        return SURVIVED
    percent = _number("--memory-share", text.removesuffix("%"), above=0)
    if percent >= 100 or memory_s is None:
        found = "no --memory-blocking" if memory_s is None else f"'{text}'"
        raise InputError(
            f"--memory-share: expected less than 100 and --memory-blocking, found {found}"
        )
    return percent / 100


def _number(option: str, text: str, *, above: float | None = None) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (above is not None and value <= above):
        wanted = "above 0" if above is not None else "from 0 on"
        raise InputError(f"{option}: expected a number {wanted}, found '{text}'")
    return value


def _duration(option: str, text: str | None, *, above: float | None = None) -> float | None:
    """Seconds; a number may carry ms, s, min, h or d."""
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{option}: expected a time such as 15, 200ms or 8h, found '{text}'")
    seconds = _number(option, found[1]) * _UNITS[(found[2] or "").lower()]
    if (above is not None and seconds <= above) or not math.isfinite(seconds):
        raise InputError(f"{option}: expected a time above 0, found '{text}'")
    return seconds


def _measured(run: str) -> "tuple[str, SaveCosts]":
    from torchett.ledger.metrics.saves import measure_saves
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    reader = RunReader(find_run(run)).poll()
    ledger = reader.ledger()
    return ledger.job, measure_saves(reader.history(), ledger)


def _costs(given: dict[str, float | None], job: str | None, saves: "SaveCosts | None") -> "Costs":
    """What was given, else what the run shows."""
    from torchett.levers.checkpoint.interval.interval import Costs

    found: dict[str, float | None] = {}
    if saves is not None:
        found = {
            "blocking_s": saves.blocking_s,
            "mtbf_s": _mtbf_s(saves),
            "upload_s": saves.upload_s,
            "recover_s": saves.recover_s,
        }
    costs = {key: found.get(key) if value is None else value for key, value in given.items()}
    for key, option in (
        ("blocking_s", "--blocking TIME"),
        ("mtbf_s", "--failures-per-day NUMBER or --mtbf TIME"),
    ):
        if not costs[key]:
            where = "" if saves is None else f"{job}: {_unblocking(saves)}; "
            raise InputError(f"{where}expected {option}" + ("" if job else " or --run RUN"))
    return Costs(**{key: value or 0.0 for key, value in costs.items()})


def _unblocking(saves: "SaveCosts") -> str:
    from torchett.report.words import plural

    if not saves.saves:
        return "no save is recorded"
    return f"{plural(saves.saves, 'save')}, and how long one blocks the loop is not recorded"


def _mtbf_s(saves: "SaveCosts") -> float:
    """What the run shows; without a failure, a prior of 8 h and the time that went well."""
    from torchett.levers.checkpoint.interval.failure_rate import FailureRate

    if saves.failures and saves.exposure_s:
        return saves.exposure_s / saves.failures
    return FailureRate(prior_mtbf_s=_PRIOR_MTBF_S).after(saves.exposure_s).mtbf_s


def _run_json(made: "IntervalPlan", job: str | None, saves: "SaveCosts") -> dict[str, Any]:
    own = None if not saves.interval_s else made.at(saves.interval_s).waste.total
    return {
        "job": job,
        "saves": saves.saves,
        "blocking_saves": saves.blocking_saves,
        "interval_s": saves.interval_s,
        "blocking_s": saves.blocking_s,
        "upload_s": saves.upload_s,
        "recover_s": saves.recover_s,
        "failures": saves.failures,
        "exposure_s": saves.exposure_s,
        "waste_percent": None if own is None else 100 * own,
        "over_optimum_percent": None if own is None else 100 * (own - made.waste.total),
        "checkpoint_blocked_percent": 100 * saves.blocked_share,
        "unsaved_percent": 100 * saves.unsaved_share,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%" if share < 0.995 else f"{100 * share:.1f}%"


def _exact(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.3g} s"


def _page(
    made: "IntervalPlan", job: str | None, saves: "SaveCosts | None", own_rate: bool
) -> "RenderableType":
    """The answer, the plot, and what the run's own interval cost."""
    from rich.console import Group
    from rich.text import Text

    from torchett.levers.checkpoint.interval.waste_plot import terminal
    from torchett.model.durations import duration_of_s

    costs, parts = made.costs, made.waste
    head = Text()
    head.append(f"Save every {_exact(made.interval_s)} of training", style="bold")
    if made.interval_s >= 600:
        head.append(f" ({duration_of_s(made.interval_s)})", style="bold")
    head.append(f": {_percent(parts.total)} of the time is wasted\n")
    said = [
        f"{_percent(parts.checkpointing)} checkpointing, {duration_of_s(costs.blocking_s)} a save",
        f"{_percent(parts.lost)} lost work, a failure every {duration_of_s(costs.mtbf_s)}",
    ]
    if costs.recover_s:
        said.append(f"{_percent(parts.recovering)} recovery, {duration_of_s(costs.recover_s)} each")
    head.append("  " + " · ".join(said) + "\n", style="dim")
    simple = made.at(made.interval_simple_s)
    head.append(
        f"  the simple formula √(2BM) says {_exact(made.interval_simple_s)}"
        f" and {_percent(simple.simple)}\n",
        style="dim",
    )
    if made.held_up:
        head.append(
            f"  an upload takes {duration_of_s(costs.upload_s)}: with one at a time, saves cannot"
            f" be less than {duration_of_s(made.least_interval_s)} apart\n"
            f"  and the optimum, {_exact(made.optimum_s)}, is out of reach\n"
        )
    mark_s = None if saves is None else saves.interval_s
    shown: list[RenderableType] = [head, terminal(made, mark_s=mark_s)]
    if saves is not None:
        shown.append(_run_page(made, job or "", saves, own_rate))
    return Group(*shown)


def _run_page(
    made: "IntervalPlan", job: str, saves: "SaveCosts", own_rate: bool
) -> "RenderableType":
    from rich.text import Text

    from torchett.model.durations import duration_of_s
    from torchett.report.words import plural

    text = Text("\n")
    counts = f"{plural(saves.saves, 'save')}, {plural(saves.failures, 'failure')}"
    text.append(f"{job}: {counts} in {duration_of_s(saves.exposure_s)}")
    if own_rate and not saves.failures:
        text.append(
            f"; without one to go by, one in {duration_of_s(_PRIOR_MTBF_S)} was assumed before"
        )
    text.append(
        f"\n  measured: {_percent(saves.blocked_share)} checkpoint_blocked,"
        f" {_percent(saves.unsaved_share)} unsaved",
        style="dim",
    )
    if saves.blocking_saves == 1 and made.costs.blocking_s == saves.blocking_s:
        text.append("\n  how long a save blocks is known from one save only: it may differ much")
    if not saves.interval_s:
        text.append("\n  it never saved twice in an attempt: its own interval is not known")
        return text
    own = made.at(saves.interval_s).waste.total
    more = own - made.waste.total
    text.append(
        f"\n◆ it saved every {duration_of_s(saves.interval_s)}: {_percent(own)} expected waste"
    )
    if more >= 0:  # below it only where uploads are said to be slower than they were
        text.append(
            f", {_percent(more)[:-1]} points more than {'that' if made.held_up else 'the optimum'}"
            f" ({duration_of_s(more * saves.exposure_s)} of {duration_of_s(saves.exposure_s)})"
        )
    return text
