"""The recipe and the commands of docs/publish.md work to the letter."""

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from publish_shelf import one_rank_saves

from torchett.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs" / "publish.md").read_text()


def test_the_recipe_of_the_page_is_published_and_every_command_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = (
        block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "Recipe(" in block
    )
    (tmp_path / "publishing.py").write_text(source)
    anchor = one_rank_saves(tmp_path / "checkpoints", torch.nn.Linear(8, 2), step=3)
    monkeypatch.chdir(tmp_path)

    def ett(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["publish", *words], env={"ETT_REGISTRY": "registry"})
        assert done.exit_code == code, done.output
        return done.output

    ett("add", "spool", "--recipe", "publishing.py:recipe", "--anchor", anchor, "--name", "dlrm")
    assert "published as dlrm@1" in ett("work", "spool", "--drain", "--poll", "0.1")
    (job,) = json.loads(ett("jobs", "spool", "--json"))["jobs"]
    assert (job["state"], job["told"]["version"]) == ("done", "dlrm@1")
    assert "dlrm@1" in ett("jobs", "spool")
    ett("fetch", "dlrm@live", "fetched")
    assert (tmp_path / "fetched" / "load.py").exists()
    assert "dlrm@1 holds weights only" in ett("serve-check", "dlrm@live", code=2)
    done = CliRunner().invoke(main, ["import", f"spool/records/{job['id']}.jsonl", "publish-dlrm"])
    assert done.exit_code == 0, done.output

    group = main.commands["publish"]
    named = set(re.findall(r"^ett publish (\S+)", PAGE, re.M))
    assert named <= set(group.commands)  # type: ignore[attr-defined]
    assert named >= {"work", "jobs", "ls", "show", "promote", "rollback", "verify", "gc"}
