"""`ett publish fetch | serve-check | serve`: a version, outside of the registry."""

import json
from pathlib import Path

import click

from torchett.cli.output import json_option, print_json, print_result, speaks_plainly
from torchett.cli.publish.versions import open_registry, registry_option
from torchett.model.errors import InputError


@click.command()
@click.argument("label", metavar="NAME[@VERSION|@ALIAS]")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@registry_option
@speaks_plainly
def fetch(label: str, folder: Path, as_json: bool, registry: str | None) -> None:
    """Download a version to a new FOLDER, and check it."""
    from torchett.levers.publish.serving.fetched import fetch

    opened = open_registry(registry)
    version = opened.find(label)
    fetch(opened, version, folder)
    fetched_to = {"version": version.label, "folder": str(folder)}
    said = f"{version.label} is in {folder}"
    if "model.pt2" in version.files:
        said += f": python {folder}/load.py --check"
    print_result(fetched_to, said, as_json)


@click.command("serve-check")
@click.argument("label", metavar="NAME[@VERSION|@ALIAS]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
@speaks_plainly
def serve_check(label: str, as_json: bool, registry: str | None) -> None:
    """Load a version with torch alone and compare its outputs."""
    from torchett.levers.publish.errors import PublishError
    from torchett.levers.publish.serving.fetched import check_alone, fetched

    opened = open_registry(registry)
    version = opened.find(label)
    with fetched(opened, version) as folder:
        try:
            checked = json.loads(check_alone(folder))
        except PublishError as error:  # it names the temporary folder
            raise PublishError(str(error).replace(str(folder), version.label)) from None
    if as_json:
        print_json({"version": version.label, **checked})
        return
    batches = ", ".join(map(str, checked["batches"]))
    click.echo(
        f"{version.label} answers batches of {batches}: off by {checked['max_error']:.2g} at most; "
        f"loaded in {checked['load_s']:.2f} s beside {checked['import_s']:.2f} s of importing torch"
    )


@click.command()
@click.argument("label", metavar="NAME[@VERSION|@ALIAS]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8643,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on.",
)
@registry_option
@speaks_plainly
def serve(label: str, host: str, port: int, registry: str | None) -> None:
    """Serve a version over HTTP, to try it.

    POST /predict takes lists by input name.
    """
    from torchett.levers.publish.errors import PublishError
    from torchett.levers.publish.serving.fetched import fetched
    from torchett.levers.publish.serving.http import listen
    from torchett.levers.publish.serving.snapshot import Snapshot, SnapshotError

    opened = open_registry(registry)
    version = opened.find(label)
    with fetched(opened, version) as folder:
        try:
            model = Snapshot(folder)
        except SnapshotError as error:
            raise PublishError(str(error)) from None
        try:
            server = listen(model, version.label, host, port)
        except OSError as error:
            raise InputError(f"--port {port}: not free on {host}: {error.strerror}") from None
        with server:
            address = f"http://{host}:{server.server_address[1]}"
            click.echo(f"ett: {version.label} on {address}/predict", err=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                pass
