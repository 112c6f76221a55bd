"""What the restart policy decides: rows, budgets, places, nodes, and what counts for nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchett.failures.vocabulary import OUTLOOKS, domain_of_category
from torchett.model.errors import InputError
from torchett.model.restarts import LifeEnd, Outlook
from torchett.restarts.decide import Failure, Ruling, decide
from torchett.restarts.history import Fact, append_facts, lineage_of, read_history
from torchett.restarts.memory_kills import MemoryKills
from torchett.restarts.policy import RunPolicy
from torchett.restarts.table import table_with
from torchett.runs.printed import Printed

TABLE = table_with([])


def failure(restart: int, category: str, text: str = "", **more: Any) -> Failure:
    return Failure(
        attempt=0,
        restart=restart,
        category=category,
        outlook=OUTLOOKS[category],
        text=text,
        place=more.pop("place", f"{text} at train.py:{restart}"),
        **more,
    )


def fact(failed: Failure, ruled: Ruling, durable_step: int) -> Fact:
    return Fact(
        attempt=failed.attempt,
        restart=failed.restart,
        outlook=ruled.outlook,
        why=ruled.why,
        node=failed.node,
        by=failed.by,
        t_s=float(failed.restart),
        category=failed.category,
        root=failed.root,
        text=failed.text,
        place=failed.place,
        row=ruled.row,
        charged=ruled.charged,
        durable_step=durable_step,
    )


def play(failures: list[tuple[Failure, int]], limit: int = 100) -> list[Ruling]:
    """The rulings on failures one after the other, each with the last durable step then."""
    history: list[Fact] = []
    rulings = []
    for one, durable_step in failures:
        rulings.append(decide(one, TABLE, history, durable_step, limit))
        history.append(fact(one, rulings[-1], durable_step))
    return rulings


def verdicts(rulings: list[Ruling]) -> list[str]:
    return [ruling.outlook.value for ruling in rulings]


@pytest.mark.parametrize(
    ("category", "text"),
    [
        ("import_error", "ModuleNotFoundError: No module named 'x'"),
        ("user_code_exception", "SyntaxError: invalid syntax (train.py, line 3)"),
        ("storage_full", "OSError: [Errno 28] No space left on device"),
        ("permission_denied", "PermissionError: [Errno 13]"),
    ],
)
def test_what_another_attempt_cannot_change_stops_at_once(category: str, text: str) -> None:
    (ruling,) = play([(failure(0, category, text), -1)])
    assert ruling.outlook is Outlook.STOP
    assert text in ruling.why


def test_every_category_has_a_verdict() -> None:
    for category in OUTLOOKS:
        (ruling,) = play([(failure(0, category), -1)])
        assert ruling.row, domain_of_category(category)


def test_the_same_error_at_the_same_place_stops_and_at_another_does_not() -> None:
    same = {"place": "ValueError: bad loss at train.py:7"}
    one = "ValueError: bad loss"
    twice = [(failure(n, "user_code_exception", one, **same), -1) for n in range(2)]
    assert verdicts(play(twice)) == ["restart-now", "stop"]
    moved = [(failure(n, "user_code_exception", one), -1) for n in range(2)]
    assert verdicts(play(moved)) == ["restart-now", "restart-now"]


def test_durable_progress_gives_budgets_back_and_steps_alone_do_not() -> None:
    killed = [(failure(n, "host_oom_kill", "MemoryError"), -1) for n in range(3)]
    assert verdicts(play(killed)) == ["restart-now", "restart-now", "stop"]
    saving = [(one, 10 * n) for n, (one, _) in enumerate(killed)]
    assert verdicts(play(saving)) == ["restart-now"] * 3


def test_a_checkpoint_of_an_earlier_step_is_no_progress() -> None:
    steps = [30, 20, 10]
    killed = [(failure(n, "host_oom_kill", "MemoryError"), at) for n, at in enumerate(steps)]
    assert verdicts(play(killed)) == ["restart-now", "restart-now", "stop"]


def test_a_crash_loop_ends_within_its_limit_and_pauses_grow() -> None:
    rulings = play([(failure(n, "unknown"), -1) for n in range(6)], limit=5)
    assert [ruling.pause_s for ruling in rulings] == [0, 0, 5, 15, 60, 0]
    assert verdicts(rulings) == ["restart-now"] * 2 + ["back-off"] * 3 + ["stop"]
    assert rulings[-1].limit_reached
    assert "all 5 restarts" in rulings[-1].why


def test_preemptions_are_never_charged_and_do_not_spin() -> None:
    """Without durable progress the third one in a row waits, as it may be something else."""
    told = [(failure(n, "preemption"), -1) for n in range(5)]
    rulings = play([*told, (failure(5, "nccl_timeout"), -1)], limit=1)
    assert verdicts(rulings) == [*["restart-now"] * 2, *["back-off"] * 3, "restart-now"]
    assert [ruling.pause_s for ruling in rulings[:5]] == [0, 0, 5, 15, 60]
    assert [ruling.charged for ruling in rulings] == [False] * 5 + [True]


def test_a_loss_seen_on_two_nodes_is_one() -> None:
    """Node 0 sees only what follows from node 1's failure, and before it."""
    root = failure(0, "host_oom_kill", "MemoryError", node=1, nodes=2)
    follows = failure(0, "nccl_remote_peer", "Connection reset", node=0, nodes=2, root=False)
    rulings = [decide(one, TABLE, [], -1, 2) for one in (follows, root)]
    history = [fact(one, r, -1) for one, r in zip((follows, root), rulings, strict=True)]
    nxt = failure(1, "host_oom_kill", "MemoryError", node=1, nodes=2)
    assert decide(nxt, TABLE, history, -1, 2).outlook is Outlook.RESTART_NOW
    history.append(fact(nxt, decide(nxt, TABLE, history, -1, 2), -1))
    last = decide(failure(2, "nccl_timeout", nodes=2), TABLE, history, -1, 2)
    assert last.limit_reached


def test_a_node_that_began_three_failures_is_replaced_where_others_began_none() -> None:
    mine = [(failure(n, "unknown", node=1, nodes=2), -1) for n in range(3)]
    assert verdicts(play(mine)) == ["restart-now", "restart-now", "replace-node"]
    alone = [(replace(one, nodes=1), at) for one, at in mine]
    assert verdicts(play(alone))[-1] == "back-off"
    others = [(replace(one, node=n % 2), at) for n, (one, at) in enumerate(mine)]
    assert verdicts(play(others))[-1] == "back-off"


def test_torchruns_own_restarts_are_counted_anew_in_each_attempt() -> None:
    def by_agent(attempt: int, restart: int) -> Failure:
        one = failure(restart, "nccl_timeout", by="agent", shared_limit=False)
        return replace(one, attempt=attempt, place=f"{attempt}.{restart}")

    lives = [(by_agent(attempt, restart), -1) for attempt in range(2) for restart in range(2)]
    assert verdicts(play(lives, limit=1)) == ["restart-now", "stop", "back-off", "stop"]


def test_rows_of_a_users_file_come_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[restart]]\nname = "ours"\ncause = ["storage_full"]\ntext = "scratch"\n'
        'verdict = "back-off"\npauses_s = [30]\nbudget = 1\nthen = "replace-node"\n'
    )
    table = table_with([own])
    full = failure(0, "storage_full", "No space left on device: /scratch/a")
    first = decide(full, table, [], -1, 9)
    assert (first.outlook, first.pause_s, first.row) == (Outlook.BACK_OFF, 30.0, "ours")
    then = decide(replace(full, restart=1), table, [fact(full, first, -1)], -1, 9)
    assert then.outlook is Outlook.REPLACE_NODE
    other = failure(0, "storage_full", "No space left on device: /home/a")
    assert decide(other, table, [], -1, 9).outlook is Outlook.STOP


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[restart]]\ncause = ['gpus']", "unknown cause 'gpus'"),
        ("[[restart]]\ncause = '*'\nverdict = 'retry'", "unknown verdict 'retry'"),
        ("[[restart]]\ncause = '*'\nbudgets = 3", "unknown key budgets"),
        ("[[restart]]\ncause = '*'\nbudget = -1", "expected budget = a whole number, found -1"),
        ("[[restart]]\ncause = '*'\npauses_s = 3", "expected pauses_s = [seconds], found 3"),
        ("[[restart]]\ncause = '*'\ntext = '('", "no regular expression"),
        ("[[restart]]\nverdict = 'stop'", "expected cause = [categories or domains], found None"),
        ("[node]\nfailures = 'x'", "expected failures = a whole number"),
        ("[nodes]\nfailures = 3", "expected [[restart]] and [node], found nodes"),
        ("restart = 3", "expected [[restart]] rows"),
        ("a = ", "expected a restart policy in TOML"),
    ],
)
def test_a_bad_file_is_said_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(InputError) as found:
        table_with([tmp_path / "own.toml"])
    assert said in str(found.value)
    assert str(found.value).startswith(f"{tmp_path}/own.toml: ")


def test_the_history_outlives_a_torn_line_and_knows_nothing_twice(tmp_path: Path) -> None:
    known = fact(failure(0, "nccl_timeout"), play([(failure(0, "nccl_timeout"), -1)])[0], -1)
    append_facts(tmp_path, [known, replace(known, restart=1), known])
    with (tmp_path / "restarts.jsonl").open("a") as file:
        file.write(json.dumps(known.to_json())[:40])
    assert read_history(tmp_path) == [known, replace(known, restart=1)]


def test_a_requeued_job_is_the_same_and_a_second_launch_by_hand_is_not() -> None:
    assert lineage_of({"SLURM_JOB_ID": "7"}, 1) == lineage_of({"SLURM_JOB_ID": "7"}, 2)
    assert lineage_of({}, 1) != lineage_of({}, 2)


def test_the_rows_on_the_documents_page_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "restarts.md").read_text()
    rows = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "policy.toml").write_text(rows)
    table = table_with([tmp_path / "policy.toml"])
    assert (table.rows[0].name, table.node_failures) == ("scratch", 2)


def test_what_other_nodes_decided_counts_and_is_kept_once(tmp_path: Path) -> None:
    """Nodes may share the folder or not: either way a decision is one line, and is counted."""
    policies = [
        RunPolicy(
            tmp_path / folder,
            {"ETT_LINEAGE": name},
            Printed(),
            MemoryKills(),
            table=TABLE,
            rules=[],
        )
        for folder, name in (("shared", "a"), ("shared", "b"), ("own", "c"))
    ]
    for folder in ("shared", "own"):
        (tmp_path / folder).mkdir()
    end = LifeEnd(attempt=0, restart=0, limit=1, exits={3: "SIGABRT"}, by="agent", node=1)
    policies[0].decide(end)
    for other in policies[1:]:
        other.hear(policies[0].last_facts())
        other.hear(policies[0].last_facts())
        again = other.decide(LifeEnd(attempt=0, restart=1, limit=1, by="agent"))
        assert again.outlook is Outlook.STOP
    assert len(read_history(tmp_path / "own")) == 2
    assert len(read_history(tmp_path / "shared")) == 2
