"""What a process takes to import torch, dynamo and inductor and to hash torch's sources.

    ./dev bench imports [--rounds 7] [--quick] [--json]

Each way in turn, in fresh processes that find all files read; medians. The first is Python's own;
all others leave garbage lying meanwhile, as standbys do; "all" is what `ett run` does at the second
launch in an environment, "no file yet" what it does at the first.
"""

import os
import statistics
import tempfile
import time

from _table import Bar, Column, Report, Row, Sheet, fresh, options, serve

MODULES = (
    *("torch", "torch.distributed", "torch.utils.data", "torch._dynamo"),
    *("torch.distributed.checkpoint.state_dict", "torch._inductor.compile_fx"),
)
HASHED = "torchett.launch.rehearsal:hash_sources"
WAYS = {
    "python": (),
    "rarely collected": ("gc",),
    "… two shortcuts": ("gc", "shortcuts"),
    "… libraries by a thread": ("gc", "libraries"),
    "… bytecode in one file": ("gc", "bundle"),
    "… hash remembered": ("gc", "hash"),
    "no file yet": ("gc", "shortcuts", "libraries"),
    "all": ("gc", "shortcuts", "libraries", "bundle", "hash"),
}


def imports(ways: list[str], folder: str, write: bool) -> Row:
    """Seconds until all is imported, and until the sources are hashed."""
    began, cpu = time.perf_counter(), time.process_time()
    os.environ["ETT_BYTECODE"] = folder
    from torchett.launch.imports import bundle, hashes, libraries, shortcuts
    from torchett.launch.standby import prepare
    from torchett.record.boarding import when_imported

    if "bundle" in ways:
        bundle.board()
    if "shortcuts" in ways:
        shortcuts.name_modules_of_frames()
        when_imported("torch._inductor.codegen.common", shortcuts.compile_templates_late)
    if "libraries" in ways:
        libraries.load_beside()
    if "hash" in ways:
        when_imported("torch._inductor.codecache", hashes.recall)
    for name in MODULES:
        prepare(name) if "gc" in ways else __import__(name)
    imported = time.perf_counter() - began
    prepare(HASHED)
    row = {"imports_s": imported, "all_s": time.perf_counter() - began}
    row["cpu_s"] = time.process_time() - cpu
    if write:
        bundle.write()
        hashes.remember()
    return row


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    found: dict[str, list[Row]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="ett-imports-") as folder:
        for _ in range(2):  # by the second all files are read, and there is bytecode of each
            fresh(imports, ways=["bundle"], folder=folder, write=True)
        for _ in range(1 if args.quick else args.rounds):
            for name, ways in WAYS.items():
                found[name].append(fresh(imports, ways=list(ways), folder=folder, write=False))
        size_mb = max(entry.stat().st_size for entry in os.scandir(folder)) / 1e6
    rows: list[Row] = []
    for name, rounds in found.items():
        row = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        rows.append({"way": name, **row})
        rows[-1]["less"] = 100 * (1 - row["all_s"] / rows[0]["all_s"])
    seconds, percent = "{:.2f}".format, "{:.0f}%".format
    columns = [
        Column("way", "way"),
        Column("imports_s", "imported after, s", seconds),
        Column("all_s", "and hashed, s", seconds),
        Column("cpu_s", "CPU s", seconds),
        Column("less", "less than python", percent),
    ]
    report = Report("imports", facts={"rounds": len(found["all"]), "file_mb": round(size_mb, 1)})
    report.sheets = [Sheet("imports", columns, rows)]
    less = rows[-1]["less"]
    report.bars = [Bar("all of it", "≥ 30% less", f"{less:.0f}%", less >= 30)]
    report.show(args.json)


if __name__ == "__main__":
    serve((imports,))
    main()
