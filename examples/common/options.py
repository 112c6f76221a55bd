"""The command line that the training scripts share."""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from common.faults import Fault


def parse_options(workload: str, presets: Iterable[str]) -> argparse.Namespace:
    """What the user asked for, with the checkpoint folder filled in."""
    parser = argparse.ArgumentParser(
        description=f"Train the {workload} reference workload.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--preset", choices=list(presets), default="tiny", help="size of model and batch")
    add("--steps", type=int, default=120, help="optimizer steps of the whole job")
    if workload == "dlrm":
        add("--sharded", action="store_true", help="tables sharded over the ranks by TorchRec")
        add(
            "--publish",
            choices=["standalone", "in-trainer"],
            help="train_ett.py: publish at the end, by a CPU worker or while devices are held",
        )
    add("--batch-size", type=int, help="per rank (default: the preset's)")
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=0, help="of the weights and the data")
    add("--compile", action=argparse.BooleanOptionalAction, default=True)
    add("--num-workers", type=int, default=1, help="loader processes per rank")
    add("--data-warmup", type=float, default=0.0, metavar="SECONDS", help="before the first batch")
    add("--data-delay", type=float, default=0.0, metavar="SECONDS", help="in every batch")
    add("--checkpoint-dir", type=Path, help=f"(default: checkpoints/{workload}-PRESET)")
    add("--save-every", type=int, default=20, metavar="STEPS", help="0: only at the end")
    add("--mtbf", type=float, metavar="SECONDS", help="train_ett.py: expected between failures")
    add("--log-every", type=int, default=10, metavar="STEPS")
    add("--digest", action="store_true", help="print the sha256 of the final weights")
    fault = {"action": "append", "dest": "faults", "default": []}
    add("--kill-at", type=Fault.parse_kill, metavar="RANK:STEP", help="kill:RANK@STEP", **fault)
    add(
        "--fault",
        type=Fault.parse,
        metavar="FAULT",
        help="kill:RANK@STEP, node@STEP, preempt@STEP, error#START or slow:SECONDS#START, once per"
        " job (may be repeated)",
        **fault,
    )
    add(
        "--without",
        type=lambda text: frozenset(text.split(",")),
        default=frozenset(),
        metavar="LEVERS",
        help="train_ett.py: leave out plan, fast_batch, checkpoints or interval (comma between)",
    )
    args = parser.parse_args()
    if getattr(args, "sharded", False) and os.environ.get("WORLD_SIZE", "1") == "1":
        parser.error("--sharded needs two ranks or more: torchrun --nproc-per-node 2 …")
    if args.checkpoint_dir is None:
        args.checkpoint_dir = Path("checkpoints") / f"{workload}-{args.preset}"
    return args
