"""`ett report` and `ett compare`: where the time of a job went, and what moved between two."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.ledger.ledger import Ledger
    from torchett.ledger.rules.recovery_stages import Recovery
    from torchett.ledger.views import Definition
    from torchett.runs.groups import GroupedJob
    from torchett.runs.reader import RunReader


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a report says beside the ledger."""

    compiles: dict[str, Any] | None
    decisions: list[dict[str, Any]]  # of the restart policy
    ways: "list[Recovery]"  # back to training, after each failure
    read: dict[int, Any]  # attempt → what it restored
    by_tier: dict[str, Any]  # what was unsaved, by the tier that was restored from


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="csv: one row for each attempt, group and account.",
)
@click.option(
    "--definition",
    default="meta",
    show_default=True,
    type=click.Choice(["meta", "goodput", "megascale", "ettr"]),
    help="Definition of effective time for the headline.",
)
@click.option(
    "--svg",
    type=click.Path(path_type=Path),
    help="Write the report as an SVG picture to this file.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write the report as one self-contained HTML page to this file.",
)
@speaks_plainly
def report(
    run: str | None,
    as_json: bool,
    form: str,
    definition: str,
    svg: Path | None,
    html: Path | None,
) -> None:
    """Show where the time of a job went. Without RUN: of the newest run."""
    from torchett.cli.advise.facts import three_best
    from torchett.ledger.views import DEFINITIONS
    from torchett.report.accounts_csv import accounts_csv
    from torchett.report.pages.job import job_page
    from torchett.report.pages.picture import as_svg
    from torchett.runs.folder import find_run
    from torchett.runs.groups import grouped_job, job_of
    from torchett.runs.output_files import write_text_file
    from torchett.runs.reader import RunReader
    from torchett.runs.summary import newest_run

    newest = newest_run() if run is None else None
    whole = run if newest is None else str(job_of(newest) or newest)
    if whole is not None and (grouped := grouped_job(whole)) is not None:
        if definition != "meta" or svg is not None or html is not None:
            raise InputError(
                f"ett report: {grouped.name} consists of replica groups: for --definition, --svg"
                f" and --html name one of them: {', '.join(_runs_of(grouped))}"
            )
        _report_groups(grouped, as_json)
        return
    reader = RunReader(newest or find_run(run or "")).poll()
    ledger, chosen = reader.ledger(), DEFINITIONS[definition]
    parts = _parts(reader, ledger)
    if as_json or form == "json":
        print_json(_as_json(reader, ledger, chosen, parts))
        return
    if form == "csv":
        click.echo(accounts_csv(ledger), nl=False)
        return
    drawn = _drawn(reader, ledger, chosen, parts)
    if svg is None and html is None:
        print_rich(drawn)
    if svg is not None:
        write_text_file(svg, [as_svg(drawn, f"ett report {ledger.job}")])
    if html is not None:
        advice = three_best(reader)
        page = job_page(ledger, reader.history(), compiles=parts.compiles, advice=advice)
        write_text_file(html, [page])


def _runs_of(job: "GroupedJob") -> list[str]:
    return [reader.run.name for reader in job.groups.values()]


def _report_groups(job: "GroupedJob", as_json: bool) -> None:
    """The sum over replica groups, and a line or an object for each."""
    from torchett.report.grouped import grouped_json, grouped_report

    ledgers = job.ledgers()
    many = len(job.groups) > 1
    warnings, notes = (
        [
            f"group {group}: {said}" if many else said
            for group, reader in job.groups.items()
            for said in getattr(reader, kind)
        ]
        for kind in ("warnings", "notes")
    )
    if as_json:
        print_json(grouped_json(job.ledger(), ledgers, warnings, notes))
    else:
        print_rich(grouped_report(job.ledger(), ledgers, warnings, notes))


def _parts(reader: "RunReader", ledger: "Ledger") -> _Parts:
    """What there is to say beside the ledger; asides are added to the reader's."""
    from torchett.cli.checkpoint.restores import restores_of
    from torchett.cli.compile.doctor import compiles_of
    from torchett.cli.publish.of_run import publish_asides
    from torchett.cli.run.restarts import decisions_of
    from torchett.ledger.rules.recovery_stages import recoveries
    from torchett.levers.checkpoint.restore.report import (
        memory_line,
        restore_lines,
        unsaved_by_tier,
    )
    from torchett.levers.compile.cache.report import cache_lines, standby_lines
    from torchett.levers.compile.observe.summary import summary

    compiles = summary(compiles_of(reader))
    reader.asides += cache_lines(reader.facts("compile_cache"))
    reader.asides += standby_lines(reader.facts("standby_model"))
    restored, unsaved_ns = restores_of(reader, ledger)
    reader.asides += publish_asides(reader)
    reader.asides += restore_lines(restored, unsaved_ns)
    reader.asides += memory_line(reader.facts("checkpoint_memory"))
    return _Parts(
        compiles=compiles,
        decisions=decisions_of(reader.run),
        ways=recoveries(ledger, reader.history()),
        read={attempt: fact for attempt, _, fact in reader.facts("checkpoint_restored")},
        by_tier=unsaved_by_tier(restored, unsaved_ns) if restored else {},
    )


def _as_json(
    reader: "RunReader", ledger: "Ledger", chosen: "Definition", parts: _Parts
) -> dict[str, Any]:
    from torchett.report.sections.long_steps import long_steps_line
    from torchett.report.sections.recoveries import recoveries_json

    shown = ledger.to_json()
    if parts.decisions:
        shown["restarts"] = parts.decisions
    if len(parts.ways) > 1:
        shown["recovery_stages"] = recoveries_json(parts.ways, parts.read)
    if parts.by_tier:
        shown["unsaved_by_tier"] = parts.by_tier
    if parts.compiles is not None:
        shown["compile"] = parts.compiles
    rows = reader.history().rows
    unsure = long_steps_line(ledger, rows)
    notes = [*([] if unsure is None else [unsure]), *reader.notes]
    if reader.warnings:
        shown["warnings"] = reader.warnings
    if notes:
        shown["notes"] = notes
    if reader.asides:
        shown["asides"] = reader.asides
    if chosen.name != "meta":
        value = chosen.percent(ledger, rows)
        shown["definition"] = {"name": chosen.name, "percent": value, "is": chosen.sentence}
        if chosen.estimated(ledger, rows):
            shown["definition"]["estimated"] = True
    return shown


def _drawn(
    reader: "RunReader", ledger: "Ledger", chosen: "Definition", parts: _Parts
) -> "RenderableType":
    from torchett.cli.advise.facts import three_best
    from torchett.cli.run.restarts import decisions_shown
    from torchett.report.job import job_report
    from torchett.report.sections.compiles import compile_section
    from torchett.report.sections.next_steps import next_section
    from torchett.report.sections.recoveries import recovery_section

    history = reader.history()
    now_ns = int((time.time() - history.epoch_s) * 1e9) if reader.beats else None
    details = [
        *recovery_section(parts.ways, parts.read),
        *decisions_shown(parts.decisions),
        *compile_section(parts.compiles),
        *next_section(three_best(reader)),
    ]
    return job_report(ledger, history, chosen, details=details, now_ns=now_ns)


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--fail-if",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="Exit 1 if this holds of B: 'recover>10s', 'ett<85%', 'data_wait>+5s' (the change from A),"
    " 'pt2_compile>1.5x' (the ratio to A). May be given several times.",
)
@speaks_plainly
def compare(a: str, b: str, as_json: bool, limits: tuple[str, ...]) -> None:
    """Show which accounts moved between two jobs, and by how much."""
    from torchett.report.comparison import comparison, comparison_json, told_apart
    from torchett.report.limits import breaches, parse_limit
    from torchett.runs.groups import job_ledger

    asked = [parse_limit(limit) for limit in limits]
    runs = Path(a), Path(b)
    ours, theirs = job_ledger(a), job_ledger(b)
    broken = [str(breach) for breach in breaches(asked, ours, theirs)]
    if as_json:
        print_json(comparison_json(ours, theirs) | ({"broken": broken} if asked else {}))
    else:
        print_rich(comparison(*told_apart(ours, theirs, runs)))
    for line in broken:
        click.echo(f"ett: --fail-if {line}", err=True)
    if broken:
        raise SystemExit(1)
