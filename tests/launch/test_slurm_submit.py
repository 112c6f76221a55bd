"""`ett slurm submit`: the batch script it writes, and what sbatch is handed."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchett.cli.main import main


def script(*words: str, env: dict[str, str] | None = None) -> str:
    done = CliRunner().invoke(main, ["slurm", "submit", "--print", *words], env=env)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_script_gets_a_torchrun_a_warning_and_a_requeue(tmp_path: Path) -> None:
    runs = {"ETT_RUNS": str(tmp_path)}
    said = script("--gpus", "8", "--qos", "low", "--", "train.py", "--name", "a b", env=runs)
    lines = said.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in ("--requeue", "--signal=USR1@60", "--open-mode=append", "--gres=gpu:8"):
        assert f"#SBATCH {option}" in lines
    assert "#SBATCH --qos=low" in lines
    assert f"#SBATCH --output={tmp_path}/train-%j.log" in lines
    assert f"export ETT_RUNS={tmp_path}" in lines
    assert lines[-1].startswith("srun ")
    assert "torchrun --standalone --nproc-per-node=8 train.py --name 'a b'" in lines[-1]
    assert subprocess.run(["bash", "-n"], input=said, text=True).returncode == 0


def test_several_nodes_meet_on_the_first() -> None:
    last = script("--nodes", "2", "--gpus", "4", "--", "train.py").splitlines()[-1]
    assert '--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint="$(hostname):29500"' in last


def test_a_rendezvous_of_the_users_own_is_kept() -> None:
    words = ("torchrun", "--nnodes=2", "--master-addr=h", "train.py")
    last = script("--nodes", "2", "--", *words).splitlines()[-1]
    assert last.endswith("torchrun --nnodes=2 --master-addr=h train.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected a command after --"),
        (["--sbatch", "mem=0", "--", "a.py"], "--sbatch: expected an option such as --mem=0"),
        (["--sbatch", "--a\nrm -rf /", "--", "a.py"], "--sbatch: expected an option"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["slurm", "submit", "--print", *words])
    assert done.exit_code == 2
    assert said in done.output


def test_sbatch_is_handed_the_script_and_its_number_comes_back(tmp_path: Path) -> None:
    fake = tmp_path / "sbatch"
    fake.write_text(f"#!/bin/bash\ncat > {tmp_path}/script\necho '4711;cluster'\n")
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ETT_RUNS": str(tmp_path / "runs")}
    words = ["slurm", "submit", "--json", "--", "train.py"]
    done = CliRunner().invoke(main, words, env=env)
    assert json.loads(done.output)["job"] == "4711"
    assert (tmp_path / "script").read_text() == json.loads(done.output)["script"]
    assert (tmp_path / "runs").is_dir()  # where the log goes


def test_what_sbatch_refuses_is_said_in_one_line(tmp_path: Path) -> None:
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/bash\necho 'sbatch: error: Invalid qos specification' >&2\nexit 1\n")
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ETT_RUNS": str(tmp_path)}
    done = CliRunner().invoke(main, ["slurm", "submit", "--", "train.py"], env=env)
    assert done.exit_code == 2
    assert "sbatch: sbatch: error: Invalid qos" in done.output
