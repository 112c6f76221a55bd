"""`ett schedule simulate`: what a user types, sees, and is told."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main


def ett(*args: str) -> Result:
    return CliRunner().invoke(main, ["schedule", "simulate", *args])


def test_it_works_without_a_trace() -> None:
    result = ett("--jobs", "2000", "--load", "0.7")
    assert result.exit_code == 0, result.output
    for word in ("static", "youngest-first", "ours", "quota", "2,000 jobs"):
        assert word in result.output


def test_json_holds_every_policy_and_load() -> None:
    args = ("--load", "0.6", "--load", "0.7", "--policy", "ours", "--policy", "fifo")
    found = json.loads(ett("--jobs", "2000", "--seeds", "2", *args, "--json").output)
    assert [(row["policy"], row["load"]) for row in found["policies"]] == [
        ("ours", 0.6),
        ("fifo", 0.6),
        ("ours", 0.7),
        ("fifo", 0.7),
    ]
    assert found["jobs"] == 2000
    assert sum(found["quotas"].values()) == found["gpus"]


def test_the_plot_has_a_bar_for_each_policy_and_figure(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    assert ett("--jobs", "2000", "--load", "0.7", "--plot", str(plot)).exit_code == 0
    texts = [node.text for node in ElementTree.parse(plot).iter() if node.tag.endswith("text")]
    assert texts.count("ours") == texts.count("static") == 6


def test_a_trace_of_ones_own_is_played(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = [f"{60 * i},{'ab'[i % 2]},{1 + i % 4},{600 + i}" for i in range(200)]
    trace.write_text("\n".join(["submit,vc,gpus,run_s", *rows]))
    found = json.loads(ett(str(trace), "--gpus", "16", "--load", "0.9", "--json").output)
    assert (found["trace"], found["jobs"], found["gpus"]) == ("mine", 200, 16)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("none.csv",), "none.csv: expected a readable CSV file"),
        (("--policy", "best"), "--policy: expected one of static"),
        (("--load", "0"), "--load: expected a number above 0"),
        (("--load", "nan"), "--load: expected a number above 0"),
        (("--gpus", "8"), "a job asks for 64 GPUs, the cluster has 8"),
        (("--checkpoint", "soon"), "--checkpoint: expected a time such as"),
        (("--plot", "/nowhere/plot.svg"), "/nowhere/plot.svg: not writable"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: tuple[str, ...], said: str) -> None:
    result = ett(*args)
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.splitlines()) == 1
