"""`ett startup`: how a job started, and what that could do without."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from torchett.levers.startup.plan.plan_run import PlanRun
    from torchett.runs.reader import RunReader


@click.group()
def startup() -> None:
    """Show how a job started, and what would make it start sooner."""


@startup.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--attempt", type=click.IntRange(0), help="Which attempt; else the last.")
@click.option("--rank", type=click.IntRange(0), help="Which rank; else the slowest.")
@speaks_plainly
def show(run: str, as_json: bool, attempt: int | None, rank: int | None) -> None:
    """Draw the start-up plan as it ran.

    It shows the critical path and the most useful further overlap.
    """
    from torchett.levers.startup.plan.drawing import draw
    from torchett.model.durations import duration

    reader = _opened(run)
    plans = dict(_plans(reader))
    if not plans:
        raise InputError(f"{reader.run}: expected a start-up plan (ett.Plan), found none recorded")
    number = max(plans)[0] if attempt is None else attempt
    of_attempt = {who: plan for (tried, who), plan in plans.items() if tried == number}
    if not of_attempt or (rank is not None and rank not in of_attempt):
        which = f"attempt {number}" + ("" if rank is None else f", rank {rank}")
        known = ", ".join(f"{tried}/{who}" for tried, who in sorted(plans))
        raise InputError(f"{reader.run}: no plan of {which}; there are (attempt/rank) {known}")
    walls = {who: plan.wall_ns for who, plan in sorted(of_attempt.items())}
    chosen = max(walls, key=lambda who: walls[who]) if rank is None else rank
    plan = of_attempt[chosen]
    if as_json:
        print_json(_plan_json(plan, number, chosen, walls))
        return
    if len(walls) > 1 or number:
        fastest = min(walls.values())
        click.echo(f"attempt {number}, rank {chosen} of {len(walls)} ({duration(fastest)} at best)")
    print_rich(draw(plan))


@startup.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--attempt", type=click.IntRange(0), help="Which attempt; else the last.")
@speaks_plainly
def audit(run: str, as_json: bool, attempt: int | None) -> None:
    """Show what communication costs before the first step.

    Record it with `ett run --audit`.
    """
    from torchett.levers.communication.audit import KIND
    from torchett.levers.communication.audit_drawing import draw_communication
    from torchett.levers.communication.communication import communication

    reader = _opened(run)
    try:
        found = communication(
            reader.placed_facts(KIND), attempt=attempt, first_step_ns=_first_steps(reader)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{reader.run}: expected an audit's notes, found {error!r}") from None
    if found is None:
        which = "" if attempt is None else f" of attempt {attempt}"
        raise InputError(f"{reader.run}: no audit{which} found; run the job by ett run --audit")
    if as_json:
        print_json(found.to_json())
    else:
        print_rich(draw_communication(found))


def _opened(run: str) -> "RunReader":
    from torchett.runs.folder import find_run
    from torchett.runs.reader import RunReader

    return RunReader(find_run(run)).poll()


def _plans(reader: "RunReader") -> "Iterator[tuple[tuple[int, int], PlanRun]]":
    """(attempt, rank) and its plan; the last where a rank ran several."""
    from torchett.levers.startup.plan.plan_run import PlanRun

    for attempt, rank, fact in reader.facts("plan"):
        try:
            yield (attempt, rank), PlanRun.from_json(fact)
        except ValueError as error:
            raise InputError(f"{reader.run}: attempt {attempt}, rank {rank}: {error}") from None


def _plan_json(plan: "PlanRun", attempt: int, rank: int, walls: dict[int, int]) -> dict[str, Any]:
    following = plan.next_overlap
    return {
        "attempt": attempt,
        "rank": rank,
        "wall_s": plan.wall_ns / 1e9,
        "serial_s": plan.serial_ns / 1e9,
        "won_s": plan.won_ns / 1e9,
        "critical_path": [one.name for one in plan.critical_path],
        "next_overlap": following
        and {"stage": following.stage, "lifted": following.lifted, "won_s": following.won_ns / 1e9},
        "ranks": {str(who): wall / 1e9 for who, wall in walls.items()},
        "plan": plan.to_json(),
    }


def _first_steps(reader: "RunReader") -> dict[tuple[int, int], int]:
    """When each (attempt, rank) began its first step."""
    rows = reader.history().rows
    steps = rows.is_step
    found: dict[tuple[int, int], int] = {}
    lanes = zip(
        rows.attempt[steps].tolist(),
        rows.rank[steps].tolist(),
        rows.t0_ns[steps].tolist(),
        strict=True,
    )
    for attempt, rank, t0 in lanes:
        found[attempt, rank] = min(t0, found.get((attempt, rank), t0))
    return found
