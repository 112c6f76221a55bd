"""Random job histories: small, valid events/1 files in which everything awkward happens often.

A history is drawn in whole ticks. Most ranks first tell a plausible story,

    |alloc|start  imports  pt2_compile | step step [recompile] step | final_checkpoint |end

and then, in most histories, records are thrown on top of it without regard to any story: spans and
steps that overlap, begin or end together, have no length, or lie outside their attempt. So few
ticks are used that ties are common.
"""

import random
from typing import Any

Event = dict[str, Any]

TICK_S = 0.5  # exact in binary, also around EPOCHS
TICK_NS = 500_000_000
EPOCHS = (0.0, -30.0, 1.7e9)

NUMBERS = ((0,), (0, 1), (0, 1), (0, 1, 2), (0, 2, 3), (1, 4), (0, 1, 2, 3))

START = (
    "scheduling",
    "hardware_setup",
    "launcher_init",
    "imports",
    "device_init",
    "process_group_init",
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "get_first_batch_data",
    "checkpoint_restore",
    "pt2_compile",
)
IN_LOOP = ("checkpoint_blocked", "recompile", "data_wait", "evaluation", "other_in_loop")
SHUTDOWN = ("final_checkpoint", "publish", "teardown")
OWN = ("x-warmup", "x-probe_2")
REPLICAS = ("regroup", "refused")
FAVOURITES = ("pt2_compile", "checkpoint_restore", "recompile", "final_checkpoint", *OWN)

CAUSES = ("nccl_timeout", "preemption", "cuda_oom", "user_cancel", "not_in_the_table")
DOMAINS = ("infra", "scheduler", "user")

TIME_KEYS = ("t", "t0", "t1", "submitted", "allocated", "durable")


def random_history(rng: random.Random) -> list[Event]:
    """The events of one valid file, times in seconds that are whole multiples of TICK_S."""
    job_ranks = rng.choice((1, 2, 2, 3))
    events: list[Event] = [
        {"event": "job", "format": "events/1", "job": "random", "ranks": job_ranks}
    ]
    numbers: tuple[int, ...] = () if rng.random() < 0.01 else rng.choice(NUMBERS)
    wild = rng.random() < 0.7
    free_from = rng.randint(0, 3)  # the earliest tick at which the next attempt may be allocated
    for number in numbers:
        is_last = number == numbers[-1]
        start = random_start(rng, number, free_from)
        ranks = start.get("ranks", job_ranks)
        end_tick = start["t"] + rng.choice((0, 3, 6, 8, 10, 11, 12))
        resume = random_resume(rng, events)
        length = rng.choice((0, 1, 3, 4, 5, 5, 6))
        events.append(start)
        for rank in range(ranks):
            if rng.random() < 0.88:
                events += random_story(rng, start, rank, end_tick, resume, length)
        if wild:
            around = (free_from - 3, end_tick + 4)
            events += random_noise(rng, number, ranks, around, resume)
        events += random_checkpoints(rng, number, (start["t"], end_tick + 2), events)
        end = random_end(rng, number, end_tick, is_last)
        if end:
            events.append(end)
            free_from = end_tick
        else:
            # It vanished (or is live): the next may start before the last we heard of this one.
            free_from = rng.randint(start["t"], end_tick + 2)
    events += random_nows(rng, free_from)
    if rng.random() < 0.15:
        rng.choice(events)["host"] = "unknown keys are ignored"
    if rng.random() < 0.5:
        rng.shuffle(events)
    epoch = rng.choice(EPOCHS)
    return [in_seconds(event, epoch) for event in events]


def in_seconds(event: Event, epoch: float) -> Event:
    """The event with its ticks turned into seconds."""
    return {
        key: epoch + value * TICK_S if key in TIME_KEYS else value for key, value in event.items()
    }


def random_start(rng: random.Random, number: int, free_from: int) -> Event:
    """The start of an attempt, allocated or at least started no earlier than `free_from`."""
    start: Event = {"event": "attempt_start", "attempt": number}
    hardware = start["t"] = free_from + rng.choice((0, 0, 1, 2, 3))
    if rng.random() < 0.45:
        start["allocated"] = hardware
        start["t"] += rng.choice((0, 1, 2, 3))
    if rng.random() < 0.4:
        start["submitted"] = hardware - rng.choice((0, 1, 3, 6))
    if rng.random() < 0.25:
        start["ranks"] = rng.randint(1, 3)
    if rng.random() < 0.15:
        start["resumed_from"] = rng.choice(("peer", "peer", "checkpoint"))
    return start


def random_resume(rng: random.Random, events: list[Event]) -> int:
    """The index at which the next attempt resumes: where it should, too low, too high or 0."""
    steps = [event["step"] for event in events if event["event"] == "step"]
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    highest = max(steps, default=-1)
    candidates = (
        highest + 1,
        rng.choice(saved) + 1 if saved else highest + 1,
        max(0, highest - rng.randint(0, 4)),
        highest + 3,
        0,
    )
    return rng.choices(candidates, weights=(35, 30, 20, 5, 10))[0]


def random_story(
    rng: random.Random, start: Event, rank: int, end_tick: int, resume: int, length: int
) -> list[Event]:
    """One rank's plausible records: start-up, about `length` steps, shutdown."""
    number = start["attempt"]
    told: list[Event] = []
    tick = start["t"] - rng.choice((0, 0, 0, 1, 2)) + rng.choice((0, 0, 1))
    if rng.random() < 0.15:
        told.append(span(rng, number, rank, rng.choice(START), tick - 2, start["t"]))
    for account in sorted(rng.sample(START, rng.randint(0, 3)), key=START.index):
        took = rng.choice((0, 1, 1, 2))
        told.append(span(rng, number, rank, account, tick, tick + took))
        tick += took + rng.choice((0, 0, 0, 1))

    index = resume
    for _ in range(length - rng.choice((0, 0, 0, 1))):
        if tick > end_tick:
            break
        took = rng.choice((0, 1, 1, 2, 3))
        told.append(step(number, rank, index, tick, tick + took))
        if rng.random() < 0.25:
            # A stall inside the step: a compile in the first, mostly something else later.
            account = rng.choice(("pt2_compile", "recompile", "data_wait", "x-warmup"))
            begin = rng.randint(tick, tick + took)
            told.append(span(rng, number, rank, account, begin, rng.randint(begin, tick + took)))
        tick += took
        if rng.random() < 0.2:
            took = rng.choice((1, 1, 2))
            told.append(span(rng, number, rank, rng.choice(IN_LOOP), tick, tick + took))
            tick += took
        tick += rng.choice((0, 0, 0, 1))
        index += rng.choices((1, 0, 2), weights=(85, 10, 5))[0]

    if rng.random() < 0.3:
        tick += rng.choice((0, 0, 1))
        account = rng.choice((*SHUTDOWN, "checkpoint_restore", "x-probe_2"))
        told.append(span(rng, number, rank, account, tick, tick + rng.randint(0, 3)))
    return told


def random_noise(
    rng: random.Random, number: int, ranks: int, around: tuple[int, int], resume: int
) -> list[Event]:
    """Spans and steps anywhere, and twins of them that differ in one thing only."""
    noise: list[Event] = []
    for _ in range(rng.choice((1, 2, 4, 6, 9))):
        rank = rng.randrange(ranks)
        t0 = rng.randint(*around)
        t1 = t0 + rng.choice((0, 0, 1, 2, 3, 5, 8))
        if rng.random() < 0.6:
            account = rng.choice((*START, *IN_LOOP, *SHUTDOWN, *REPLICAS, *3 * FAVOURITES))
            noise.append(span(rng, number, rank, account, t0, t1))
        else:
            index = max(0, resume + rng.randint(-2, 4))
            noise.append(step(number, rank, index, t0, t1))
        if rng.random() < 0.3:
            noise.append(random_twin(rng, noise[-1]))
    return noise


def random_twin(rng: random.Random, event: Event) -> Event:
    """The event again, with another name, begin or end."""
    twin = dict(event)
    change = rng.choice(("name", "name", "t0", "t1"))
    if change == "t0":
        twin["t0"] = rng.randint(event["t0"] - 2, event["t1"])
    elif change == "t1":
        twin["t1"] = rng.randint(event["t0"], event["t1"] + 2)
    elif event["event"] == "span":
        twin["account"] = rng.choice(FAVOURITES)
    else:
        twin["step"] = max(0, event["step"] + rng.choice((-3, -1, 1, 2)))
    return twin


def random_checkpoints(
    rng: random.Random, number: int, around: tuple[int, int], events: list[Event]
) -> list[Event]:
    """Checkpoints of some steps of the attempt, now and then of any other step."""
    mine = {e["step"] for e in events if e["event"] == "step" and e["attempt"] == number}
    saved = [index for index in sorted(mine) if rng.random() < 0.4]
    if rng.random() < 0.1:
        saved.append(rng.randint(0, max(mine, default=3) + 2))
    return [
        {
            "event": "checkpoint",
            "attempt": number,
            "step": index,
            "durable": rng.randint(*around),
        }
        for index in saved
    ]


def random_end(rng: random.Random, number: int, tick: int, is_last: bool) -> Event | None:
    """The end of an attempt, None if nobody heard of one."""
    weights = (35, 20, 15, 30) if is_last else (12, 36, 20, 32)
    outcome = rng.choices(("success", "failed", "preempted", None), weights=weights)[0]
    if outcome is None:
        return None
    end: Event = {"event": "attempt_end", "attempt": number, "t": tick, "outcome": outcome}
    if rng.random() < 0.5:
        end["cause"] = rng.choice(CAUSES)
    if rng.random() < 0.25:
        end["domain"] = rng.choice(DOMAINS)
    return end


def random_nows(rng: random.Random, tick: int) -> list[Event]:
    """None, one or two clocks, some behind what other events have seen."""
    count = rng.choices((0, 1, 2), weights=(50, 40, 10))[0]
    return [{"event": "now", "t": tick + rng.randint(-2, 5)} for _ in range(count)]


def span(rng: random.Random, number: int, rank: int, account: str, t0: int, t1: int) -> Event:
    """A span, now and then in the background."""
    event: Event = {"event": "span", "attempt": number, "rank": rank, "account": account}
    event |= {"t0": t0, "t1": t1}
    chance = rng.random()
    if chance < 0.2:
        event["background"] = chance < 0.12
    return event


def step(number: int, rank: int, index: int, t0: int, t1: int) -> Event:
    """One execution of a step."""
    return {"event": "step", "attempt": number, "rank": rank, "step": index, "t0": t0, "t1": t1}
