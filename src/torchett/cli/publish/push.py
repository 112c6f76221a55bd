"""`ett publish push`: a version in MLflow's registry, too."""

import click

from torchett.cli.output import print_json, speaks_plainly
from torchett.cli.publish.versions import open_registry, registry_option


@click.command()
@click.argument("label", metavar="NAME[@VERSION|@ALIAS]")
@click.option(
    "--mlflow",
    "uri",
    required=True,
    metavar="URI",
    envvar="MLFLOW_TRACKING_URI",
    help="Address of the MLflow server (else $MLFLOW_TRACKING_URI).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
@speaks_plainly
def push(label: str, uri: str, as_json: bool, registry: str | None) -> None:
    """Bring a version, and the aliases that name it, to MLflow's registry.

    Example: ett publish push dlrm@live --mlflow http://mlflow:5000
    """
    from dataclasses import asdict

    from torchett.levers.publish.registry.mlflow_target import push

    opened = open_registry(registry)
    version = opened.find(label)
    found = push(opened, version, uri)
    if as_json:
        print_json({"pushed": version.label, **asdict(found)})
        return
    said = "was there already as" if found.was_there else "is"
    aliases = "".join(f", {alias}" for alias in found.aliases)
    click.echo(
        f"ett: {version.label} {said} version {found.version} of {found.name} in MLflow{aliases}",
        err=True,
    )
