"""`ett fleet query`, `views` and `export`: the fleet's rows by SQL, and as files."""

from pathlib import Path

import click

from torchett.cli.fleet.opened import fleet_option, json_option, open_fleet, print_rows
from torchett.cli.output import print_result, speaks_plainly
from torchett.model.errors import InputError

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".feather": "arrow"}
_SECONDS = click.FloatRange(0.001)


@click.command()
@click.argument("sql")
@json_option
@click.option("--seconds", default=30.0, show_default=True, type=_SECONDS, help="Time limit.")
@click.option("--memory", default="1GB", show_default=True, help="Memory limit of DuckDB.")
@fleet_option
@speaks_plainly
def query(sql: str, as_json: bool, seconds: float, memory: str, folder: Path | None) -> None:
    """Query the fleet with SQL.

    One SELECT in DuckDB's dialect, over the views of `ett fleet views`.
    """
    with open_fleet(folder) as opened:
        found = opened.query(sql, seconds=seconds, memory=memory)
    print_rows(found.to_pylist(), found.schema.names, as_json)


@click.command()
@click.argument("view", required=False)
@json_option
@speaks_plainly
def views(view: str | None, as_json: bool) -> None:
    """List the views, or the columns of one VIEW."""
    from torchett.fleet.schema import VIEWS

    if view is None:
        rows = [{"view": one.name, "meaning": one.meaning} for one in VIEWS]
    else:
        chosen = next((one for one in VIEWS if one.name == view), None)
        if chosen is None:
            known = ", ".join(one.name for one in VIEWS)
            raise InputError(f"ett fleet views: expected one of {known}, found '{view}'")
        rows = [
            {"column": one.name, "type": one.type, "meaning": one.meaning} for one in chosen.columns
        ]
    print_rows(rows, list(rows[0]), as_json)


@click.command()
@click.argument("view", required=False)
@click.option("--sql", help="One SELECT, instead of a whole VIEW.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The file to write; its suffix is the format: .parquet, .csv or .arrow.",
)
@click.option("--seconds", default=600.0, show_default=True, type=_SECONDS, help="Time limit.")
@json_option
@fleet_option
@speaks_plainly
def export(
    view: str | None,
    sql: str | None,
    output: Path,
    seconds: float,
    as_json: bool,
    folder: Path | None,
) -> None:
    """Write a view to a Parquet, CSV or Arrow file.

    With --sql: write the result of a SELECT.
    """
    form = _FORMATS.get(output.suffix)
    if form is None:
        known = ", ".join(_FORMATS)
        raise InputError(f"{output}: expected a name that ends in one of {known}")
    if (view is None) == (sql is None):
        raise InputError("ett fleet export: expected a VIEW or --sql, one of them")
    with open_fleet(folder) as opened:
        from torchett.fleet.export import write
        from torchett.fleet.schema import VIEWS

        if view is not None and view not in [one.name for one in VIEWS]:
            known = ", ".join(one.name for one in VIEWS)
            raise InputError(f"ett fleet export: expected one of {known}, found '{view}'")
        count = write(opened, sql or f"SELECT * FROM {view}", output, form, seconds)
    written = {"output": str(output), "format": form, "rows": count}
    print_result(written, f"{count:,} rows in {output}", as_json)
