"""`ett checkpoint ls|verify|prune|diff`: look at checkpoints, verify, delete, compare them."""

import time
from typing import Any

import click

from torchett.cli.output import print_json, print_rich, speaks_plainly
from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.stored.catalog import Entry, entries, latest, verify
from torchett.levers.checkpoint.stored.retention import Keep, doomed
from torchett.levers.checkpoint.stored.storage import named_storage


def _all(where: str) -> list[Entry]:
    found = entries(named_storage(where))
    if not found:
        raise CheckpointError(f"{where} has no checkpoints: expected folders such as step-00000039")
    return found


def _one(path: str) -> Entry:
    """The checkpoint at a path such as runs/a/step-00000039, or the newest under one."""
    where, _, name = path.rstrip("/").rpartition("/")
    for entry in entries(named_storage(where or ".")):
        if entry.name == name:
            return entry
    return _all(path)[0]


def _row(entry: Entry, newest: str | None) -> dict[str, Any]:
    saved = entry.manifest
    row: dict[str, Any] = {"name": entry.name, "step": entry.step, "latest": entry.name == newest}
    if saved is None:
        return {**row, "problem": entry.problem}
    return {
        **row,
        "bytes": saved.size,
        "files": len(saved.files),
        "items": saved.items,
        "world_size": saved.world_size,
        "created_s": saved.created_s,
        "metric": saved.metric,
        "pinned": entry.pinned,
        "versions": dict(saved.versions),
    }


@click.command()
@click.argument("where")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def ls(where: str, as_json: bool) -> None:
    """List the checkpoints under WHERE, newest first.

    WHERE is a folder or a URL such as s3://…
    """
    newest = latest(named_storage(where))
    rows = [_row(entry, newest) for entry in _all(where)]
    if as_json:
        print_json({"where": where, "checkpoints": rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "GiB", "ranks", "written", ""):
        table.add_column(heading, justify="right" if heading in ("GiB", "ranks") else "left")
    for row in rows:
        marks = [mark for mark in ("latest", "pinned") if row.get(mark)]
        if "problem" in row:
            table.add_row(row["name"], "–", "–", "–", row["problem"])
            continue
        if row["metric"] is not None:
            marks.append(f"metric {row['metric']:g}")
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["created_s"]))
        size = f"{row['bytes'] / 2**30:.3f}"
        table.add_row(row["name"], size, str(row["world_size"]), written, " · ".join(marks))
    print_rich(table)


@click.command("verify")
@click.argument("where")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def verify_(where: str, as_json: bool) -> None:
    """Compare every byte with the checksums.

    The exit code is 1 if any byte under WHERE differs.
    """
    rows = []
    for entry in _all(where):
        problems = verify(entry)
        rows.append({"name": entry.name, "ok": not problems, "problems": problems})
        if not as_json:
            click.echo(f"{entry.name}  {'; '.join(problems) or 'ok'}")
    if as_json:
        print_json({"where": where, "checkpoints": rows})
    if not all(row["ok"] for row in rows):
        raise SystemExit(1)


@click.command()
@click.argument("where")
@click.option(
    "--keep",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="How many of the newest checkpoints to keep.",
)
@click.option("--every", type=click.IntRange(1), help="Also keep one for every N steps.")
@click.option(
    "--best",
    default=0,
    type=click.IntRange(0),
    help="Also keep the N checkpoints with the best metric.",
)
@click.option(
    "--mode",
    default="min",
    type=click.Choice(["min", "max"]),
    show_default=True,
    help="With --best: whether the lowest or the highest metric is best.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def prune(
    where: str, keep: int, every: int | None, best: int, mode: Any, dry_run: bool, as_json: bool
) -> None:
    """Delete checkpoints that need not be kept.

    The newest, every N-th, the best and the pinned ones are kept.

    The last are verified first, so that a good one is not deleted in favour of a bad one.
    """
    found = _all(where)
    good: list[Entry] = []
    for entry in found:
        if len(good) < keep:
            if not verify(entry):
                good.append(entry)
        elif entry.manifest is not None:
            good.append(entry)
    gone = doomed(good, Keep(last=keep, every=every, best=best, mode=mode))
    for entry in gone:
        if not dry_run:
            entry.storage.delete(entry.name)
        if not as_json:
            click.echo(f"{entry.name}  {'would be deleted' if dry_run else 'deleted'}")
    if as_json:
        names = [entry.name for entry in gone]
        print_json({"where": where, "deleted": [] if dry_run else names, "doomed": names})


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def diff(a: str, b: str, as_json: bool) -> None:
    """Show what differs between two checkpoints; exit 1 if anything does.

    A and B are paths of checkpoints, or of folders of which the newest is taken.
    """
    from dataclasses import asdict

    from torchett.levers.checkpoint.state.contents import Contents, differences

    ours, theirs = _one(a), _one(b)
    same = Contents(ours)
    found = list(differences(same, Contents(theirs)))
    if as_json:
        rows = [asdict(difference) for difference in found]
        names = len(same.names())
        print_json({"a": ours.path, "b": theirs.path, "names": names, "differences": rows})
    else:
        for difference in found:
            most = f", at most {difference.most:g}" if difference.most is not None else ""
            click.echo(f"{difference.name}  {difference.what}  {difference.detail}{most}")
        click.echo(f"{len(found)} of {len(same.names())} names differ")
    if found:
        raise SystemExit(1)
