"""What the pages in docs/ tell a reader to do works when it is done to the letter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shell(command: str, folder: Path) -> str:
    """The output of a shell block, run in this folder with the `ett` of this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {name: value for name, value in os.environ.items() if not name.startswith("ETT_")}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.e2e
def test_the_first_run_works_to_the_letter(tmp_path: Path) -> None:
    (script,) = blocks("first-run.md", "python")
    (tmp_path / "train.py").write_text(script)
    run, report, as_json, crash, ranks = blocks("first-run.md", "sh")
    assert "trained to a loss of" in shell(run, tmp_path)
    assert "effective" in shell(report, tmp_path)
    assert '"last_step": 499' in shell(as_json, tmp_path)
    crashed = shell(crash, tmp_path)
    assert "SIGKILL" in crashed
    assert "Number of Failures 1" in crashed
    assert "2 ranks" in shell(ranks + "\nett report ranks", tmp_path)


@pytest.mark.e2e
def test_the_page_on_fsdp2_works_to_the_letter(tmp_path: Path) -> None:
    (script,) = blocks("fsdp2.md", "python")
    (tmp_path / "train.py").write_text(script)
    (commands,) = blocks("fsdp2.md", "sh")
    said = shell(commands, tmp_path)
    assert "60 steps done, the last attempt began at step 30" in said
    assert "Number of Failures 1" in said


def test_the_examples_of_the_advice_page_work(tmp_path: Path) -> None:
    for command in blocks("advice.md", "sh"):
        if command.startswith("ett simulate job --nodes"):  # the others: tests/advise
            assert "effective expected" in shell(command, tmp_path)


@pytest.mark.parametrize("page", ["install.md"])
def test_the_check_of_an_installation_works(page: str, tmp_path: Path) -> None:
    check = blocks(page, "sh")[-1]
    assert "hello" in shell(check, tmp_path)


def test_the_manifest_for_kubernetes_is_valid() -> None:
    yaml = pytest.importorskip("yaml")
    validate = pytest.importorskip("kubernetes_validate")
    manifest = (ROOT / "examples" / "kubernetes" / "train.yaml").read_text()
    for resource in yaml.safe_load_all(manifest):
        validate.validate(resource, "1.37", strict=True)
