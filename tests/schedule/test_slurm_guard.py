"""The guard's rounds on a Slurm whose answers are canned: what it asks for, and when."""

import math
from typing import Any

import numpy as np
import pytest

from torchett.model.beacon import Beacon, slurm_comment
from torchett.model.errors import RunError
from torchett.schedule.policy import OURS, POLICIES
from torchett.schedule.slurm.choice import Habit, candidates, choose
from torchett.schedule.slurm.cluster import Slurm, node_names, parse_jobs, parse_nodes
from torchett.schedule.slurm.guard import Guard, Rules
from torchett.schedule.values import State

NOW = 1_800_000_000.0


def line(number: int, state: str, qos: str, gpus: int, nodes: str = "", **more: Any) -> str:
    """A line of squeue."""
    count = len(node_names(nodes)) or more.get("count", 1)
    given = {
        "reason": "Resources" if state == "PENDING" else "None", "start": int(NOW - 1000),
        "restarts": 0, "requeue": "1", "per_node": "N/A", "comment": "(null)", "priority": 100,
    } | more  # fmt: skip
    return "|".join(
        str(cell)
        for cell in (
            number, state, qos, "team", "ann", "all", given["reason"],
            f"cpu=4,mem=8G,node={count},billing=4,gres/gpu={gpus}", count, given["per_node"],
            given["start"], int(NOW - 1000), given["restarts"], given["requeue"],
            given["priority"], nodes, given["comment"],
        )
    )  # fmt: skip


def comment(age_s: float, *, gpus: int = 1, signal: bool = False, preempts: int = 0) -> str:
    return slurm_comment(
        Beacon(
            job="j", gpus=gpus, durable_step=100, durable_s=NOW - age_s, save_s=5.0,
            restart_s=60.0, preemptions=preempts, saves_on_signal=signal,
        )
    )  # fmt: skip


class Canned(Slurm):
    """Answers from `queue` and `cluster`; writes down what changes something."""

    def __init__(self, queue: list[str], cluster: str) -> None:
        super().__init__({})
        self.queue, self.cluster = queue, cluster
        self.asked: list[str] = []
        self.steps = True
        self.refuses = ""

    def _run(self, *command: str) -> str:
        said = " ".join(command)
        if command[0] == "sinfo":
            return self.cluster
        if command[:3] == ("squeue", "-h", "-s"):
            return "7.0\n7.batch\n" if self.steps else "7.batch\n"
        if command[0] == "squeue":
            return "\n".join(self.queue)
        if said == "scontrol show reservation -o":
            return "ReservationName=ett-guard-9 StartTime=1\nReservationName=theirs StartTime=1"
        if self.refuses and self.refuses in said:
            raise RunError("scontrol: Access/permission denied")
        self.asked.append(said)
        return ""


FULL = "n1|gpu:4|gpu:4(IDX:0-3)|allocated|all*|\nn2|gpu:4|gpu:4|mixed|all*|\n"
RULES = Rules(policy=OURS, preempting=frozenset({"prod"}), preempted=frozenset({"low"}))


def guard(slurm: Slurm, rules: Rules = RULES) -> tuple[Guard, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    return Guard(slurm, rules, told.append), told


def test_the_freshest_job_is_signalled_and_its_node_kept_for_the_one_that_waits() -> None:
    slurm = Canned(
        [
            line(1, "RUNNING", "low", 4, "n1", comment=comment(900)),
            line(2, "RUNNING", "low", 4, "n2", comment=comment(20)),
            line(3, "PENDING", "prod", 4, per_node="gres:gpu:4"),
        ],
        FULL,
    )
    watch, told = guard(slurm)
    watch.round(NOW)
    assert slurm.asked == [
        "scontrol create reservation ReservationName=ett-guard-3 StartTime=now"
        " Duration=UNLIMITED Users=ann Nodes=n2 Flags=IGNORE_JOBS,PURGE_COMP=00:02:00",
        "scontrol update jobid=3 ReservationName=ett-guard-3",
        "scancel --signal=USR1 2",
    ]
    assert [event["event"] for event in told] == ["claims", "reserved", "signalled"]


def test_a_victim_that_left_is_made_eligible_at_once_and_the_reservation_goes_with_the_start() -> (
    None
):
    low = line(2, "RUNNING", "low", 4, "n2", comment=comment(20))
    slurm = Canned([low, line(3, "PENDING", "prod", 4)], FULL)
    watch, told = guard(slurm)
    watch.round(NOW)
    slurm.asked.clear()
    watch.round(NOW + 1)
    assert slurm.asked == []  # it saves
    slurm.queue = [
        line(2, "PENDING", "low", 4, reason="BeginTime", restarts=1),
        line(3, "RUNNING", "prod", 4, "n2"),
    ]
    watch.round(NOW + 3)
    assert slurm.asked == [
        "scontrol update jobid=3 ReservationName=",
        "scontrol delete ReservationName=ett-guard-3",
        "scontrol update jobid=2 StartTime=now",
    ]
    assert not watch.reclaims
    freed = next(event for event in told if event["event"] == "freed")
    assert freed["after_s"] == 3.0


def test_a_victim_that_does_not_leave_is_requeued_by_force_once_the_grace_is_over() -> None:
    slurm = Canned(
        [line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4)],
        FULL,
    )
    watch, _ = guard(slurm)
    for second in (0, 59, 61, 62):
        watch.round(NOW + second)
    assert slurm.asked[-1] == "scontrol requeue 2"
    assert slurm.asked.count("scontrol requeue 2") == 1


def test_a_job_that_ended_in_its_grace_without_asking_is_run_again() -> None:
    slurm = Canned([line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4)], FULL)
    watch, _ = guard(slurm)
    watch.round(NOW)
    slurm.queue = [line(2, "FAILED", "low", 4), line(3, "RUNNING", "prod", 4, "n2")]
    watch.round(NOW + 2)
    assert slurm.asked[-1] == "scontrol requeue 2"
    slurm.queue = [line(2, "PENDING", "low", 4), line(3, "RUNNING", "prod", 4, "n2")]
    watch.round(NOW + 3)
    assert slurm.asked[-1] == "scontrol update jobid=2 StartTime=now"


def test_a_batch_script_without_srun_is_requeued_not_signalled() -> None:
    slurm = Canned([line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4)], FULL)
    slurm.steps = False
    watch, told = guard(slurm)
    watch.round(NOW)
    assert slurm.asked[-1] == "scontrol requeue 2"
    assert told[-1]["signal"] == "requeue"


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (line(2, "RUNNING", "low", 4, "n2", requeue="0"), line(3, "PENDING", "prod", 4)),
        (line(2, "RUNNING", "other", 4, "n2"), line(3, "PENDING", "prod", 4)),
        (line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4, reason="QOSGrpGRES")),
        (line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4, reason="JobHeldUser")),
        (line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 9)),
        (line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 8, per_node="gres:gpu:8")),
    ],
    ids=["not-requeued", "other-qos", "over-quota", "held", "too-large", "no-such-node"],
)
def test_nobody_is_stopped_where_it_would_lose_a_job_or_not_help(low: str, high: str) -> None:
    slurm = Canned([low, high], FULL)
    watch, _ = guard(slurm)
    watch.round(NOW)
    assert slurm.asked == []


def test_without_an_operators_rights_jobs_are_signalled_all_the_same() -> None:
    slurm = Canned([line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4)], FULL)
    slurm.refuses = "create reservation"
    watch, told = guard(slurm)
    watch.round(NOW)
    assert slurm.asked == ["scancel --signal=USR1 2"]
    assert [event["event"] for event in told] == ["claims", "error", "signalled"]


def test_a_dry_run_says_whom_it_would_stop_and_asks_for_nothing() -> None:
    slurm = Canned([line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4)], FULL)
    rules = Rules(policy=OURS, preempting=RULES.preempting, preempted=RULES.preempted, dry=True)
    watch, told = guard(slurm, rules)
    watch.round(NOW)
    watch.round(NOW + 1)
    assert slurm.asked == []
    assert [event["event"] for event in told] == ["claims"]
    assert [one["job"] for one in told[0]["stops"]] == [2]


def test_a_guard_that_begins_or_ends_gives_back_what_is_reserved() -> None:
    slurm = Canned([line(2, "RUNNING", "low", 4, "n2"), line(3, "PENDING", "prod", 4)], FULL)
    watch, _ = guard(slurm)
    watch.tidy()
    assert slurm.asked[-1] == "scontrol delete ReservationName=ett-guard-9"
    assert not any("theirs" in asked for asked in slurm.asked)
    watch.round(NOW)
    watch.close()
    assert slurm.asked[-1] == "scontrol delete ReservationName=ett-guard-3"


def test_a_cheap_victim_waits_for_its_save_and_is_signalled_as_soon_as_that_is_durable() -> None:
    """The policy plans a signal; the beacon says that the save came earlier than planned."""
    low = line(2, "RUNNING", "low", 4, "n2", comment=comment(900))
    slurm = Canned([low, line(3, "PENDING", "prod", 4)], FULL)
    watch, _ = guard(slurm)
    watch.round(NOW)
    reclaim = watch.reclaims[3]
    leaver = reclaim.leavers[0]
    leaver.signalled_s, leaver.at_s = None, NOW + 100
    slurm.asked.clear()
    watch.round(NOW + 1)
    assert slurm.asked == []
    slurm.queue[0] = low.replace("step=100", "step=200")
    watch.round(NOW + 2)
    assert slurm.asked == ["scancel --signal=USR1 2"]


def test_whole_nodes_are_chosen_for_a_job_that_needs_them() -> None:
    """Two GPUs free on each of two nodes are no node of four; the cheaper node is emptied."""
    queue = [
        line(1, "RUNNING", "low", 2, "n1", comment=comment(900)),
        line(2, "RUNNING", "low", 2, "n2", comment=comment(10)),
        line(3, "PENDING", "prod", 4, per_node="gres:gpu:4"),
    ]
    nodes = parse_nodes("n1|gpu:4|gpu:2|mixed|all*|\nn2|gpu:4|gpu:2|mixed|all*|\n")
    jobs = parse_jobs("\n".join(queue))
    made = choose(
        POLICIES["least-lost"], jobs[3], [jobs[1], jobs[2]], nodes,
        State(now_s=NOW, candidates=candidates([], [], Habit()), grace_s=60.0),
        since_s=NOW, habit=Habit(),
    )  # fmt: skip
    assert [eviction.job for eviction in made.evictions] == [2]
    assert made.nodes == ("n2",)


def test_one_victim_on_two_nodes_serves_a_claim_for_both() -> None:
    queue = [
        line(1, "RUNNING", "low", 8, "n[1-2]", comment=comment(30, gpus=8)),
        line(3, "PENDING", "prod", 8, per_node="gres:gpu:4", count=2),
    ]
    slurm = Canned(queue, FULL)
    watch, told = guard(slurm)
    watch.round(NOW)
    assert [one["job"] for one in told[0]["stops"]] == [1]
    assert told[0]["nodes"] == ["n1", "n2"]


def test_a_job_without_a_beacon_has_lost_all_since_its_start() -> None:
    jobs = parse_jobs(line(1, "RUNNING", "low", 4, "n1", restarts=2))
    seen = candidates([jobs[1]], [4], Habit(restart_s=99.0))
    assert seen.lost_s(NOW)[0] == 1000
    assert (seen.restart_s[0], seen.preemptions[0], seen.due_s[0]) == (99.0, 2, math.inf)
    assert seen.job.dtype == np.int64


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[08-10,2],cpu1", ["gpu08", "gpu09", "gpu10", "gpu2", "cpu1"]),
        ("", []),
        ("(null)", []),
    ],
)
def test_slurms_short_names_are_spelled_out(short: str, names: list[str]) -> None:
    assert node_names(short) == names


def test_gpus_of_several_kinds_are_counted_and_nodes_that_are_down_are_not() -> None:
    text = (
        "a|gpu:h100:2(S:0),gpu:a100:6|gpu:h100:1(IDX:0),gpu:a100:0(IDX:N/A)|mixed|all*|\n"
        "a|gpu:h100:2(S:0),gpu:a100:6|gpu:h100:1(IDX:0),gpu:a100:0(IDX:N/A)|mixed|big|\n"
        "b|gpu:8|gpu:0|down*|all*|\n"
    )
    nodes = parse_nodes(text)
    assert list(nodes) == ["a"]
    assert (nodes["a"].gpus, nodes["a"].free) == (8, 7)
    assert nodes["a"].partitions == {"all", "big"}
