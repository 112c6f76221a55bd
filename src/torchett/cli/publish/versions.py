"""`ett publish ls | show | promote | rollback | verify | gc`: versions and aliases."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.output import (
    json_option,
    print_json,
    print_result,
    print_rich,
    speaks_plainly,
)
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from torchett.levers.publish.registry.aliases import Flip
    from torchett.levers.publish.registry.registry import Registry
    from torchett.levers.publish.registry.version import Version


def registry_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--registry URL: which registry a command works on."""
    return click.option(
        "--registry",
        metavar="URL",
        help="Folder or URL of the registry (default: $ETT_REGISTRY, else ./ett-registry).",
    )(command)


def registry_url(given: str | None) -> str:
    return given or os.environ.get("ETT_REGISTRY") or "ett-registry"


def open_registry(given: str | None) -> "Registry":
    from torchett.levers.publish.registry.registry import Registry

    return Registry(registry_url(given))


@click.command()
@click.argument("model", required=False)
@click.option(
    "--at", metavar="TIME", help="Show the version that each alias named at this time (ISO 8601)."
)
@click.option("--history", is_flag=True, help="Show every change of the aliases, newest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
@speaks_plainly
def ls(
    model: str | None, at: str | None, history: bool, as_json: bool, registry: str | None
) -> None:
    """List models, versions and aliases."""
    opened = open_registry(registry)
    at_s = None if at is None else _time(at)
    names = opened.models() if model is None else [model]
    if model is not None:
        opened.find(model)  # refuse a name that is not there
    found: list[dict[str, Any]] = []
    for name in names:
        one = opened.model(name)
        versions = list(one.versions())
        if at_s is not None:
            versions = [version for version in versions if version.created_s <= at_s]
        flips = list(one.aliases.live(at_s))
        row: dict[str, Any] = {
            "model": name,
            "aliases": [asdict(flip) for flip in flips],
            "versions": [_row(version, flips) for version in versions],
        }
        if history:
            every = [flip for alias in one.aliases.names() for flip in one.aliases.history(alias)]
            row["history"] = [asdict(flip) for flip in sorted(every, key=lambda f: -f.at_s)]
        found.append(row)
    if as_json:
        print_json({"registry": opened.url, "at_s": at_s, "models": found})
        return
    if not found:
        click.echo(f"ett: {opened.url} has no models yet", err=True)
    _print_history(found) if history else _print_versions(found)


@click.command()
@click.argument("label", metavar="NAME[@VERSION|@ALIAS]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
@speaks_plainly
def show(label: str, as_json: bool, registry: str | None) -> None:
    """Show how a version was made, and its files."""
    opened = open_registry(registry)
    version = opened.find(label)
    if as_json:
        print_json(version.to_json())
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    flips = opened.model(version.name).aliases.live()
    aliases = [flip.alias for flip in flips if flip.version == version.version]
    shown = {"version": version.label, "aliases": ", ".join(aliases) or "–"}
    shown |= {"published": _when(version.created_s), "on": version.host or "–"}
    shown |= {"anchor": _pairs(version.anchor), "job": _pairs(version.job)}
    shown |= {"recipe": _pairs(version.recipe), "torch": version.torch, "runs on": version.isa}
    shown |= {"parity": _pairs(version.parity), "seconds": _pairs(version.timings)}
    for key, value in shown.items():
        table.add_row(key, value or "–")
    for name, blob in version.files.items():
        table.add_row("file", f"{name}  {blob.size:,} bytes  sha256 {blob.sha256[:16]}…")
    print_rich(table)


@click.command()
@click.argument("label", metavar="NAME@VERSION")
@click.argument("alias")
@json_option
@registry_option
@speaks_plainly
def promote(label: str, alias: str, as_json: bool, registry: str | None) -> None:
    """Move ALIAS to this version.

    Example: ett publish promote dlrm@7 live
    """
    opened = open_registry(registry)
    version = opened.find(label)
    opened.model(version.name).promote(version.version, alias, why="promoted", now_s=time.time())
    moved = {"alias": f"{version.name}@{alias}", "version": version.label}
    print_result(moved, f"{version.name}@{alias} is {version.label} now", as_json)


@click.command()
@click.argument("label", metavar="NAME@ALIAS")
@json_option
@registry_option
@speaks_plainly
def rollback(label: str, as_json: bool, registry: str | None) -> None:
    """Move an alias back to its previous version.

    Example: ett publish rollback dlrm@live
    """
    name, _, alias = label.partition("@")
    if not alias or alias.isdigit():
        raise InputError(f"{label!r}: expected NAME@ALIAS, such as dlrm@live")
    flip = open_registry(registry).model(name).rollback(alias, now_s=time.time())
    moved = {"alias": label, "version": f"{name}@{flip.version}"}
    print_result(moved, f"{label} is {name}@{flip.version} again", as_json)


@click.command()
@click.argument("label", metavar="NAME[@VERSION|@ALIAS]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
@speaks_plainly
def verify(label: str | None, as_json: bool, registry: str | None) -> None:
    """Compare every byte of versions with their hashes.

    The exit code is 1 if any byte differs.
    """
    opened = open_registry(registry)
    if label is None:
        versions = [v for name in opened.models() for v in opened.model(name).versions()]
    elif "@" in label:
        versions = [opened.find(label)]
    else:
        versions = list(opened.model(opened.find(label).name).versions())
    rows = []
    for version in versions:
        problems = opened.model(version.name).problems(version, read=True)
        rows.append({"version": version.label, "ok": not problems, "problems": problems})
        if not as_json:
            click.echo(f"{version.label}  {'; '.join(problems) or 'ok'}")
    if as_json:
        print_json({"registry": opened.url, "versions": rows})
    if not all(row["ok"] for row in rows):
        raise SystemExit(1)


@click.command()
@click.argument("model", required=False)
@click.option(
    "--keep",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="How many of the newest versions to keep.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
@speaks_plainly
def gc(model: str | None, keep: int, dry_run: bool, as_json: bool, registry: str | None) -> None:
    """Remove old versions that no alias needs.

    A version that an alias names, or could be rolled back to, is kept.
    """
    opened = open_registry(registry)
    rows = []
    for name in opened.models() if model is None else [opened.find(model).name]:
        gone = opened.model(name).collect(keep=keep, now_s=time.time(), dry_run=dry_run)
        rows.append({"model": name, "versions": gone.versions, "files": len(gone.files)})
        if not as_json:
            would = "would be removed" if dry_run else "removed"
            labels = " ".join(f"{name}@{number}" for number in gone.versions)
            files = f", {len(gone.files)} files" if gone.files else ""
            click.echo(f"{labels}  {would}{files}" if labels else f"{name}: nothing {would}{files}")
    if as_json:
        print_json({"registry": opened.url, "dry_run": dry_run, "models": rows})


def _row(version: "Version", flips: "list[Flip]") -> dict[str, Any]:
    return {
        "version": version.version,
        "aliases": [flip.alias for flip in flips if flip.version == version.version],
        "created_s": version.created_s,
        "bytes": version.size,
        "step": version.anchor.get("step"),
        "job": version.job.get("job"),
        "max_error": version.parity.get("max_error"),
        "torch": version.torch,
        "isa": version.isa,
    }


def _print_versions(models: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("version", "aliases", "published", "step", "job", "MB", "max error", "runs on"):
        table.add_column(heading, justify="right" if heading in ("step", "MB") else "left")
    for model in models:
        for row in reversed(model["versions"]):
            error = row["max_error"]
            table.add_row(
                f"{model['model']}@{row['version']}",
                ", ".join(row["aliases"]),
                _when(row["created_s"]),
                str(row["step"] if row["step"] is not None else "–"),
                row["job"] or "–",
                f"{row['bytes'] / 1e6:.1f}",
                "–" if error is None else f"{error:.2g}",
                row["isa"] or "–",
            )
    print_rich(table)


def _print_history(models: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("since", "alias", "named", "why", "by"):
        table.add_column(heading)
    for model in models:
        for flip in model["history"]:
            named = f"{model['model']}@{flip['version']}"
            alias = f"{model['model']}@{flip['alias']}"
            table.add_row(_when(flip["at_s"]), alias, named, flip["why"], flip["by"])
    print_rich(table)


def _pairs(found: Any) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
            return f"{value[:16]}…"  # --json has the whole hash
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return " · ".join(f"{key} {shown(value)}" for key, value in found.items() if value is not None)


def _when(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _time(text: str) -> float:
    """Seconds since the epoch, of ISO 8601 (without a zone: local time)."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputError(
            f"--at: expected a time such as 2026-11-19T14:30 or 2026-11-19T14:30+01:00, "
            f"found {text!r}"
        ) from None
