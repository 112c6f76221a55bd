"""A table of steps becomes a history; what it does not tell stays unattributed."""

from pathlib import Path

import pytest

from torchett.ledger import settle
from torchett.model.errors import InputError
from torchett.runs.importers import table
from torchett.runs.importers.builder import UserHints
from torchett.runs.importers.stamps import given_time

_NAME = "shared/data/traces/zhejiang_llama2_7b_32xA100_steps.csv"
_PLACES = [folder / _NAME for folder in Path(__file__).parents[3:]]  # beside the project
TRACE = next((place for place in _PLACES if place.exists()), Path(_NAME))


def read(text: str, **hints: object) -> dict[str, object]:
    lines = text.splitlines(keepends=True)
    return settle(table.parse(lines, "t.csv", "job", UserHints(**hints))).to_json()  # type: ignore[arg-type]


def test_steps_last_from_row_to_row_and_the_first_ones_time_is_not_known() -> None:
    found = read("time,step\n10,1\n12,2\n14,3\n16,4\n", began_s=0.0, ended_s=20.0)
    assert found["accounts"] == {"effective": 6.0, "unattributed": 10.0, "teardown": 4.0}
    assert found["last_step"] == 4


def test_a_stall_is_not_a_steps_time() -> None:
    text = "time,step\n" + "".join(f"{t},{i}\n" for i, t in enumerate((0, 2, 4, 6, 18, 20, 22)))
    found = read(text)["accounts"]
    assert found == {"effective": 12.0, "other_in_loop": 10.0}
    assert read(text, stall=0.0)["accounts"] == {"effective": 22.0}


def test_a_step_that_goes_back_is_a_restart_and_what_is_done_again_was_lost() -> None:
    rows = [(0, 1), (1, 2), (2, 3), (3, 4), (9, 3), (10, 4), (11, 5)]
    found = read("t,iter\n" + "".join(f"{t},{i}\n" for t, i in rows))
    assert found["attempts"] == 2
    # 3 and 4 were done again; 1 s of step 2 and the two steps of the second attempt remain.
    assert found["accounts"] == {"effective": 3.0, "unsaved": 2.0, "restart_gap": 6.0}


def test_rows_that_leave_steps_out_stand_for_all_of_them() -> None:
    found = read("t,step\n0,10\n5,20\n10,30\n")
    assert found["accounts"] == {"effective": 10.0}
    assert found["last_step"] == 30


def test_a_table_that_speaks_for_many_ranks_weighs_as_many() -> None:
    found = read("t,step\n0,1\n1,2\n", ranks=8)
    assert (found["ranks"], found["rank_seconds"]) == (8, 8.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv:1: expected a header with a column of times"),
        ("a,b\n1,2\n", "t.csv:1: expected a header with a column of times"),
        ("t,b\n1,2\n", "t.csv:1: expected a header with a column of step numbers"),
        ("t,step\n", "t.csv:1: expected rows of steps, found none"),
        ("t,step\n1,1\nyesterday,2\n", "t.csv:3: expected a time, found 'yesterday'"),
        ("t,step\n1,1\nnan,2\n", "t.csv:3: expected a time"),
        ("t,step\n1,1\n2,x\n", "t.csv:3: expected a step number, found 'x'"),
        ("t,step\n1,1\n2,nan\n", "t.csv:3: expected a step number"),
        ("t,step\n1,1\n2,-4\n", "t.csv:3: expected a step number"),
        ("t,step\n5,1\n2,2\n", "t.csv:3: expected times that do not go back"),
        ("t,step\n5\n", "t.csv:2: expected 2 cells, found 1"),
    ],
)
def test_what_is_no_table_of_steps_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert str(caught.value).startswith(said)


def test_an_end_before_the_last_row_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected the job to end after its last line.*3\.000 s"):
        read("t,step\n0,1\n5,2\n", ended_s=2.0)


@pytest.mark.skipif(not TRACE.exists(), reason="no recorded trace beside the project")
def test_a_real_run_of_31_hours_comes_out_at_its_known_figure() -> None:
    # The job's pod began at 06:13:55 and its log ended at 13:19:36: neither is in the table.
    hints = UserHints(
        began_s=given_time("2024-04-29T06:13:55Z", ""),
        ended_s=given_time("2024-04-30 13:19:36.450", ""),
        ranks=32,
    )
    with TRACE.open() as lines:
        history = table.parse(lines, TRACE.name, "llama2-7b", hints)
    found = settle(history).to_json()
    assert round(found["ett_percent"], 2) == 99.64
    assert found["last_step"] == 2436
    assert found["accounts"]["other_in_loop"] / 32 == pytest.approx(4 * 33.5, abs=1)
