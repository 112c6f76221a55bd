"""Log formats of known trainers: which lines are steps, checkpoints, starts and ends.

Groups by name: `step` a step that is over, `first` the step that comes next, `seconds` or
`millis` how long it took, `elapsed` a clock of the trainer's own (tqdm's), `epoch` and `size` where
steps are counted from 0 in every epoch.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Final


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


NEVER: Final = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Patterns of one kind of log."""

    name: str
    step: re.Pattern[str]
    begun: re.Pattern[str] = NEVER  # the trainer starts
    resumed: re.Pattern[str] = NEVER  # it goes on from a checkpoint
    restored: re.Pattern[str] = NEVER  # a restore is over, after `seconds`
    saving: re.Pattern[str] = NEVER  # a checkpoint is begun
    saved: re.Pattern[str] = NEVER  # a checkpoint is safe
    evaluated: re.Pattern[str] = NEVER  # an evaluation is over, after `seconds`
    done: re.Pattern[str] = NEVER  # the job ended well
    failed: re.Pattern[str] = NEVER
    preempted: re.Pattern[str] = NEVER


# What launchers and schedulers write, whatever the trainer.
_AROUND: Final = Dialect(
    name="",
    step=NEVER,
    begun=_any(
        r"Setting OMP_NUM_THREADS environment variable for each process",
        r"torch\.distributed\.(?:run|launcher)\b.*(?:Starting|starting) ",
        r"^\+? ?(?:torchrun|accelerate launch|deepspeed|srun) ",
    ),
    failed=_any(
        r"^Traceback \(most recent call last\)",
        r"ChildFailedError",
        r"local_rank: \d+ \(pid: \d+\) of binary",
        r"slurmstepd: error: .*(?:CANCELLED|oom_kill|OOM Killed)",
        r"srun: error: .*(?:Killed|Exited with exit code|task \d+)",
        r"Segmentation fault|Bus error|^Killed\b",
    ),
    preempted=_any(r"DUE TO PREEMPTION", r"\bpreempted\b(?=.*(?:requeue|job|node))"),
)


def _said(words: str, *, not_after: str) -> str:
    """The words where they are meant: "saved", but not "could not be saved"."""
    behind = "".join(rf"(?<!\b{word} )" for word in not_after.split())
    return rf"\b(?={words}){behind}(?:{words})"


# What a plain log says in words: "resuming from checkpoint step 50", "checkpoint saved".
_AT_STEP: Final = r".*?(?<![a-z])(?:step|iter(?:ation)?)s?[ :=#_([-]*"
_RESUMED: Final = (
    rf"(?:{_said('resum(?:e|ed|ing)', not_after='to can will not')}"
    r"|\bcontinu(?:e|ed|ing)(?= (?:\w+ )?(?:from|at)\b)"
    r"|\b(?:load|restor)(?:ed|ing)(?= from\b|.*\b(?:checkpoint|ckpt|snapshot)))(?![.\w])"
)
_SAVED: Final = _said(
    r"(?:finished saving|saved|wrote|written)\b", not_after="the last no not be loading"
)
_CHECKPOINT: Final = r"[^,;|]*?" + _said("checkpoint", not_after="last every each per")

_TQDM: Final = (
    r"\|\s*(?P<step>\d+)/(?P<size>\d+) \[(?P<elapsed>(?:\d+:)?\d+:\d\d)<"
    r"[^\]]*?(?:s/it|it/s)"
)

DIALECTS: Final[tuple[Dialect, ...]] = (
    Dialect(
        name="megatron",
        step=_any(
            r"\biteration\s+(?P<step>\d+)/\s*\d+ \|.*elapsed time per iteration"
            r" \(ms\): (?P<millis>[\d.]+)"
        ),
        begun=_any(r"> initializing torch distributed", r"using world size: \d+"),
        resumed=_any(
            r"successfully loaded checkpoint from \S+(?: .*)? at iteration\s+(?P<step>\d+)"
        ),
        saving=_any(r"\bsaving checkpoint at iteration\s+(?P<step>\d+)"),
        saved=_any(r"successfully saved checkpoint (?:from|at) iteration\s+(?P<step>\d+)"),
        done=_any(r"\[after training is done\]", r"\[exiting program at iteration"),
    ),
    Dialect(
        name="torchtitan",
        step=_any(r"\bstep:\s*(?P<step>\d+)\s.*\bloss:\s*[\d.nai+-]+.*\b(?:tps|memory):"),
        begun=_any(r"Starting job:", r"torchtitan version:"),
        resumed=_any(r"Training starts at step (?P<first>\d+)"),
        restored=_any(r"[Ff]inished loading the checkpoint in (?P<seconds>[\d.]+) seconds"),
        saving=_any(r"(?:Saving|Staging) (?:the|a full) checkpoint"),
        saved=_any(r"Finished (?:saving|staging) the checkpoint.* in [\d.]+ ?s"),
        done=_any(r"Training completed", r"Process group destroyed"),
    ),
    Dialect(
        name="deepspeed",
        step=_any(r"\[Rank 0\] step=(?P<step>\d+), skipped=\d+"),
        resumed=_any(r"loading checkpoint .*global_step(?P<step>\d+)"),
        saving=_any(r"Saving model checkpoint: \S*global_step(?P<step>\d+)"),
        saved=_any(r"Saved \S*global_step(?P<step>\d+)/\S*optim_states"),
    ),
    Dialect(
        name="nanogpt",
        step=_any(
            r"^iter (?P<step>\d+): loss [\d.nai]+, time (?P<millis>[\d.]+) ?ms",
            r"^step\s+(?P<step_>\d+)(?:/\d+)? \|.*\bdt: (?P<millis_>[\d.]+) ?ms",
        ),
        begun=_any(r"^tokens per iteration will be", r"^Overriding config with"),
        saving=_any(r"^saving checkpoint to "),
    ),
    Dialect(
        name="lightning",
        step=_any(r"Epoch (?P<epoch>\d+):.*" + _TQDM),
        begun=_any(r"^(?:INFO: ?)?GPU available: ", r"LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES"),
        resumed=_any(r"Restored all states from the checkpoint at \S*step=(?P<step>\d+)"),
        saved=_any(r"Saved checkpoint \S*step=(?P<step>\d+)"),
        done=_any(r"`Trainer\.fit` stopped: `max_(?:epochs|steps)"),
    ),
    Dialect(
        name="transformers",
        step=_any(
            r"\biter: (?P<step>\d+)/\d+,\s+(?P<elapsed>(?:\d+:)?\d+:\d\d) <",
            _TQDM.replace("P<step>", "P<step_>")
            .replace("P<elapsed>", "P<elapsed_>")
            .replace("P<size>", "P<size_>"),
        ),
        begun=_any(r"\*{5} Running training \*{5}"),
        resumed=_any(r"Continuing training from global step (?P<step>\d+)"),
        saving=_any(r"Saving model checkpoint to \S*checkpoint-(?P<step>\d+)"),
        saved=_any(
            r"(?:saved in|saved at) \S*checkpoint-(?P<step>\d+)/",
            r"\bSaved \S*checkpoint-(?P<step_>\d+)/",  # DeepSpeed's, under a Trainer
        ),
        evaluated=_any(r"'eval_runtime': '?(?P<seconds>[\d.]+)"),
        done=_any(r"'train_runtime': ", r"Training completed[.!]"),
    ),
    Dialect(
        name="plain",
        step=_any(
            r"(?i)\b(?:global[_ ])?(?:step|iter|iteration)s?\b['\"]?\s*[:=#\[ (]\s*(?P<step>\d+)"
        ),
        begun=_any(r"(?i)\bstart(?:ing)? training\b"),
        resumed=_any(
            rf"(?i){_RESUMED}{_AT_STEP}(?P<step>\d+)",
            _said("resum(?:ed|ing)", not_after="not") + r"\b.*?\bfrom\b",
        ),
        saving=_any(rf"(?i)\bsaving\b{_CHECKPOINT}(?:{_AT_STEP}(?P<step>\d+))?"),
        saved=_any(
            rf"(?i){_SAVED}{_CHECKPOINT}(?:{_AT_STEP}(?P<step>\d+))?",
            rf"\bcheckpoint(?:[ :]+[\w./-]+){{0,8}}?[ :]+{_SAVED}(?:{_AT_STEP}(?P<step_>\d+))?",
        ),
        done=_any(r"(?i)\btraining (?:is )?(?:completed?|done|finished)\b"),
    ),
)


def around(dialect: Dialect) -> Dialect:
    """The dialect, with what launchers and schedulers write."""
    joined: dict[str, Any] = {}
    for key in (f.name for f in fields(Dialect) if f.name not in ("name", "step")):
        own, common = getattr(dialect, key), getattr(_AROUND, key)
        if common is not NEVER:
            joined[key] = common if own is NEVER else _any(own.pattern, common.pattern)
    return replace(dialect, **joined)


def spoken(lines: list[str]) -> Dialect | None:
    """The dialect of which most lines are steps; a special one wins over a plain one."""
    counts = [(sum(1 for s in lines if d.step.search(s)), -at) for at, d in enumerate(DIALECTS)]
    special = max(counts[:-1])
    best, at = special if special[0] else counts[-1]
    return DIALECTS[-at] if best else None
