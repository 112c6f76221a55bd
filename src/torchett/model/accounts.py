"""The chart of accounts: a tree of what a rank can spend time on. Each instant has one leaf.

effective
idleness
  start        scheduling · hardware_setup · launcher_init · imports · device_init · …
  in_loop      checkpoint_blocked · recompile · data_wait · evaluation · other_in_loop
  shutdown     final_checkpoint · publish · teardown
failure
  recover      detect · restart_gap · regroup, and the start accounts of later attempts
  unsaved      unsaved · refused
unattributed
x-NAME         a user's own account: idleness of the group in which it was recorded
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["effective", "start", "in_loop", "shutdown", "recover", "unsaved", "unattributed"]


@dataclass(frozen=True, slots=True)
class Account:
    """One leaf of the tree: its name, its branch, its colour in every output, and its meaning."""

    name: str
    kind: Kind
    colour: str
    meaning: str


# Only effective time is green. Each branch has one family of colours.
ACCOUNTS: Final[tuple[Account, ...]] = (
    Account("effective", "effective", "#2e9e5b", "A step on new data whose progress survived."),
    Account("scheduling", "start", "#123a5c", "Hardware is free, the job is not yet placed on it."),
    Account("hardware_setup", "start", "#17507f", "Allocated, but the launcher does not run yet."),
    Account(
        "launcher_init",
        "start",
        "#1c659f",
        "Before the trainer runs: torchrun starts, and warm processes import torch.",
    ),
    Account("imports", "start", "#2479b8", "The trainer's interpreter starts and imports."),
    Account("device_init", "start", "#2d8bcb", "Devices and their contexts are made ready."),
    Account("process_group_init", "start", "#4199d4", "Ranks meet and form process groups."),
    Account("preproc_creation", "start", "#57a6db", "Data loading and preprocessing are built."),
    Account("train_module_creation", "start", "#6db3e1", "Model and optimizer are built."),
    Account("init_plugins", "start", "#83c0e7", "Callbacks, loggers and other plugins start."),
    Account("pre_train", "start", "#98cbec", "What is left to do before the loop."),
    Account("get_first_batch_data", "start", "#aad5f0", "The loader fetches its first batch."),
    Account("checkpoint_restore", "start", "#3f6fa8", "A checkpoint is found, read and loaded."),
    Account("pt2_compile", "start", "#5b5fc7", "torch.compile compiles for the first time."),
    Account("checkpoint_blocked", "in_loop", "#b8860b", "Training waits for a checkpoint."),
    Account("recompile", "in_loop", "#d99a1c", "torch.compile compiles again in the loop."),
    Account("data_wait", "in_loop", "#e8b04b", "Training waits for the data loader."),
    Account("evaluation", "in_loop", "#f0c674", "The model is evaluated, not trained."),
    Account("other_in_loop", "in_loop", "#cbb58a", "Between steps, for no recorded reason."),
    Account("final_checkpoint", "shutdown", "#7a4fa3", "The last checkpoint is written."),
    Account("publish", "shutdown", "#9669bd", "An inference-ready snapshot is made."),
    Account("teardown", "shutdown", "#b48fd3", "After the last step, until the job has ended."),
    Account("detect", "recover", "#a61b1b", "Last progress → the failed attempt is over."),
    Account("restart_gap", "recover", "#c93535", "Attempt over → the next one starts."),
    Account(
        "regroup",
        "recover",
        "#d95555",
        "Remaining ranks wait for a quorum, or receive a peer's state.",
    ),
    Account("unsaved", "unsaved", "#e0604f", "Steps whose progress was lost."),
    Account("refused", "unsaved", "#ea8578", "Steps that the replica groups did not commit."),
    Account("unattributed", "unattributed", "#8a8f98", "Nothing recorded explains this time."),
)

BY_NAME: Final[dict[str, Account]] = {account.name: account for account in ACCOUNTS}
NAMES: Final[tuple[str, ...]] = tuple(BY_NAME)
INDEX: Final[dict[str, int]] = {name: i for i, name in enumerate(NAMES)}

GROUPS: Final[tuple[Kind, ...]] = (
    "effective",
    "start",
    "recover",
    "in_loop",
    "shutdown",
    "unsaved",
    "unattributed",
)
GROUP_COLOURS: Final[dict[Kind, str]] = {
    "effective": "#2e9e5b",
    "start": "#2d8bcb",
    "recover": "#c93535",
    "in_loop": "#e8b04b",
    "shutdown": "#9669bd",
    "unsaved": "#e0604f",
    "unattributed": "#8a8f98",
}
RECORDABLE: Final[frozenset[str]] = frozenset(
    account.name for account in ACCOUNTS if account.kind in ("start", "in_loop", "shutdown")
) | {"regroup", "refused"}
_OWN = re.compile(r"x-[A-Za-z0-9_]+")


def is_own(name: str) -> bool:
    """Whether `name` is a user's own account, x-NAME."""
    return _OWN.fullmatch(name) is not None


def is_recordable(name: str) -> bool:
    """Whether a span may have this account: the others are derived by the ledger."""
    return name in RECORDABLE or is_own(name)


def closest(name: str) -> str | None:
    """The recordable account with the most similar name; None if none is similar."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name[:100], sorted(RECORDABLE), n=1, cutoff=0.75)), None)


def account(name: str) -> Account:
    """The account called `name`; for x-NAME, one made here."""
    if is_own(name):
        return Account(name, "in_loop", "#5f9ea0", "A user's own account.")
    return BY_NAME[name]
