"""An old plain log becomes a history: steps, restarts, checkpoints, and honest gaps."""

from datetime import UTC, datetime
from typing import Any

import pytest

from torchett.ledger import settle
from torchett.model.errors import InputError
from torchett.runs.importers import log
from torchett.runs.importers.builder import UserHints
from torchett.runs.importers.stamps import stamp


def at(seconds: float) -> str:
    return datetime.fromtimestamp(1_714_371_000 + seconds, UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[
        :-3
    ]


def read(*lines: str, hints: UserHints | None = None, **how: str) -> dict[str, Any]:
    history = log.parse(
        [line + "\n" for line in lines],
        "train.log",
        "old",
        hints or UserHints(),
        log.Reading(**how),
    )
    found: dict[str, Any] = settle(history).to_json()
    found["notes"] = history.notes
    return found


def titan(t: float, step: int) -> str:
    return (
        f"[titan] {at(t)} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.81  grad_norm:"
        f" 1.1  memory: 10.2GiB(12.9%)  tps: 9,000  tflops: 1.0  mfu: 1.00%"
    )


def test_torchtitan_with_a_restart_and_a_checkpoint() -> None:
    found = read(
        f"[titan] {at(0)} - root - INFO - torchtitan version: 0.2.0",
        f"[titan] {at(8)} - root - INFO - Training starts at step 1",
        *(titan(10 + i, i) for i in range(1, 6)),
        f"[titan] {at(15.25)} - root - INFO - Saving the checkpoint.",
        f"[titan] {at(15.75)} - root - INFO - Finished saving the checkpoint in 0.50 seconds.",
        *(titan(10.75 + i, i) for i in range(6, 9)),
        "Traceback (most recent call last):",
        f"[titan] {at(20)} - root - ERROR - gone",
        f"[titan] {at(60)} - root - INFO - torchtitan version: 0.2.0",
        f"[titan] {at(66)} - root - INFO - Finished loading the checkpoint in 3.0 seconds.",
        f"[titan] {at(66)} - root - INFO - Training starts at step 6",
        *(titan(64 + i, i) for i in range(6, 12)),
        f"[titan] {at(77)} - root - INFO - Training completed",
    )
    assert found["attempts"] == 2
    assert found["failures"]["infra"] == 1
    assert found["accounts"] == pytest.approx(
        {
            # 2…5 of the first attempt, 7…11 of the second
            "effective": 4 + 5, "unsaved": 3 - 0.25 + 0.25, "checkpoint_blocked": 0.5,
            "detect": 1.25, "restart_gap": 40, "checkpoint_restore": 3, "teardown": 2,
            "unattributed": 11 + 3 + 4, "other_in_loop": 0.25,
        },
        abs=0.3,
    )  # fmt: skip


def test_megatron_says_how_long_its_first_steps_took() -> None:
    def line(t: float, step: int) -> str:
        return (
            f" [{at(t)}] iteration {step:8}/    1000 | consumed samples: 10 | elapsed time per"
            " iteration (ms): 500.0 | learning rate: 1E-4 |"
        )

    found = read(
        f"[{at(0)}] > initializing torch distributed ...",
        *(line(20 + 5 * i, 10 * i) for i in range(1, 5)),
        f"[{at(40)}]   saving checkpoint at iteration      40 to /ckpt",
        f"[{at(43)}]   successfully saved checkpoint from iteration      40 to /ckpt",
        f"[{at(44)}] [after training is done] datetime: x",
    )
    assert found["accounts"] == pytest.approx(
        {"unattributed": 20, "effective": 20, "checkpoint_blocked": 3, "teardown": 1}
    )
    assert found["last_step"] == 40


def test_a_save_told_of_without_a_time_was_over_by_the_next_line() -> None:
    found = read(
        *(f"{at(i)} step {i} loss 1.0" for i in range(5)),
        "saved checkpoint",
        *(f"{at(i)} step {i} loss 1.0" for i in range(5, 8)),
        "Killed",
        f"{at(9)} the end",
    )
    assert found["accounts"] == {"effective": 4, "unsaved": 3, "detect": 2}


def plain(first: int, last: int, begin: float = 0.0) -> list[str]:
    return [f"{at(begin + i)} step {i} loss 1.0" for i in range(first, last + 1, 10)]


@pytest.mark.parametrize(
    "line",
    [
        "saved checkpoint at step 20",
        "Checkpoint saved at step 20",
        "checkpoint for step 20 saved",
        "wrote checkpoint: step=20",
        "Saving checkpoint at step 20",
        "saved checkpoint to out/step_20/checkpoint.pt",
        "step 20: saved checkpoint to out/last.pt",
        "[step 20] checkpoint written",
    ],
)
@pytest.mark.parametrize("logged", [20, 30])
def test_a_save_that_names_its_step_is_no_step(line: str, logged: int) -> None:
    """It may be said when later steps are over, and does not make them safe."""
    found = read(*plain(0, logged), f"{at(logged)} {line}", *plain(logged + 10, 60), "Killed")
    assert found["attempts"] == 1
    assert found["accounts"] == {"effective": 20, "unsaved": 40}
    assert not any("repeat" in note for note in found["notes"])


@pytest.mark.parametrize(
    "rest",
    [
        "loss 1.0 saved 3 tokens",
        "loss 1.0 saved 3 tokens since the last checkpoint",
        "loss 1.0 checkpoint could not be saved",
        "loss 1.0 loading 0.3 s, resumed 0 workers from the pool",
    ],
)
def test_a_step_is_a_step_whatever_else_its_line_says(rest: str) -> None:
    found = read(*plain(0, 20), f"{at(30)} step 30 {rest}", *plain(40, 60), "Killed")
    assert found["attempts"] == 1
    assert found["accounts"] == {"unsaved": 60}


def test_a_line_may_be_of_a_step_and_of_its_save() -> None:
    line = f"{at(30)} step 30 loss 1.0, saved checkpoint"
    found = read(*plain(0, 20), line, *plain(40, 60), "Killed")
    assert found["accounts"] == {"effective": 30, "unsaved": 30}


def test_a_save_lasts_from_the_line_that_begins_it_to_the_one_that_ends_it() -> None:
    found = read(
        *plain(0, 20),
        f"{at(25)} saving checkpoint at step 25",
        f"{at(28)} checkpoint saved",
        *plain(30, 60, begin=3),
        "Killed",
    )
    assert found["accounts"]["checkpoint_blocked"] == 3
    assert found["accounts"]["unsaved"] == pytest.approx(35, abs=2)


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("Resuming from step 90", 91),
        ("resuming from ckpt.pt", 91),
        ("resuming from checkpoint step 50", 51),
        ("Loaded checkpoint at iteration 50", 51),
        ("restored from out/step_50.pt", 51),
    ],
)
def test_a_trainer_that_resumes_is_the_next_attempt(line: str, first: int) -> None:
    again = plain(first + 9, 150, begin=90 - first + 20)
    history = log.parse(
        [*plain(10, 90), f"{at(95)} {line}", *again], "train.log", "old", UserHints()
    )
    steps = history.rows.take(history.rows.is_step)
    assert steps.attempt.max() == 1
    assert steps.index[steps.attempt == 1].min() == first
    assert sum(steps.count[steps.attempt == 1]) == 150 - first + 1


@pytest.mark.parametrize(
    "line", ["to resume from step 40 pass --resume", "loading data at step 40"]
)
def test_what_only_sounds_like_resuming_is_no_restart(line: str) -> None:
    assert read(*plain(0, 40), f"{at(41)} {line}", *plain(50, 90))["attempts"] == 1


def test_transformers_by_its_progress_bar_alone() -> None:
    bars = [f" {i:2}%|█▌        | {i}/100 [00:{2 * i:02d}<05:00,  2.00s/it]" for i in range(1, 20)]
    evaluation = " 50%|█████     | 1/2 [00:00<00:00,  2.00it/s]"
    found = read("***** Running training *****", "\r".join(bars), evaluation)
    assert found["last_step"] == 19
    assert found["attempts"] == 1
    assert found["accounts"] == {"effective": 36}
    assert any("no time stamps" in note for note in found["notes"])


def test_transformers_with_a_logger_of_its_own() -> None:
    def line(t: float, step: int) -> list[str]:
        return [
            f" 99%|█████████▉| {step}/2436 [30:45:19<16:49, 45.87s/it]{{'loss': 0.98}}",
            f"[{at(t)}] [INFO] [hf_trainer.py:53:on_log] loss: 0.98, iter: {step}/2436,"
            "  30:45:19 < 16:49,  45.87s/it",
        ]

    steps = [part for i in range(1, 11) for part in line(40 * i, i)]
    found = read(
        f"[{at(0)}] [INFO] [real_accelerator.py:161] Setting ds_accelerator",
        *steps,
        f"[INFO|trainer.py:2881] {at(401)} >> Saving model checkpoint to out/checkpoint-10",
        f"[INFO|tokenization_utils_base.py:2433] {at(430)} >> tokenizer config file saved in"
        " out/checkpoint-10/tokenizer_config.json",
        *line(480, 11),
        "{'train_runtime': 111725.9523, 'epoch': 1.0}",
        f"[{at(490)}] [INFO] done",
    )
    # The 11th took 80 s: 40 as usual, 29 that the log explains, 11 that it does not.
    assert found["accounts"] == pytest.approx(
        {"unattributed": 40, "effective": 400, "checkpoint_blocked": 29, "other_in_loop": 11,
         "teardown": 10}
    )  # fmt: skip


def test_nanogpt_without_any_clock() -> None:
    found = read(
        "tokens per iteration will be: 491,520",
        "step 0: train loss 10.9, val loss 10.9",
        *(f"iter {i}: loss 3.{i}, time 100.00ms, mfu 10.0%" for i in range(0, 50, 10)),
        "saving checkpoint to out",
    )
    assert found["last_step"] == 40
    assert found["accounts"] == pytest.approx({"effective": 4.1})


def test_lightning_counts_on_over_epochs() -> None:
    def bar(epoch: int, i: int, clock: int) -> str:
        return f"{at(clock)} Epoch {epoch}:  10%|█| {i}/50 [00:{i:02d}<00:49, 1.00it/s, v_num=0]"

    found = read(*(bar(0, i, i) for i in range(1, 51)), *(bar(1, i, 50 + i) for i in range(1, 11)))
    assert (found["last_step"], found["attempts"]) == (60, 1)
    assert found["accounts"] == {"effective": 59}


def test_a_job_slurm_preempted() -> None:
    found = read(
        *(f"{at(i)} step {i} loss 1.0" for i in range(5)),
        f"slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT {at(6).replace(' ', 'T')[:-4]} DUE TO"
        " PREEMPTION ***",
    )
    assert found["failures"]["scheduler"] == 1
    assert found["accounts"] == {"unsaved": 4, "detect": 2}


def test_ranks_in_one_log_are_not_restarts() -> None:
    def line(rank: int, step: int, t: float) -> str:
        return f"[rank{rank}]:{at(t)} step: {step} loss: 1.0 tps: 3"

    mixed = [line(0, 1, 1), line(1, 1, 1), line(0, 2, 2), line(0, 3, 3), line(1, 2, 2.1)]
    found = read(*mixed, line(1, 3, 3.1), line(0, 4, 4))
    assert (found["attempts"], found["last_step"]) == (1, 4)


def test_a_number_in_brackets_is_not_a_rank() -> None:
    found = read(*(f"[{i}] {at(i)} loss 1.0" for i in range(1, 9)), step=r"^\[(\d+)\]")
    assert (found["last_step"], found["attempts"]) == (8, 1)


def test_a_users_own_patterns() -> None:
    found = read(
        *(f"15.11.2026-10:00:{i:02d} | did {i} of 9" for i in range(1, 5)),
        "15.11.2026-10:00:06 | stored 4",
        "15.11.2026-10:00:08 | did 5 of 9",
        "15.11.2026-10:00:09 | again",
        "15.11.2026-10:00:10 | did 5 of 9",
        "15.11.2026-10:00:11 | did 6 of 9",
        step=r"did (\d+) of",
        time="%d.%m.%Y-%H:%M:%S",
        checkpoint=r"stored (\d+)",
        start="again",
    )
    assert found["attempts"] == 2
    assert found["accounts"] == pytest.approx(
        {"effective": 4, "other_in_loop": 3, "unsaved": 1, "restart_gap": 1, "unattributed": 1}
    )


@pytest.mark.parametrize(
    ("lines", "how", "said"),
    [
        (["hello"], {}, "train.log:1: expected a log of training steps, found no line with a step"),
        (["step 1", "step 2"], {}, "train.log:2: expected lines with a step and a time"),
        (["step 1"], {"step": "("}, "--step: expected a regular expression"),
        (["step 1"], {"step": "step"}, "--step: expected a group around the number"),
        (["step 1"], {"time": "%Q"}, "--time: expected a strptime format"),
        (["step 1"], {"time": "%Y"}, "train.log:1: expected lines of steps with a time as --time"),
        (["step 1"], {"dialect": "klingon"}, "--dialect: expected one of megatron,"),
    ],
)
def test_what_is_no_log_of_steps_is_refused(
    lines: list[str], how: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(*lines, **how)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("[2024-04-29 06:18:02,707] x", 1714371482.707),
        ("2024-04-29T06:18:02.707Z x", 1714371482.707),
        ("x 2024-04-29T08:18:02.707+02:00", 1714371482.707),
        ("x 2024-04-29T08:18:02+0200", 1714371482),
        ("2024/04/29 06:18:02 x", 1714371482),
        ("04/29/2024 06:18:02 - INFO - __main__", 1714371482),
        ("I0429 06:18:02.707000 123 x.cc:1] y", 10217882.707),
        ("1714371482.707 x", 1714371482.707),
        ("epoch 12:30:00", None),
        ("2024-13-45 06:18:02", None),
    ],
)
def test_common_time_stamps(text: str, seconds: float | None) -> None:
    assert stamp(text) == (None if seconds is None else pytest.approx(seconds, abs=1e-5))
