"""`ett simulate job`: numbers, a surface where failures are unknown, one line for bad input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchett.cli.main import main

JOB = ["simulate", "job", "--blocking", "15", "--restart", "5min"]


def test_a_rate_gives_one_number_with_its_interval() -> None:
    words = [*JOB, "--mtbf", "3h", "--train", "2d", "--json"]
    found = json.loads(CliRunner().invoke(main, words).output)
    low, high = found["interval_80_percent"]
    assert low < found["ett_percent"] < high
    assert found["monte_carlo_percent"] == pytest.approx(found["ett_percent"], rel=0.02)
    assert sum(found["shares"].values()) == pytest.approx(1)


def test_the_rates_of_papers_and_of_days_are_the_same_thing() -> None:
    by_day = [*JOB, "--failures-per-day", "7.78", "--json"]
    by_nodes = [*JOB, "--nodes", "2048", "--failures-per-1000-node-days", "3.8", "--json"]
    one, other = (json.loads(CliRunner().invoke(main, w).output) for w in (by_day, by_nodes))
    assert one["ett_percent"] == pytest.approx(other["ett_percent"], abs=0.01)


def test_without_a_rate_a_surface_is_shown(tmp_path: Path) -> None:
    plot = tmp_path / "surface.svg"
    done = CliRunner().invoke(main, [*JOB, "--plot", str(plot)])
    assert "no rate of failures was given or measured" in done.output
    assert plot.read_text().startswith("<svg")
    found = json.loads(CliRunner().invoke(main, [*JOB, "--json"]).output)
    assert found["ett_percent"] is None
    assert len(found["surface"]["ett_percent"]) == len(found["surface"]["mtbf_s"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mtbf", "0"], "--mtbf: expected a time above 0, found '0'"),
        (["--mtbf", "3h", "--failures-per-day", "2"], "expected one of --mtbf"),
        (["--mtbf", "60s", "--mtbf-counts-downtime"], "expected above the restart's 300 s"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str) -> None:
    done = CliRunner().invoke(main, [*JOB, *words])
    assert done.exit_code == 2
    assert says in done.output
    assert len(done.output.strip().splitlines()) == 1
