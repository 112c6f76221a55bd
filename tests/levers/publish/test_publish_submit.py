"""Workers as jobs of Slurm: the script, and what sbatch is given."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main


def ett(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["publish", "submit", *words], env=env)


def test_the_script_has_what_was_asked_and_is_one_that_a_shell_reads(tmp_path: Path) -> None:
    spool = str(tmp_path / "my spool")
    asked = ("--workers", "4", "--cpus", "8", "--memory", "16G", "--time", "1:00:00")
    more = ("--account", "team", "--sbatch", "--nice=100", "--setup", "module load python")
    said = ett(spool, *asked, *more, "--mlflow", "http://mlflow:5000", "--print")
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    for option in ("--array=1-4", "--cpus-per-task=8", "--mem=16G", "--time=1:00:00"):
        assert f"#SBATCH {option}" in lines
    assert {"#SBATCH --account=team", "#SBATCH --nice=100", "module load python"} <= set(lines)
    assert f"publish work '{spool}' --drain --mlflow http://mlflow:5000" in lines[-1]
    assert subprocess.run(["bash", "-n"], input=said.output, text=True).returncode == 0


def test_sbatch_is_given_the_script_and_its_number_is_said(tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ncat > {tmp_path}/given\necho '4711;cluster'\n")
    sbatch.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = json.loads(ett(str(tmp_path / "spool"), "--json", env=path).output)
    assert said["job"] == "4711"
    assert (tmp_path / "given").read_text() == said["script"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--sbatch", "mem=0"), "--sbatch: expected an option such as --mem=16G, found 'mem=0'"),
        ((), "expected Slurm's sbatch on the path, found none: --print shows the script"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    said = ett("spool", *words, env={"PATH": str(tmp_path)})
    assert said.exit_code == 2
    assert said.output.count("\n") == 1
    assert sentence in said.output
