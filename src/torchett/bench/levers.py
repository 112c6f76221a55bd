"""The levers of a bench: what switches each on and off, and which accounts it works on."""

from dataclasses import dataclass

from torchett.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A lever: options of `ett run` with and without it, or a word for train_ett.py --without.

    A lever that `needs` others does nothing alone: it is compared with those others switched on.
    """

    name: str
    title: str
    accounts: tuple[str, ...]
    on: tuple[str, ...] = ()
    on_gpu: tuple[str, ...] = ()  # further options on a GPU
    off: tuple[str, ...] = ()
    word: str | None = None
    needs: frozenset[str] = frozenset()


LEVERS = (
    Lever(
        name="standby",
        title="warm standbys, short imports, fast detection",
        accounts=(
            *("launcher_init", "imports", "device_init", "process_group_init"),
            *("detect", "restart_gap", "teardown"),
        ),
        on=("--standby",),
        on_gpu=("--standby-device", "--standby-model"),
        off=("--no-standby", "--no-bytecode"),
    ),
    Lever(
        name="plan",
        title="start-up plan",
        accounts=("preproc_creation", "train_module_creation", "init_plugins", "pre_train"),
        word="plan",
    ),
    Lever(
        name="fast_batch",
        title="fast batch",
        accounts=("get_first_batch_data",),
        word="fast_batch",
    ),
    Lever(
        name="compile_cache",
        title="compile cache",
        accounts=("pt2_compile",),
        on=("--compile-cache", "{shared}"),
    ),
    Lever(
        name="dynamic_sources",
        title="dynamic sources",
        accounts=("recompile",),
        on=("--dynamic-sources", "auto"),
    ),
    Lever(
        name="checkpoints",
        title="zero-stall checkpoints",
        accounts=("checkpoint_blocked", "checkpoint_restore", "final_checkpoint"),
        word="checkpoints",
    ),
    Lever(
        name="light_batches",
        title="light batches",
        accounts=("data_wait",),
        on=("--light-batches",),
    ),
    Lever(
        name="interval",
        title="auto interval",
        accounts=("unsaved",),
        word="interval",
        needs=frozenset({"checkpoints"}),
    ),
)
NAMES = tuple(lever.name for lever in LEVERS)
EVERY = frozenset(NAMES)
UNBROKEN = "unbroken"  # a stock job without failures


def sides(each: bool) -> dict[str, frozenset[str] | None]:
    """The sides of a bench by name, with the levers of each (None: the stock script).

    With `each`, also: every lever alone, all levers but one, and the sides to compare those with.
    """
    found: dict[str, frozenset[str] | None] = {"stock": None, "torchett": EVERY}
    if each:
        found[UNBROKEN] = None
        for lever in LEVERS:
            for chosen in (lever.needs, lever.needs | {lever.name}):
                found[only(chosen)] = chosen
            found[without(lever)] = EVERY - {lever.name}
    return found


def only(chosen: frozenset[str]) -> str:
    """The name of a side with these levers and no others."""
    return "-".join(("only", *sorted(chosen))) if chosen else "no-lever"


def without(lever: Lever) -> str:
    """The name of a side with all levers but this one."""
    return f"without-{lever.name}"


def run_options(chosen: frozenset[str], shared: str, *, on_gpu: bool = False) -> list[str]:
    """Options of `ett run` for a side with these levers."""
    words: list[str] = []
    for lever in LEVERS:
        words += lever.on if lever.name in chosen else lever.off
        words += lever.on_gpu if on_gpu and lever.name in chosen else ()
    return [word.format(shared=shared) for word in words]


def script_options(chosen: frozenset[str]) -> list[str]:
    """The options that switch levers off in train_ett.py."""
    words = [lever.word for lever in LEVERS if lever.word and lever.name not in chosen]
    return ["--without", ",".join(words)] if words else []


def won_s(stock: Ledger, ours: Ledger) -> dict[str, float]:
    """Rank-seconds less in the accounts of each lever, and in the accounts of no lever."""
    rest = {name: stock.accounts.get(name, 0) for name in {*stock.accounts, *ours.accounts}}
    change = {name: ns - ours.accounts.get(name, 0) for name, ns in rest.items()}
    change.pop("effective", None)
    found = {
        lever.title: sum(change.pop(name, 0) for name in lever.accounts) / 1e9 for lever in LEVERS
    }
    return found | {"in accounts of no lever": sum(change.values()) / 1e9}
