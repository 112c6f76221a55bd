"""What a process takes to import torch, dynamo and inductor, with and without kept bytecode.

    ./dev bench imports [--rounds 7] [--quick] [--json]

Each way in turn, in fresh processes that find all files read; medians. "no bytecode" is what an
installation without bytecode does in every process (images made by uv, read-only ones); "kept" is
what `ett run` does there from the second process on; "kept, no collections" what its standbys do.
"""

import statistics
import sys
import tempfile
import time

from _table import Bar, Column, Report, Row, Sheet, fresh, options, serve

MODULES = (
    *("torch", "torch.distributed", "torch.utils.data", "torch._dynamo"),
    *("torch.distributed.checkpoint.state_dict", "torch._inductor.compile_fx"),
)
WAYS = {
    "no bytecode": ("compile",),
    "kept": ("keep",),
    "kept, no collections": ("keep", "gc"),
}


def imports(ways: list[str], folder: str) -> Row:
    """Seconds until all is imported."""
    began, cpu = time.perf_counter(), time.process_time()
    from torchett.launch.standby.rank_process import prepare

    if "keep" in ways:
        sys.pycache_prefix, sys.dont_write_bytecode = folder, False
    else:
        sys.pycache_prefix, sys.dont_write_bytecode = f"{folder}-none", True
    for name in MODULES:
        prepare(name) if "gc" in ways else __import__(name)
    return {"imports_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found: dict[str, list[Row]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="ett-imports-") as folder:
        fresh(imports, ways=["keep"], folder=folder)  # now all files are read
        for _ in range(1 if args.quick else args.rounds):
            for name, ways in WAYS.items():
                found[name].append(fresh(imports, ways=list(ways), folder=folder))
    rows: list[Row] = []
    for name, rounds in found.items():
        row = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        rows.append({"way": name, **row})
        rows[-1]["less"] = 100 * (1 - row["imports_s"] / rows[0]["imports_s"])
    seconds, percent = "{:.2f}".format, "{:.0f}%".format
    columns = [
        Column("way", "way"),
        Column("imports_s", "imported after, s", seconds),
        Column("cpu_s", "CPU s", seconds),
        Column("less", "less than without", percent),
    ]
    report = Report("imports", facts={"rounds": len(found["kept"])})
    report.sheets = [Sheet("imports", columns, rows)]
    less = rows[-1]["less"]
    report.bars = [Bar("kept, no collections", "≥ 30% less", f"{less:.0f}%", less >= 30)]
    report.show(args.json)


if __name__ == "__main__":
    serve((imports,))
    main()
