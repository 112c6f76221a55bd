"""How many graphs a model needs over shifting sizes: as it is, and with what the doctor learned.

    ./dev bench recompiles [--case dlrm|gpt|list] [--backend inductor] [--json]

Each case trains the reference model for a step of each size under `ett compile doctor --apply`,
which runs it as it is, with dynamic sources, and (where a graph more is left) with unbacked ones;
each run with an empty cache. The aim is one forward graph for each structure, and each has one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _table import Column, Report, Row, Sheet, bar, options

ROOT = Path(__file__).resolve().parents[1]
DLRM_SIZES = (4096, 8192, 2048, 1024, 6144)
GPT_SIZES = ((4, 64), (8, 64), (4, 48), (6, 32), (1, 64), (12, 56))


def dlrm(backend: str) -> None:
    """Five batch sizes of the DLRM."""
    import torch
    from dlrm.data import click_batch
    from dlrm.model import DLRM, PRESETS
    from torch.nn.functional import binary_cross_entropy_with_logits

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = PRESETS["26-table" if device.type == "cuda" else "tiny"]
    model = torch.compile(DLRM(config).to(device), backend=backend)
    generator = torch.Generator().manual_seed(0)
    for size in DLRM_SIZES:
        batch = click_batch(
            generator, dense_features=config.dense_features, rows=config.rows, batch_size=size
        )
        dense, ids, offsets, labels = (part.to(device) for part in batch)
        binary_cross_entropy_with_logits(model(dense, ids, offsets), labels).backward()


def gpt(backend: str) -> None:
    """Six shapes of batch of the GPT, in both dimensions."""
    import torch
    from gpt.data import token_batch
    from gpt.model import GPT, PRESETS

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = PRESETS["tiny"]
    model = torch.compile(GPT(config).to(device), backend=backend)
    generator = torch.Generator().manual_seed(0)
    for batch, length in GPT_SIZES:
        tokens, targets = token_batch(
            generator, vocab_size=config.vocab_size, block_size=length, batch_size=batch
        )
        # Laid out as a loader's collate does: a batch of one row is a slice with odd strides else.
        tokens, targets = (
            part.to(device).clone(memory_format=torch.contiguous_format)
            for part in (tokens, targets)
        )
        model(tokens, targets).backward()


def ragged(backend: str) -> None:
    """A list of tensors, a number and an attribute that all change."""
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = torch.nn.Linear(16, 16), 1

        def forward(self, parts: Any, shift: int) -> Any:
            return sum(self.layer(part).sum() for part in parts) * self.scale + shift

    model = Scaled()
    runner = torch.compile(model, backend=backend)
    for turn, (a, b) in enumerate(((4, 8), (6, 8), (8, 8), (9, 3), (16, 7))):
        model.scale = turn + 1
        runner([torch.randn(a, 16), torch.randn(b, 16)], turn).backward()


CASES = {"dlrm": dlrm, "gpt": gpt, "list": ragged}


def measure(case: str, backend: str) -> list[Row]:
    """A row for each of the doctor's runs."""
    command = [sys.executable, "-m", "torchett.cli.main", "compile", "doctor", "--json", "--apply"]
    command += ["--", sys.executable, __file__, "--child", case, backend]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, env=os.environ | {"ETT_RUNS": folder}, capture_output=True, text=True
        )
    if done.returncode:
        raise SystemExit(f"{case} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    sides = json.loads(done.stdout.splitlines()[-1])["sides"]
    return [
        {
            "case": case,
            "side": side,
            "graphs": found["graphs"],
            "compile_s": found["compile_s"],
            "left": "; ".join(
                f"{one['kind']}: {one['reason']} {one['by'] or ''}" for one in found["each"]
            ),
        }
        for side, found in sides.items()
    ]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        sys.path.insert(0, str(ROOT / "examples"))
        CASES[sys.argv[2]](sys.argv[3])
        return
    parser = options(__doc__ or "")
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()
    rows = [row for case in args.case or CASES for row in measure(case, args.backend)]
    report = Report("recompiles", facts={"backend": args.backend})
    report.sheets = [
        Sheet(
            "graphs over shifting sizes",
            [
                Column("case", ""),
                Column("side", "sources"),
                Column("graphs", "graphs", "{:d}".format),
                Column("compile_s", "compiling s", "{:.1f}".format),
                Column("left", "compiled again because"),
            ],
            rows,
        )
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        least = min(row["graphs"] for row in rows if row["case"] == case)
        report.bars.append(bar(f"{case}: forward graphs", "1", least, least == 1, ""))
    report.show(args.json)


if __name__ == "__main__":
    main()
