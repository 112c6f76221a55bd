"""The report stays readable at every size of job."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console, Group

from torchett.ledger import AccountTable, History, Rows, settle
from torchett.ledger.metrics.spread import spread, straggler
from torchett.ledger.rows import STEP
from torchett.ledger.views import DEFINITIONS
from torchett.levers.compile.observe.facts import Compile
from torchett.levers.compile.observe.summary import summary
from torchett.model import Attempt, Job, Step
from torchett.model.accounts import INDEX
from torchett.model.durations import duration
from torchett.report.job import job_report
from torchett.report.sections.compiles import compile_section

S = 1_000_000_000


def printed(history: History, now_ns: int | None = None, width: int = 110) -> str:
    out = io.StringIO()
    page = job_report(settle(history), history, DEFINITIONS["meta"], now_ns=now_ns)
    Console(file=out, width=width, highlight=False).print(page)
    return out.getvalue()


def history(attempts: list[Attempt], rows: Rows, ranks: int = 1) -> History:
    job = Job(name="job", ranks=ranks, attempts=tuple(attempts))
    return History(job=job, rows=rows, accounts=AccountTable())


@pytest.mark.parametrize(
    ("now_s", "said"),
    [(None, "still running"), (90, "still running"), (9100, "no sign of life for 2.5 h")],
)
def test_a_job_whose_launcher_is_gone_is_not_said_to_run(now_s: int | None, said: str) -> None:
    attempt = Attempt(number=0, start_ns=0, ranks=1)
    live = replace(history([attempt], Rows.none()), now_ns=100 * S)
    assert said in printed(live, None if now_s is None else now_s * S)


def test_a_job_without_attempts_or_steps_has_a_report() -> None:
    assert "0.0% effective" in printed(history([], Rows.none()))
    only = Attempt(number=0, start_ns=0, ranks=1, end_ns=S, outcome="failed")
    page = printed(history([only], Rows.none()))
    assert "Time to Start never" in page
    assert "unattributed" in page


def test_attempts_after_the_first_step_recover_even_if_the_one_with_it_is_not_shown() -> None:
    attempts = [
        Attempt(number=i, start_ns=10 * i * S, ranks=1, end_ns=(10 * i + 10) * S, outcome="failed")
        for i in range(20)
    ]
    imports = INDEX["imports"]
    rows = Rows.of(
        attempt=[*range(20), 9],
        rank=0,
        account=[imports] * 20 + [STEP],
        t0_ns=[*(10 * i * S for i in range(20)), 98 * S],
        t1_ns=[*((10 * i + 5) * S for i in range(20)), 99 * S],
    )
    lines = printed(history(attempts, rows)).splitlines()
    shown = {words[0]: words[1][:25] for line in lines if (words := line.split())[1:]}
    assert (shown["5"], shown["14"]) == ("▒" * 25, "╳" * 25)


@pytest.mark.parametrize("width", [60, 80, 110])
def test_bars_give_way_to_figures_where_it_is_narrow(width: int) -> None:
    day = 86_400 * S
    attempt = Attempt(
        number=0, start_ns=0, ranks=16_384, end_ns=54 * day, outcome="failed", cause="nccl_timeout"
    )
    rows = Rows.of(attempt=0, rank=0, account=STEP, t0_ns=[0], t1_ns=[day], index=[1_234_567])
    page = printed(history([attempt], rows, ranks=16_384), width=width)
    assert "76,441,190,400.00  100.0%" in page
    assert re.search(r"0  [?]+ +54.0 d  1,234,567  failed:\s+nccl_timeout", page)


def test_of_a_thousand_attempts_the_first_and_last_are_shown() -> None:
    attempts = [
        Attempt(number=i, start_ns=10 * i * S, ranks=1, end_ns=(10 * i + 9) * S, outcome="failed")
        for i in range(1000)
    ]
    index = np.arange(1000)
    rows = Rows.of(
        attempt=index, rank=0, account=STEP, index=index, t0_ns=(10 * index + 1) * S,
        t1_ns=(10 * index + 5) * S,
    )  # fmt: skip
    page = printed(history(attempts, rows))
    assert len(page.splitlines()) < 70
    assert "988 more" in page


def steps_of(rank: int, begin_s: float, took_s: float, late_s: float = 0.0) -> list[Step]:
    return [
        Step(
            rank=rank,
            index=i,
            t0_ns=round((begin_s + i + late_s) * S),
            t1_ns=round((begin_s + i + late_s + took_s) * S),
        )
        for i in range(20)
    ]


def test_the_rank_whose_steps_take_longer_is_the_straggler() -> None:
    drawn = [*steps_of(0, 0, 0.5), *steps_of(1, 0, 0.5), *steps_of(2, 0, 0.7)]
    found = straggler(spread(Rows.from_values(drawn, AccountTable())))
    assert found is not None
    assert (found.rank, found.begins_late) == (2, False)
    assert found.by_s == pytest.approx(0.2, abs=1e-6)


def test_the_rank_that_the_others_wait_for_is_the_straggler() -> None:
    """Its steps look short: the others wait for it inside theirs.

    rank 0  ├──────────────┤
    rank 1      ├──────────┤     begins 0.2 s late: a slow loader, say
    """
    drawn = [*steps_of(0, 0, 0.6), *steps_of(1, 0, 0.4, late_s=0.2)]
    found = straggler(spread(Rows.from_values(drawn, AccountTable())))
    assert found is not None
    assert (found.rank, found.begins_late) == (1, True)
    assert found.by_s == pytest.approx(0.2)


def test_equal_ranks_have_no_straggler() -> None:
    drawn = [*steps_of(0, 0, 0.5), *steps_of(1, 0, 0.51)]
    assert straggler(spread(Rows.from_values(drawn, AccountTable()))) is None


@pytest.mark.parametrize(
    ("ns", "words"),
    [(0, "0 s"), (840_000_000, "840 ms"), (12_340_000_000, "12.3 s"), (252 * S, "4.2 min"),
     (11_160 * S, "3.1 h"), (12 * 86_400 * S, "12.0 d")],
)  # fmt: skip
def test_durations_read_easily(ns: int, words: str) -> None:
    assert duration(ns) == words


def compiled(*compiles: Compile) -> str:
    out = io.StringIO()
    section = compile_section(summary([(0, 0, one) for one in compiles]))
    Console(file=out, width=110, highlight=False).print(Group(*section))
    return out.getvalue()


def test_what_the_background_compiled_is_more_only_beside_what_the_loop_did() -> None:
    beside = Compile(id="0/0", t1_ns=3 * S, background=True)
    alone = compiled(beside)
    assert alone.split("\n")[:2] == ["compile", "  3.00 s were compiled in the background"]
    both = compiled(beside, Compile(id="1/0", t1_ns=2 * S))
    assert "rank-seconds" in both
    assert "3.00 s more were compiled in the background" in both
