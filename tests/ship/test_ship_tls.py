"""Beyond this machine: TLS by files, a token for everything, and no server without them."""

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.fleet import Fleet
from torchett.fleet.tokens import add_token
from torchett.ship.backlog import Backlog
from torchett.ship.client import RefusedError, Server, Shipper

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long  # noqa: E402


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except OSError:
        pytest.skip("no openssl")
    return cert, key


def test_a_run_is_shipped_over_tls_by_token(files: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = files
    with Fleet.open(tmp_path / "fleet") as fleet:
        token = add_token(fleet.state, "a", "write", "alpha")
    (tmp_path / "ett-runs").mkdir()
    command = [sys.executable, "-m", "torchett.cli.main", "serve", str(tmp_path / "ett-runs")]
    command += ["--fleet", str(tmp_path / "fleet"), "--host", "0.0.0.0", "--port", "0"]
    command += ["--tls-cert", str(cert), "--tls-key", str(key)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        assert "https://0.0.0.0:" in line
        port = int(line.rsplit(":", 1)[1])
        url = f"https://localhost:{port}"
        run = tmp_path / "runs" / "gpt"
        Long(steps=100, restarts=0).write_records(run)

        def shipper(**env: str) -> Shipper:
            return Shipper(Backlog(run), Server.of(url, env))

        assert shipper(ETT_SHIP_CA=str(cert), ETT_SHIP_TOKEN=token).flush(20)
        assert (tmp_path / "fleet" / "runs" / "alpha" / "gpt" / "attempts-0.jsonl").exists()
        assert not shipper(ETT_SHIP_TOKEN=token).flush(5)  # an authority that is not trusted
        with pytest.raises(RefusedError, match="expected a token"):
            shipper(ETT_SHIP_CA=str(cert)).flush(5)
        import ssl

        trusting = ssl.create_default_context(cafile=str(cert))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/jobs", context=trusting)
    finally:
        server.kill()
        server.wait()


def test_no_server_beyond_loopback_without_tokens(files: tuple[Path, Path], tmp_path: Path) -> None:
    cert, _ = files
    (tmp_path / "runs").mkdir()
    fleet = ["--fleet", str(tmp_path / "fleet")]
    for args, said in (
        (["--host", "0.0.0.0"], "pages need tokens"),
        (["--host", "0.0.0.0", *fleet], "make a token first"),
        ([*fleet, "--tls-cert", str(cert)], "expected both"),
        ([*fleet, "--tls-cert", str(cert), "--tls-key", str(cert)], "expected a certificate"),
    ):
        done = CliRunner().invoke(main, ["serve", str(tmp_path / "runs"), *args])
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://x:99999", "http://x:port", "x:80", "http://x/?q=1"]
)
def test_what_is_no_url_is_one_line(url: str, tmp_path: Path) -> None:
    from torchett.model.errors import InputError

    with pytest.raises(InputError, match="expected http"):
        Server.of(url, {})
