"""The predicted gains of levers: from the ledger alone, with intervals, no second won twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from advised_jobs import JobText, often_killed, slow_to_start

from torchett.advise.advice import Advice, Adviser, advise
from torchett.advise.job_facts import STARTS, JobFacts, Key, Known, job_facts
from torchett.advise.levers.table import LEVERS
from torchett.advise.prediction import Draws, Found
from torchett.advise.priors import Range, priors
from torchett.ledger.history import settle


def facts_of(job: JobText, folder: Path, **known: object) -> JobFacts:
    history = job.history(folder)
    return job_facts(settle(history), history, Known(**known))  # type: ignore[arg-type]


def advised(job: JobText, folder: Path, **known: object) -> Advice:
    return advise(facts_of(job, folder, **known))


def test_the_losses_by_phase_are_the_ledger(tmp_path: Path) -> None:
    history = often_killed().history(tmp_path)
    ledger = settle(history)
    facts = job_facts(ledger, history)
    assert sum(facts.lost.values()) == pytest.approx(facts.lost_s)
    assert facts.lost_s == pytest.approx((ledger.rank_ns - ledger.groups["effective"]) / 1e9)
    assert facts.lost["first", "imports"] == 10
    assert facts.lost["again", "imports"] == 30
    assert facts.starts == {"first": 1, "again": 3}


def test_a_new_launcher_and_a_restart_of_ranks_are_different_phases(tmp_path: Path) -> None:
    job = JobText().start(0, 0).steps(0, 0, 10, 1, 1).end(0, 12, "failed")
    job.start(1, 12).span(1, "launcher_init", 12, 14).steps(1, 10, 10, 14, 1)
    facts = facts_of(job.end(1, 24, "success"), tmp_path)
    assert facts.starts == {"first": 1, "anew": 1}


def test_what_the_launchers_log_says_counts_more_than_a_long_launcher_init(
    tmp_path: Path,
) -> None:
    job = JobText().start(0, 0).steps(0, 0, 10, 1, 1).end(0, 12, "failed")
    job.start(1, 12).span(1, "launcher_init", 12, 14).steps(1, 10, 10, 14, 1).end(1, 24, "failed")
    job.start(2, 24).steps(2, 20, 10, 24, 1).end(2, 34, "success")
    facts = facts_of(job, tmp_path, new_launchers={0: True, 1: False, 2: True})
    assert facts.starts == {"first": 1, "again": 1, "anew": 1}
    assert facts.lost["again", "launcher_init"] == 2


def test_snapshots_that_were_on_are_not_advised(tmp_path: Path) -> None:
    assert advised(often_killed(), tmp_path).of("snapshots") is not None
    on = advised(often_killed(), tmp_path, on=frozenset({"snapshots"}))
    assert on.of("snapshots") is None
    assert on.nothing["snapshots"] == "snapshots were on"


def test_a_compile_cache_wins_most_of_what_was_compiled(tmp_path: Path) -> None:
    advice = advised(slow_to_start(), tmp_path)
    one = advice.of("compile-cache")
    assert one is not None
    assert 22 < one.seconds.low < 26 < one.seconds.mid < 28 < one.seconds.high < 32
    assert one.points.mid == pytest.approx(100 * 50 / (100 - one.seconds.mid) - 50, abs=0.1)
    assert "ett run --compile-cache" in one.change
    assert advice.predictions[0] is one


def test_a_compile_that_was_cached_wins_nothing(tmp_path: Path) -> None:
    assert advised(slow_to_start(), tmp_path, cold={0: False}).of("compile-cache") is None
    on = advised(slow_to_start(), tmp_path, on=frozenset({"compile-cache"}))
    assert on.nothing["compile-cache"] == "a library of compiled code was in use"


def test_of_several_starts_only_the_slow_ones_compiled_without_a_cache(tmp_path: Path) -> None:
    job = JobText().start(0, 0).span(0, "pt2_compile", 0, 30).steps(0, 0, 9, 30, 1)
    job.end(0, 40, "failed").start(1, 40).span(1, "pt2_compile", 40, 43).steps(1, 0, 9, 43, 1)
    facts = facts_of(job.end(1, 53, "success"), tmp_path)
    assert facts.cold_compile_s == {"first": 30}


def test_two_levers_that_win_the_same_seconds_do_not_add(tmp_path: Path) -> None:
    adviser = Adviser(facts_of(slow_to_start(), tmp_path))
    cache, standby = (adviser.predict([name]).seconds.mid for name in ("compile-cache", "standby"))
    both = adviser.predict(["compile-cache", "standby"]).seconds.mid
    assert max(cache, standby) < both < 0.9 * (cache + standby)
    assert both == adviser.predict(["standby", "compile-cache"]).seconds.mid


def test_the_best_set_is_chosen_by_what_each_adds(tmp_path: Path) -> None:
    advice = advised(often_killed(), tmp_path)
    adds = [seconds for _, seconds in advice.gains]
    assert advice.best is not None
    assert advice.best.levers == tuple(name for name, _ in advice.gains)
    assert all(seconds > 0 for seconds in adds)
    assert sum(adds) == pytest.approx(advice.best.seconds.mid, rel=0.2)
    assert advice.best.seconds.high <= advice.lost_s


def test_no_lever_wins_more_than_was_lost(tmp_path: Path) -> None:
    for job in (slow_to_start(), often_killed()):
        adviser = Adviser(facts_of(job, tmp_path, workers=1))
        for name in adviser.found:
            after = adviser._after([name])
            assert all((after[key] >= 0).all() for key in after), name


def test_the_interval_that_wastes_least_is_found_from_failures_and_saves(tmp_path: Path) -> None:
    advice = advised(often_killed(), tmp_path)
    one = advice.of("interval")
    assert one is not None
    assert one.numbers["failures without notice"] == 3
    assert one.numbers["interval of the run, s"] == pytest.approx(20, abs=1)
    best_s = one.numbers["interval that wastes least, s"]
    assert isinstance(best_s, float)
    between_s = one.numbers["running time, s"]
    assert isinstance(between_s, float)
    assert best_s == pytest.approx((2 * 1.0 * between_s / 3) ** 0.5, rel=0.1)
    assert f"mtbf_s={between_s / 3:.0f}" in one.change


def test_saves_win_the_steps_lost_by_a_preemption_at_any_interval(tmp_path: Path) -> None:
    job = often_killed()
    job.lines = [line.replace('"failed","cause":"SIGKILL"', '"preempted"') if '"attempt":2' in line
                 else line for line in job.lines]  # fmt: skip
    facts = facts_of(job, tmp_path)
    assert (facts.preempted_unsaved_s, facts.saves.failures) == (20, 2)
    adviser = Adviser(facts)
    alone, both = (adviser.left(s)["unsaved"] for s in (["interval"], ["interval", "async-saves"]))
    noticed = 0.07 * 20  # at most: what is left of the preemption's steps
    sudden = facts.ranks * facts.saves.failures * (1.0 / 2 + 5.0)  # at most, of saves that are free
    assert alone > 20
    assert both < noticed + sudden


def test_without_a_failure_the_interval_is_not_known(tmp_path: Path) -> None:
    (unsure,) = (u for u in advised(slow_to_start(), tmp_path).unsure if u.lever == "interval")
    assert unsure.sentence.startswith("not enough data: no failure in 2 min")
    assert unsure.sentence.endswith("run 20 minutes more")


def test_a_job_without_a_step_gets_no_advice(tmp_path: Path) -> None:
    job = JobText().start(0, 0).span(0, "imports", 0, 10).end(0, 10, "failed")
    advice = advised(job, tmp_path)
    assert advice.not_yet == "not enough data: no step was recorded: run 20 minutes more"
    assert advice.predictions == ()


@pytest.mark.parametrize(("workers", "kept"), [(1, (0.0, 0.5)), (None, (0.05, 1.0))])
def test_more_workers_help_as_far_as_one_step_hides_them(
    tmp_path: Path, workers: int | None, kept: tuple[float, float]
) -> None:
    job = JobText().start(0, 0)
    for i in range(200):
        job.span(0, "data_wait", i, i + 0.8).steps(0, i, 1, i + 0.8, 0.2)
    one = advised(job.end(0, 200, "success"), tmp_path, workers=workers).of("loader-workers")
    assert one is not None
    left = 160 - one.seconds.mid
    assert kept[0] * 160 < left < kept[1] * 160
    assert one.numbers["a wait with more workers at best, s"] == pytest.approx(0.05, abs=0.01)


def test_few_steps_are_not_enough_for_advice_on_the_loader(tmp_path: Path) -> None:
    job = JobText().start(0, 0)
    for i in range(20):
        job.span(0, "data_wait", i, i + 0.8).steps(0, i, 1, i + 0.8, 0.2)
    unsure = {u.lever: u for u in advised(job.end(0, 20, "success"), tmp_path).unsure}
    assert unsure["loader-workers"].sentence.startswith("not enough data: 20 steps are too few")
    assert unsure["loader-workers"].sentence.endswith("run 1 minute more")


def test_every_prior_is_used_and_every_name_is_a_prior(tmp_path: Path) -> None:
    facts = facts_of(often_killed(), tmp_path)
    starts = ("imports", "launcher_init", "restart_gap", "pt2_compile", "get_first_batch_data",
              "pre_train", "train_module_creation")  # fmt: skip
    lost: dict[Key, float] = dict(facts.lost)
    lost |= {(phase, name): 9.0 for phase in STARTS for name in starts}
    lost |= {("job", name): 9.0 for name in ("data_wait", "recompile", "publish")}
    facts = replace(facts, lost=lost, steps=1000, cold_compile_s={"first": 9.0},
                    starts={"first": 1, "again": 2, "anew": 1})  # fmt: skip
    used = {"rerun", "rerun.machine", "rerun.effective"}
    for known in (Known(), Known(workers=1, cured_s=5.0, tuned_s=5.0)):
        said = [lever.look(replace(facts, known=known)) for lever in LEVERS]
        used |= {name for one in said if isinstance(one, Found) for name in one.priors}
    assert used == set(priors())


def test_every_prior_has_a_date_a_source_and_an_order() -> None:
    for row in priors().values():
        assert row.range.low <= row.range.mid <= row.range.high, row.name
        assert row.date.startswith("2026-"), row.name
        assert len(row.source) > 20, row.name


def test_draws_have_the_percentiles_that_they_were_given() -> None:
    drawn = Draws(samples=20_000).of("anything", Range(low=1.0, mid=2.0, high=5.0))
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx([1.0, 2.0, 5.0], rel=0.05)
    assert np.array_equal(drawn, Draws(samples=20_000).of("anything", Range(low=1, mid=2, high=5)))
