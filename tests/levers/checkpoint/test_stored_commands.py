"""ett checkpoint ls, verify, prune, diff."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from trainer import Training, flip

from torchett.cli.main import main
from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.errors import CheckpointError


@pytest.fixture
def where(tmp_path: Path) -> Path:
    training = Training()
    ckpt = Checkpointer(tmp_path / "c", every=2, keep=5)
    training.run(ckpt, 6, at=lambda step: ckpt.wait() and None)
    ckpt.close()
    return tmp_path / "c"


def ett(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["checkpoint", *map(str, args)])
    assert done.exit_code == code, done.output
    return done.output


def test_ls_lists_the_newest_first(where: Path) -> None:
    told = json.loads(ett("ls", where, "--json"))["checkpoints"]
    assert [row["step"] for row in told] == [5, 3, 1]
    assert [row["latest"] for row in told] == [True, False, False]
    assert told[0]["bytes"] > 0
    assert "step-00000005" in ett("ls", where)


def test_verify_reads_every_byte(where: Path) -> None:
    assert ett("verify", where).count("ok") == 3
    flip(where / "step-00000003" / "__0_0.distcp", 99)
    said = ett("verify", where, code=1)
    assert said.count("ok") == 2
    assert "step-00000003  __0_0.distcp has CRC" in said


def test_prune_verifies_what_it_keeps(where: Path) -> None:
    flip(where / "step-00000005" / "__0_0.distcp", 99)
    said = ett("prune", where, "--keep", 1, "--dry-run")
    assert said == "step-00000001  would be deleted\n"
    ett("prune", where, "--keep", 1)
    assert sorted(p.name for p in where.glob("step-*")) == ["step-00000003", "step-00000005"]


def test_diff_names_what_differs(where: Path) -> None:
    told = json.loads(
        ett("diff", where / "step-00000003", where / "step-00000005", "--json", code=1)
    )
    by_name = {row["name"]: row for row in told["differences"]}
    assert by_name["model.0.weight"]["most"] > 0
    assert by_name["optimizer.state.model.0.weight.step"]["most"] == 2.0
    assert "optimizer.param_groups.0.betas" not in by_name
    assert ett("diff", where, where).startswith("0 of ")


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_nothing_there_is_one_line_and_exit_2(tmp_path: Path, command: str) -> None:
    done = CliRunner().invoke(main, ["checkpoint", command, str(tmp_path)])
    assert done.exit_code == 2
    assert "has no checkpoints" in done.output


@pytest.mark.parametrize("command", ["ls", "verify", "prune", "diff"])
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("{tmp}/file.txt", "file.txt: expected a folder for checkpoints, found a file"),
        ("{tmp}/file.txt/c", "file.txt: expected a folder for checkpoints, found a file"),
        ("foo://a/b", "cannot be opened: Protocol not known: foo"),
        ("s3://a/b", "cannot be opened: Install s3fs"),
    ],
)
def test_an_address_that_cannot_be_opened_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, address: str, said: str
) -> None:
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(registry._registry, "s3", raising=False)  # nor by a test before this one
    (tmp_path / "file.txt").write_text("no folder")
    where = address.format(tmp=tmp_path)
    done = CliRunner().invoke(main, ["checkpoint", command, *[where] * (1 + (command == "diff"))])
    assert done.exit_code == 2
    assert said in done.output
    assert done.output.count("\n") == 1


def test_a_store_that_refuses_is_one_line_and_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens at this address, and there are no credentials either."""
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = CliRunner().invoke(main, ["checkpoint", "ls", "s3://bucket/run"])
    assert done.exit_code == 2, done.output
    assert done.output.startswith("ett: storage cannot be used: NoCredentialsError: ")
    assert done.output.count("\n") == 1


@pytest.mark.parametrize("name", ["file.txt", "file.txt/c"])
def test_a_checkpointer_refuses_a_file_for_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("no folder")
    with pytest.raises(CheckpointError, match="expected a folder for checkpoints, found a file"):
        Checkpointer(tmp_path / name)
