"""What the words of a report mean: accounts, groups, figures and columns, each with what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from torchett.model.accounts import ACCOUNTS, BY_NAME, is_own
from torchett.report.marks import TITLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One word, what it means, and how to lower it where it is a loss."""

    word: str
    kind: str  # account, group, figure, column, lever
    meaning: str
    cure: str = ""


_GROUPS = {
    "effective": "Steps on new data whose progress survived. ETT% is their share of the whole.",
    "start": "From the allocation to the first trained step, once a job.",
    "recover": "From the last progress before a failure to the first trained step after it.",
    "in_loop": "Inside the training loop, but no step: saves, waits for data, evaluation, …",
    "shutdown": "After the last step, until the job has ended.",
    "unsaved": "Steps that were trained and then lost to a failure.",
    "unattributed": "Time that nothing recorded explains. It is shown, never spread over the rest.",
}
_CURES = {
    "launcher_init": "Keep the launcher warm: let torchrun restart ranks (--max-restarts).",
    "imports": "`ett run -- torchrun …` restarts ranks in processes that have imported torch.",
    "device_init": "`ett run --standby-device`: standbys hold a context on their GPU.",
    "process_group_init": "`ett startup audit RUN` names each group and what it waited for.",
    "train_module_creation": "Build the model on the device; overlap stages with `ett.Plan`.",
    "get_first_batch_data": "Start the loader first, and compile while it works: `ett.warm_up`.",
    "checkpoint_restore": "`ett.Checkpointer` reads ahead while the model is built.",
    "pt2_compile": "`ett run --compile-cache URL`: code is compiled once for all jobs.",
    "recompile": "`ett compile doctor RUN` says why, and what cures it.",
    "checkpoint_blocked": "`ett.Checkpointer` copies during the next step; a process uploads.",
    "data_wait": "More loader workers, persistent_workers, prefetch_factor; faster storage.",
    "evaluation": "Evaluate less often, or in a job of its own from a checkpoint.",
    "other_in_loop": 'Name it: `with ett.blocked("x-NAME"):` shows what it is.',
    "publish": "Publish from the last checkpoint in a job of its own, off the GPUs.",
    "detect": "`ett run` ends the peers of a dead rank at once, without a collective's time-out.",
    "restart_gap": "Restart inside the allocation: torchrun's --max-restarts.",
    "regroup": "torchft: shorter heartbeat and join time-outs; `ett run` for each group.",
    "refused": "Each failure loses at least one step; shorter steps lose less.",
    "unsaved": '`ett.Checkpointer(every="auto")` chooses the interval that wastes least.',
    "unattributed": 'Mark start-up: `with ett.stage("train_module_creation"):`.',
}
_FIGURES = (
    Term(word="ETT%", kind="figure", meaning="100 × effective ÷ rank-seconds."),
    Term(
        word="rank-seconds",
        kind="figure",
        meaning="The time an attempt owned × its ranks, summed over attempts: the 100%.",
    ),
    Term(
        word="Time to Start",
        kind="figure",
        meaning="From the start of the window (the allocation) to the first progress.",
    ),
    Term(
        word="Time to Recover",
        kind="figure",
        meaning="From the last step before a failure to the first progress after it.",
    ),
    Term(
        word="Number of Failures",
        kind="figure",
        meaning="Attempts that ended without success, by infra or the scheduler; the user's own"
        " are counted apart.",
    ),
    Term(
        word="at risk",
        kind="figure",
        meaning="Of a live job: steps above the last durable checkpoint. A failure now loses them.",
    ),
    Term(
        word="queue_s",
        kind="figure",
        meaning="Time in the scheduler's queue before the allocation; not part of the 100%.",
    ),
    Term(
        word="requeue_s",
        kind="figure",
        meaning="Time between two allocations of one job; not part of the 100%.",
    ),
    Term(
        word="estimated",
        kind="figure",
        meaning="Older steps are kept as blocks. Where a restart resumes inside one, its time is"
        " divided by number of steps.",
    ),
    Term(
        word="last step",
        kind="figure",
        meaning="The highest step whose progress survived; `saved` is the last durable one.",
    ),
)

_COLUMNS = {
    "lasted": "Of an attempt: the time that it owns, from the previous one's end to its own.",
    "steps": "Of an attempt: the first and the last step that it executed. Of a rank's step times:"
    " how many were measured; the first of each attempt is left out, because it is often slower.",
    "ended": "How an attempt ended, and the cause of a failure; `vanished` has no recorded end.",
    "lost to failures": "What each failure cost in rank-seconds: detect, restart gap, start again,"
    " unsaved.",
    "start again": "Of a failure: the start accounts of the next attempt, until it made progress.",
    "behind first rank": "How much later than the first rank this one begins a step, on average.",
    "stop": "Stage of a recovery: ranks are stopped, and the pause of a back-off is over.",
    "schedule": "Stage of a recovery: hardware was given back, until it is allocated again.",
    "failed starts": "Stage of a recovery: attempts in between that made no step.",
    "rendezvous": "Stage of a recovery: nodes meet, ranks start, process groups form.",
    "set up": "Stage of a recovery: data, model, plugins and the first batch.",
    "restore": "Stage of a recovery: the checkpoint is read.",
    "compile": "Stage of a recovery: torch.compile, before the first step ends.",
}


def terms() -> Iterator[Term]:
    """Every word of a report that can be explained."""
    for name, meaning in _GROUPS.items():
        if name not in BY_NAME:
            yield Term(word=name, kind="group", meaning=meaning)
    for account in ACCOUNTS:
        meaning = _GROUPS.get(account.name, account.meaning)
        cure = _CURES.get(account.name, "")
        yield Term(word=account.name, kind="account", meaning=meaning, cure=cure)
    yield from _FIGURES
    for word, meaning in _COLUMNS.items():
        yield Term(word=word, kind="column", meaning=meaning)


def explain(word: str, more: Sequence[Term] = ()) -> Term | None:
    """The term for a word, whatever its case, also among `more`; None if there is none."""
    if is_own(word):
        return Term(word=word, kind="account", meaning="A user's own account, named in the script.")
    key = _key(word)
    aliases = {_key(title): group for group, title in TITLES.items()}
    known = (*terms(), *more)
    return next((term for term in known if _key(term.word) in (key, aliases.get(key))), None)


def near(word: str, more: Sequence[Term] = ()) -> list[str]:
    """Words that look like this one."""
    return get_close_matches(word, [term.word for term in (*terms(), *more)], n=3, cutoff=0.5)


def _key(word: str) -> str:
    """A word without what people leave out or write in another way: `ETT` is `ETT%`."""
    return word.strip().rstrip("%").lower().replace("-", "_").replace(" ", "_")
