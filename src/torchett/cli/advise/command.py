"""`ett advise`: what each lever would win on a job, why, and whether it came true."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.advise.facts import facts_of
from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.advise.advice import Advice
    from torchett.advise.job_facts import JobFacts
    from torchett.advise.kept import CheckedPrediction, KeptPrediction
    from torchett.advise.prediction import Prediction
    from torchett.advise.priors import Range
    from torchett.runs.reader import RunReader


@click.command("advise")
@click.argument("run", required=False)
@click.option(
    "--why",
    "why",
    metavar="LEVER",
    help="Show the numbers of this run that the prediction is made of.",
)
@click.option(
    "--check",
    "check",
    nargs=2,
    metavar="A B",
    help="Compare the prediction from run A with what run B measured with the levers on.",
)
@click.option(
    "--lever",
    "levers",
    multiple=True,
    metavar="LEVER",
    help="With --check: the lever that was on in B; may be repeated.",
)
@click.option("--score", is_flag=True, help="Show how well all kept predictions came true.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def advise(
    run: str | None,
    why: str | None,
    check: tuple[str, str] | None,
    levers: tuple[str, ...],
    score: bool,
    as_json: bool,
) -> None:
    """Say what each lever would win on a job, with an interval that holds 80%.

    ett advise [RUN] · ett advise RUN --why LEVER · ett advise --check A B · ett advise --score

    Without RUN: of the newest one. Predictions are kept in the runs folder (advice.jsonl).
    """
    asked = [name for name, on in (("--why", why), ("--check", check), ("--score", score)) if on]
    if len(asked) > 1:
        raise InputError(f"ett advise: expected one of {' and '.join(asked)}, found both")
    if levers and check is None:
        raise InputError("ett advise: --lever goes with --check A B")
    if run is not None and (check is not None or score):
        raise InputError(f"ett advise: {asked[0]} takes no RUN, found '{run}'")
    if check is not None:
        _show_check(*check, [_lever(name) for name in levers], as_json)
    elif score:
        _show_score(as_json)
    elif why is not None:
        _show_why(_opened(run), _lever(why), as_json)
    else:
        _show(_opened(run), as_json)


def _opened(run: str | None) -> "RunReader":
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader
    from torchett.runs.summary import newest_run

    return RunReader(newest_run() if run is None else find_run(run)).poll()


def _lever(name: str) -> str:
    from difflib import get_close_matches

    from torchett.advise.levers.table import BY_NAME

    if name in BY_NAME:
        return name
    near = get_close_matches(name, BY_NAME, 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(BY_NAME)}"
    raise InputError(f"ett advise: no lever '{name}': {hint}")


# Advice ----------------------------------------------------------------------------------------


def _show(reader: "RunReader", as_json: bool) -> None:
    from torchett.advise.advice import advise as made

    advice = made(facts_of(reader))
    _keep(reader, advice)
    if as_json:
        print_json(advice.to_json())
    else:
        print_rich(_page(advice))


def _keep(reader: "RunReader", advice: "Advice") -> None:
    """Remember what was predicted, for --check and --score; a live job is not over."""
    if advice.not_yet or reader.ledger().window.live:
        return
    chosen = [*advice.predictions, *([advice.best] if advice.best is not None else [])]
    _kept(reader.run).add(kept_prediction(reader.run.name, one) for one in chosen)


def kept_prediction(run: str, one: "Prediction") -> "KeptPrediction":
    """A prediction as it is kept."""
    from torchett.advise.kept import KeptPrediction

    return KeptPrediction(
        run=run, levers=one.levers, seconds=one.seconds, points=one.points, made_s=time.time()
    )


def _kept(run: Path) -> Any:
    from torchett.advise.kept import Kept

    return Kept(run.parent)


def _page(advice: "Advice") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text(f"{advice.job}  ", style="bold")
    head.append(f"{advice.ett_percent:.1f}% effective", style="bold green")
    head.append(f"; {advice.lost_s:,.1f} rank-seconds were not")
    if advice.not_yet:
        return Group(head, Text(advice.not_yet, style="yellow"))
    parts: list[RenderableType] = [head, Text()]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("lever", "wins rank-s", "80%", "points of ETT", "80%"):
        table.add_column(title, justify="left" if title == "lever" else "right")
    rows = [*advice.predictions, *([advice.best] if advice.best is not None else [])]
    for one in rows:
        best = one is advice.best
        name = f"the best set ({len(one.levers)})" if best else one.levers[0]
        table.add_row(name, *_figures(one), style="bold" if best else "")
    parts += [table, Text()]
    for one in advice.predictions:
        parts.append(Text(f"{one.levers[0]}: {one.reason}" + (f" {one.note}" if one.note else "")))
        parts += [Text(f"    {line}", style="cyan") for line in one.change.splitlines()]
    if advice.best is not None:
        listed = ", then ".join(f"{name} ({seconds:+.1f})" for name, seconds in advice.gains)
        parts += [Text(), Text(f"the best set, by what each adds: {listed}")]
    for unsure in advice.unsure:
        parts.append(Text(f"{unsure.lever}: {unsure.sentence}", style="yellow"))
    if advice.nothing:
        listed = "; ".join(f"{name}: {reason}" for name, reason in advice.nothing.items())
        parts.append(Text(f"nothing to win: {listed}", style="dim"))
    return Group(*parts)


def _figures(one: "Prediction") -> tuple[str, ...]:
    s, p = one.seconds, one.points
    return (
        f"{s.mid:+,.1f}",
        f"{s.low:+,.1f} … {s.high:+,.1f}",
        f"{p.mid:+.1f}",
        f"{p.low:+.1f} … {p.high:+.1f}",
    )


def _show_why(reader: "RunReader", lever: str, as_json: bool) -> None:
    """The numbers that went into one prediction, and the measurements behind its leftovers."""
    from torchett.advise.advice import Adviser
    from torchett.advise.advice import advise as made
    from torchett.advise.priors import priors

    facts = facts_of(reader)
    advice, adviser = made(facts), Adviser(facts)
    known = lever in adviser.found and not advice.not_yet
    one = adviser.predict([lever]) if known else None
    rows = [] if one is None else [priors()[name] for name in (*one.priors, "rerun")]
    unsure = {each.lever: each.sentence for each in advice.unsure}
    verdict = advice.not_yet or unsure.get(lever) or advice.nothing.get(lever)
    if as_json:
        shown: dict[str, Any] = {"job": advice.job, "lever": lever}
        shown |= {"verdict": verdict} if one is None else {"prediction": one.to_json()}
        shown["priors"] = [
            {"name": row.name, "is": row.is_, "range": _row(row.range), "date": row.date,
             "source": row.source}
            for row in rows
        ]  # fmt: skip
        print_json(shown)
        return
    if one is None:
        click.echo(f"{lever}: {verdict}")
        return
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in one.numbers.items():
        table.add_row(name, value if isinstance(value, str) else f"{value:,.4g}")
    left = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("left over", "10%", "50%", "90%", "measured", "where"):
        left.add_column(title, justify="right" if title.endswith("%") else "left", overflow="fold")
    for row in rows:
        figures = (f"{value:.3g}" for value in _row(row.range))
        left.add_row(row.is_, *figures, row.date, row.source)
    seconds, between, gain, points = _figures(one)
    headline = f"{lever} wins {seconds} rank-s ({between}), {gain} points of ETT ({points})"
    print_rich(Group(Text(headline, style="bold"), Text(one.reason), Text(), table, Text(), left))


def _row(given: "Range") -> list[float]:
    return [given.low, given.mid, given.high]


# Whether it came true --------------------------------------------------------------------------


def _show_check(a: str, b: str, levers: list[str], as_json: bool) -> None:
    before, after = _opened(a), _opened(b)
    facts, later = facts_of(before), facts_of(after)
    if not levers:
        levers = _switched_on(facts, later)
    if not levers:
        raise InputError(
            f"ett advise --check: {b} records no lever that {a} had not: name them by --lever NAME"
        )
    found, said = _outcome(before, after, facts, later, levers)
    if as_json:
        print_json(found.to_json() | {"kept": said})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in (" + ".join(levers), "predicted", "80%", "measured", ""):
        table.add_column(title, justify="left" if title == " + ".join(levers) else "right")
    s, p = found.prediction.seconds, found.prediction.points
    held = "inside" if found.inside else "outside"
    near = "near" if found.near else "not near"
    table.add_row("rank-seconds won", f"{s.mid:+,.1f}", f"{s.low:+,.1f} … {s.high:+,.1f}",
                  f"{found.seconds:+,.1f}", near)  # fmt: skip
    table.add_row("points of ETT", f"{p.mid:+.1f}", f"{p.low:+.1f} … {p.high:+.1f}",
                  f"{found.points:+.1f}", held)  # fmt: skip
    print_rich(table)
    for line in filter(None, (found.note, said)):
        click.echo(f"ett: {line}", err=True)


def _switched_on(before: "JobFacts", after: "JobFacts") -> list[str]:
    from torchett.advise.levers.table import LEVERS

    new = after.known.on - before.known.on
    return [lever.name for lever in LEVERS if lever.name in new]


def _outcome(
    before: "RunReader",
    after: "RunReader",
    facts: "JobFacts",
    later: "JobFacts",
    levers: list[str],
) -> "tuple[CheckedPrediction, str]":
    """The outcome, kept; and whether its prediction is older than the second run."""
    from torchett.advise.advice import Adviser
    from torchett.advise.score import outcome

    kept = _kept(before.run)
    predicted = kept.prediction(before.run.name, levers)
    said = "" if predicted else f"predicted now, from {before.run.name} alone"
    if predicted is None:
        predicted = kept_prediction(before.run.name, Adviser(facts).predict(levers))
    found = outcome(predicted, facts, later, after.run.name)
    kept.add([predicted, found])
    return found, said


def _show_score(as_json: bool) -> None:
    """How well all kept predictions came true, of the runs of this folder."""
    from torchett.advise.kept import Kept
    from torchett.advise.score import scores
    from torchett.record.identity import runs_folder

    runs = runs_folder(os.environ).absolute()
    found = scores(Kept(runs).outcomes)
    if as_json:
        print_json({"folder": str(runs), "scores": [one.to_json() for one in found]})
        return
    if not found:
        click.echo(f"ett: {runs} keeps no outcome yet: ett advise --check A B", err=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    heads = ("levers", "outcomes", "held by the 80%", "within 20% or 1 point", "bias, points")
    for title in heads:
        table.add_column(title, justify="left" if title == "levers" else "right")
    for one in found:
        table.add_row(one.what, f"{one.outcomes}", f"{one.inside_percent:.0f}%",
                      f"{one.near_percent:.0f}%", f"{one.bias_points:+.1f}")  # fmt: skip
    print_rich(table)
