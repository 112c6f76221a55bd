"""`ett checkpoint plan` as a user types it."""

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main
from torchett.runs import events
from torchett.runs.imported import write_run

BLOG = ("--blocking", "15", "--failures-per-day", "3")


@pytest.fixture
def ett(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))

    def call(*args: str) -> Result:
        return CliRunner().invoke(main, ["checkpoint", "plan", *args])

    return call


def recorded(tmp_path: Path, lines: list[dict[str, Any]], name: str = "job") -> None:
    head = {"event": "job", "format": "events/1", "job": name, "ranks": 2}
    history = events.parse([json.dumps(line) for line in (head, *lines)])
    write_run(history, tmp_path / "runs" / name)


def attempt(
    number: int, begin: float, *, first: int, saves: int, every: float = 300, **end: Any
) -> list[dict[str, Any]]:
    """Steps of 30 s and a save (12 s and 15 s on the two ranks, durable 40 s later)."""
    lines: list[dict[str, Any]] = [{"event": "attempt_start", "attempt": number, "t": begin}]
    t, step = begin + 100, first
    for _ in range(saves):
        for _ in range(round(every / 30)):
            for rank in (0, 1):
                at = {"attempt": number, "rank": rank, "t0": t, "t1": t + 30}
                lines.append({"event": "step", "step": step, **at})
            t, step = t + 30, step + 1
        for rank, took in ((0, 12), (1, 15)):
            at = {"attempt": number, "rank": rank, "t0": t, "t1": t + took}
            lines.append({"event": "span", "account": "checkpoint_blocked", **at})
        t += 15
        saved = {"event": "checkpoint", "attempt": number, "step": step - 1, "durable": t + 40}
        lines.append(saved)
    return [*lines, {"event": "attempt_end", "attempt": number, "t": t + 100, **end}]


def test_the_published_example(ett: Any) -> None:
    found = json.loads(ett(*BLOG, "--json").output)
    assert found["interval_s"] == pytest.approx(919.5, abs=0.05)
    assert found["interval_simple_s"] == pytest.approx(929.5, abs=0.05)
    assert found["waste_percent"] == pytest.approx(3.2, abs=0.05)
    parts = found["checkpointing_percent"], found["lost_percent"], found["recovering_percent"]
    assert sum(parts) == pytest.approx(found["waste_percent"])


def test_the_curve_is_the_published_figure(ett: Any) -> None:
    """Failures × interval / 2 + day / interval × blocking, of a day, for 15 s and 3 a day."""
    for point in json.loads(ett(*BLOG, "--json").output)["curve"]:
        interval_s = point["interval_s"]
        figure = 100 * (3 * interval_s / 2 + 86400 / interval_s * 15) / 86400
        assert point["simple_percent"] == pytest.approx(figure)
        if interval_s > 300:  # where saves are rare, the exact curve is hardly another
            assert point["waste_percent"] == pytest.approx(figure, rel=0.06)


def test_times_carry_units_and_a_rate_is_a_rate(ett: Any) -> None:
    one = json.loads(ett(*BLOG, "--json").output)
    other = json.loads(ett("--blocking", "15000ms", "--mtbf", "8h", "--json").output)
    assert one == other
    lagging = json.loads(ett(*BLOG, "--upload", "2min", "--recover", "0.1 h", "--json").output)
    assert lagging["interval_s"] == one["interval_s"]
    assert lagging["waste_percent"] > one["waste_percent"] + 1.5
    assert (lagging["upload_s"], lagging["recover_s"]) == (120, 360)


def test_the_page_says_and_shows_it(ett: Any) -> None:
    page = ett(*BLOG).output
    assert "Save every 919.5 s of training (15.3 min): 3.19% of the time is wasted" in page
    assert "929.5 s and 3.23%" in page
    assert page.count("●") == 1
    for name in ("both", "lost work", "checkpointing"):
        assert name in page
    assert "recovery" not in page
    assert "apart" not in page
    slow = ett(*BLOG, "--upload", "2000").output
    assert "saves cannot be less than 33.1 min apart" in slow


def test_it_never_says_to_save_faster_than_uploads_go_through(ett: Any, tmp_path: Path) -> None:
    slow = ("--blocking", "15", "--mtbf", "8h", "--upload", "9h", "--recover", "20h")
    found = json.loads(ett(*slow, "--json").output)
    assert found["interval_s"] == found["least_interval_s"] == 9 * 3600 - 15
    assert found["optimum_s"] == pytest.approx(919.5, abs=0.05)
    page = ett(*slow, "--svg", str(tmp_path / "plan.svg")).output
    assert page.startswith("Save every 32385.0 s of training (9.0 h): ")
    said = "saves cannot be less than 9.0 h apart and the optimum, 919.5 s, is out of reach"
    assert said in " ".join(page.split())
    assert "the least that uploads allow" in (tmp_path / "plan.svg").read_text()


def test_the_picture_stands_alone(ett: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    assert ett(*BLOG, "--recover", "600", "--svg", str(file)).exit_code == 0
    picture = ET.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    said = {text.text for text in picture.iter(f"{space}text")}
    assert {"both", "lost work", "checkpointing", "every 15.3 min"} <= said
    assert len(list(picture.iter(f"{space}path"))) == 3
    assert "href" not in file.read_text()


def test_a_recorded_run_says_what_its_own_interval_cost(ett: Any, tmp_path: Path) -> None:
    lines = attempt(0, 0, first=0, saves=60, outcome="failed", cause="gpu_ecc")
    lines += attempt(1, 20_000, first=600, saves=40, outcome="preempted")
    lines += attempt(2, 40_000, first=1000, saves=10, outcome="failed", cause="user_cancel")
    lines += attempt(3, 50_000, first=1100, saves=20, outcome="success")
    recorded(tmp_path, lines)
    found = json.loads(ett("--run", "job", "--json").output)
    run = found["run"]
    assert run["saves"] == 130
    assert run["blocking_s"] == pytest.approx(15)  # of the two ranks the longer
    assert run["upload_s"] == pytest.approx(40)
    assert run["interval_s"] == pytest.approx(300)
    assert run["failures"] == 1  # a preemption gave notice, a cancel was meant
    assert run["exposure_s"] == pytest.approx(130 * 315 + 4 * 200)
    assert found["mtbf_s"] == pytest.approx(run["exposure_s"])
    assert found["recover_s"] == pytest.approx(run["recover_s"])
    assert run["over_optimum_percent"] == pytest.approx(
        run["waste_percent"] - found["waste_percent"]
    )
    assert run["over_optimum_percent"] > 1
    page = ett("--run", "job").output
    assert "◆ it saved every 5.0 min" in page
    assert "130 saves, 1 failure in" in page


def test_what_is_given_beats_what_was_recorded(ett: Any, tmp_path: Path) -> None:
    recorded(tmp_path, attempt(0, 0, first=0, saves=5, outcome="success"))
    found = json.loads(ett("--run", "job", *BLOG, "--upload", "0", "--json").output)
    assert (found["interval_s"], found["upload_s"]) == (pytest.approx(919.5, abs=0.05), 0)


def test_a_run_without_failures_falls_back_on_a_prior(ett: Any, tmp_path: Path) -> None:
    recorded(tmp_path, attempt(0, 0, first=0, saves=5, outcome="success"))
    found = json.loads(ett("--run", "job", "--json").output)
    assert found["mtbf_s"] == pytest.approx(8 * 3600 + 5 * 315 + 200, rel=1e-3)
    assert "one in 8.0 h was assumed" in ett("--run", "job").output
    assert "was assumed" not in ett("--run", "job", "--mtbf", "4h").output


def test_a_save_that_never_was_durable_counts_as_a_save(ett: Any, tmp_path: Path) -> None:
    lines = attempt(0, 0, first=0, saves=3, outcome="failed")
    assert lines[-2]["event"] == "checkpoint"
    del lines[-2]  # killed before the last upload was through
    recorded(tmp_path, lines)
    run = json.loads(ett("--run", "job", "--json").output)["run"]
    assert (run["saves"], run["blocking_s"]) == (3, 15)
    assert run["upload_s"] == pytest.approx(40)
    assert run["interval_s"] == pytest.approx(300)


def ready(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempt, with a checkpointer that blocks its first step twice to get ready."""
    number, t = lines[0]["attempt"], lines[0]["t"] + 110
    at = [{"rank": rank, "t0": t + i, "t1": t + i + 0.5} for rank in (0, 1) for i in (0, 1)]
    span = {"event": "span", "account": "checkpoint_blocked", "attempt": number}
    return [lines[0], *(span | one for one in at), *lines[1:]]


def ended(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempt, with a last step that is saved when the loop is over, in 20 s."""
    number, t = lines[0]["attempt"], lines[-1]["t"] - 100
    step = max([line["step"] for line in lines if line["event"] == "step"], default=-1) + 1
    for rank in (0, 1):
        at = {"attempt": number, "rank": rank}
        lines.insert(-1, {"event": "step", "step": step, **at, "t0": t, "t1": t + 30})
        final = {"event": "span", "account": "final_checkpoint"}
        lines.insert(-1, {**final, **at, "t0": t + 30, "t1": t + 50})
    saved = {"event": "checkpoint", "attempt": number, "step": step, "durable": t + 49}
    return [*lines[:-1], saved, lines[-1]]


def test_a_checkpointer_that_gets_ready_saves_nothing(ett: Any, tmp_path: Path) -> None:
    lines = ready(attempt(0, 0, first=0, saves=3, outcome="failed"))
    lines += ready(attempt(1, 5_000, first=30, saves=0, outcome="failed"))
    recorded(tmp_path, lines + ready(attempt(2, 9_000, first=30, saves=2, outcome="success")))
    run = json.loads(ett("--run", "job", "--json").output)["run"]
    assert (run["saves"], run["blocking_s"]) == (5, 15)
    assert run["interval_s"] == pytest.approx(300)


def test_a_save_of_the_first_step_is_a_save(ett: Any, tmp_path: Path) -> None:
    recorded(tmp_path, attempt(0, 0, first=0, saves=3, every=30, outcome="success"))
    run = json.loads(ett("--run", "job", "--json").output)["run"]
    assert (run["saves"], run["blocking_s"]) == (3, 15)


def test_a_save_after_the_loop_says_nothing_of_those_inside(ett: Any, tmp_path: Path) -> None:
    recorded(tmp_path, ended(attempt(0, 0, first=0, saves=3, outcome="success")))
    run = json.loads(ett("--run", "job", "--json").output)["run"]
    assert (run["saves"], run["blocking_saves"], run["blocking_s"]) == (4, 3, 15)
    assert run["interval_s"] == pytest.approx(300)


def test_a_run_that_saved_only_at_its_end_is_refused(ett: Any, tmp_path: Path) -> None:
    lines = attempt(0, 0, first=0, saves=1, outcome="success")
    unsaved = [line for line in lines if line["event"] not in ("span", "checkpoint")]
    recorded(tmp_path, ready(ended(unsaved)))
    found = ett("--run", "job")
    assert found.exit_code == 2
    assert "job: 1 save, and how long one blocks the loop is not recorded" in found.output
    page = ett("--run", "job", "--blocking", "15").output
    assert "job: 1 save, 0 failures in" in page
    assert "its own interval is not known" in page
    assert "known from one save only" not in page


def test_one_save_is_said_to_be_little_to_go_by(ett: Any, tmp_path: Path) -> None:
    recorded(tmp_path, attempt(0, 0, first=0, saves=1, outcome="success"))
    page = ett("--run", "job").output
    assert "job: 1 save, 0 failures in" in page
    assert "how long a save blocks is known from one save only" in page


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--blocking", "15"], "expected --failures-per-day NUMBER or --mtbf TIME or --run RUN"),
        (["--mtbf", "8h"], "expected --blocking TIME or --run RUN"),
        (["--blocking", "soon", "--mtbf", "8h"], "--blocking: expected a time such as 15, 200ms"),
        (["--blocking", "0", "--mtbf", "8h"], "--blocking: expected a time above 0, found '0'"),
        (["--blocking", "-3", "--mtbf", "8h"], "--blocking: expected a time such as"),
        (["--blocking", "1e999", "--mtbf", "8h"], "--blocking: expected"),
        (["--blocking", "15", "--failures-per-day", "0"], "expected a number above 0, found '0'"),
        (["--blocking", "15", "--failures-per-day", "nan"], "expected a number above 0"),
        ([*BLOG, "--mtbf", "8h"], "expected --failures-per-day or --mtbf, found both"),
        ([*BLOG, "--svg", "/no/such/folder/a.svg"], "/no/such/folder/a.svg: not writable"),
        (["--run", "nobody"], "nobody: no such run"),
    ],
)
def test_bad_input_is_one_line(ett: Any, args: list[str], said: str) -> None:
    found = ett(*args)
    assert found.exit_code == 2
    assert said in found.output
    assert found.output.count("\n") == 1


def test_a_run_that_never_saved_is_refused(ett: Any, tmp_path: Path) -> None:
    recorded(tmp_path, attempt(0, 0, first=0, saves=0, outcome="success"))
    found = ett("--run", "job")
    assert found.exit_code == 2
    assert "job: no save is recorded; expected --blocking TIME" in found.output


def test_two_tiers_have_an_interval_each() -> None:
    """Memory's by the failures it survives, storage's by the rest: √(2BM/share)."""
    words = ["--blocking", "15", "--mtbf", "8h", "--memory-blocking", "50ms"]
    done = CliRunner().invoke(
        main, ["checkpoint", "plan", *words, "--memory-share", "80", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    tiers = found["tiers"]
    assert tiers["memory_interval_s"] == pytest.approx(math.sqrt(2 * 0.05 * 28_800 / 0.8), rel=0.01)
    assert tiers["storage_interval_s"] == pytest.approx(math.sqrt(2 * 15 * 28_800 / 0.2), rel=0.02)
    assert found["interval_s"] == pytest.approx(tiers["storage_interval_s"])
    assert tiers["waste_percent"] < tiers["waste_without_memory_percent"] / 1.5
    shown = CliRunner().invoke(main, ["checkpoint", "plan", *words])
    assert "a snapshot in memory every" in shown.output


@pytest.mark.parametrize("words", [["--memory-share", "50"], ["--memory-share", "100"]])
def test_a_share_that_makes_no_sense_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(
        main, ["checkpoint", "plan", "--blocking", "1", "--mtbf", "1h", *words]
    )
    assert done.exit_code == 2
    assert "--memory-share" in done.output
