"""`ett serve`: runs in a browser."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.fleet.opened import open_fleet
from torchett.cli.output import speaks_plainly
from torchett.model.errors import InputError, RunError

if TYPE_CHECKING:
    import socket

    from torchett.runs.reader import RunReader
    from torchett.serve.runs import Details


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8642,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on.",
)
@click.option(
    "--fleet",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Show this fleet and receive shipped runs (default: $ETT_FLEET, else only runs).",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain, PEM.")
@click.option(
    "--tls-key", type=click.Path(path_type=Path), help="Private key of the certificate, PEM."
)
@speaks_plainly
def serve(
    folder: Path | None,
    host: str,
    port: int,
    fleet: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Show the runs of FOLDER (without it: of this folder, or $ETT_RUNS) in a browser.

    With --fleet: show that fleet, and receive what `ett run --ship` sends. On an address other
    than loopback, every request needs a token (`ett fleet token add`).
    """
    try:
        import uvicorn

        from torchett.serve.access import Access, ReadersOnly
        from torchett.serve.app import make_app
        from torchett.serve.ingest import Ingest
        from torchett.serve.otlp import trace_route
    except ImportError as error:
        raise RunError(
            f"serve: {error.name} is not installed; pip install 'torchett[serve]'"
        ) from None
    from torchett.record.identity import runs_folder

    place = fleet or (Path(os.environ["ETT_FLEET"]) if os.environ.get("ETT_FLEET") else None)
    runs = runs_folder(os.environ).absolute() if folder is None else folder
    if not runs.is_dir() and (folder is not None or place is None):
        raise InputError(f"{runs}: expected a folder of runs, found none")
    loopback = is_loopback(host)
    if place is None and not loopback:
        raise InputError(f"--host {host}: pages need tokens there: add --fleet DIR, which has them")
    ingest, guard, routes = None, None, []
    if place is not None:
        place = _made_ready(place, host, loopback)
        guard = Access(place / "fleet.db", loopback=loopback)
        ingest = Ingest(place, guard)
        routes = [*ingest.routes, trace_route(place, guard)]
    tls = tls_files(tls_cert, tls_key)
    with _listening(host, port) as listener:
        at = _url("https" if tls else "http", host, listener.getsockname()[1])
        click.echo(f"ett: {place if folder is None and place else runs} on {at}", err=True)
        app: Any = make_app(
            None if folder is None and place is not None else runs,
            details,
            routes,
            fleet=place,
            may_act=loopback,
        )
        config = uvicorn.Config(
            app if guard is None else ReadersOnly(app, guard),
            log_level="warning",
            access_log=False,
            limit_concurrency=1000,
            **tls,
        )
        if ingest is not None:
            click.echo(f"ett: takes in what is shipped to {at}, into {place}", err=True)
        _run_server(uvicorn.Server(config), listener, ingest)


def _made_ready(place: Path, host: str, loopback: bool) -> Path:
    """The fleet's folder, made if it is missing; beyond loopback it needs a token."""
    with open_fleet(place, make=True) as opened:
        if not loopback and not opened.state.one("SELECT 1 FROM tokens"):
            raise InputError(f"--host {host}: make a token first: ett fleet token add NAME …")
        return opened.folder


def _run_server(server: Any, listener: "socket.socket", ingest: Any) -> None:
    """Serve until the process receives a signal; the intake of records begins and ends with it."""
    if ingest is not None:
        ingest.start()
    try:
        server.run(sockets=[listener])
    finally:
        if ingest is not None:
            ingest.stop()


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_files(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """uvicorn's settings for these files; InputError where they are no certificate and key."""
    if cert is None and key is None:
        return {}
    if cert is None or key is None:
        raise InputError("ett serve: expected both --tls-cert and --tls-key, found one")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        said = error.strerror or error
        raise InputError(f"{cert}, {key}: expected a certificate and its key: {said}") from None
    return {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}


def _listening(host: str, port: int) -> "socket.socket":
    import socket

    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InputError(f"--port {port}: not free on {host}: {error.strerror}") from None
    return listener


def details(reader: "RunReader") -> "Details":
    """What levers and logs know of a run beside its ledger."""
    from torchett.cli.advise.facts import three_best
    from torchett.cli.checkpoint.restores import restores_of
    from torchett.cli.compile.doctor import compiles_of
    from torchett.cli.publish.of_run import publish_asides
    from torchett.failures.rules import shipped_rules
    from torchett.levers.checkpoint.restore.report import restore_lines
    from torchett.levers.compile.cache.report import cache_lines, standby_lines
    from torchett.levers.compile.observe.summary import summary
    from torchett.restarts.sources import sources
    from torchett.serve.runs import Details

    reader.asides += cache_lines(reader.facts("compile_cache"))
    reader.asides += standby_lines(reader.facts("standby_model"))
    reader.asides += publish_asides(reader)
    reader.asides += restore_lines(*restores_of(reader, reader.ledger()))
    evidence: dict[int, str] = {}
    failed = [a.tenure.attempt.number for a in reader.ledger().attempts if a.tenure.failed]
    if failed:
        try:
            verdict = sources(shipped_rules()).of_run(reader.run)
        except (InputError, RunError):
            verdict = None
        if verdict is not None and verdict.evidence is not None:
            line = verdict.evidence.line.text
            if line != verdict.category:  # the cause itself is on the page already
                evidence[failed[-1]] = line
    tiers = {
        "restored": sum(1 for _ in reader.facts("checkpoint_restored")),
        "flushed before an end": sum(1 for _ in reader.facts("checkpoint_flushed")),
    }
    return Details(
        compiles=summary(compiles_of(reader)),
        evidence=evidence,
        tiers={name: count for name, count in tiers.items() if count},
        advice=three_best(reader),
    )
