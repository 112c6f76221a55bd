"""The first step of a compiled model: cold, from a warm folder, from a MegaCache, from our library.

    ./dev bench compile --model gpt            one model: mlp, dlrm, gpt, gpt-max, triton
    ./dev bench compile                        all that this machine can run

    cold         an empty cache folder; this process also saves the MegaCache and the archive
    local        another process, the folder that the cold one left
    megacache    another process, an empty folder, torch.compiler.load_cache_artifacts
    ours         another process, an empty folder, ett.compile(model, cache=…)

Each is a fresh interpreter. Imports, the device's context and building the model are done before
the clock starts, on a GPU also what compilers import when they are first used (by a throwaway
compile into a folder of its own; on a CPU that would hide what a MegaCache leaves behind). The
clock holds the load of a cache and the first forward and backward.
Processes may prepare side by side, but only one at a time is told to go. The warm sides take turns
for a number of rounds, of which the median counts. Every process computes the same loss, or the
row says so.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from _table import Column, Report, Row, Sheet, bar, gpu_name, options

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("mlp", "dlrm", "gpt", "gpt-max", "triton")
SIDES = ("cold", "ours", "local", "megacache")
Step = Callable[[], Any]


# In a process of its own ------------------------------------------------------------------------


def mlp(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A stack of linear layers."""
    import torch
    from torch import nn

    width, depth, batch = (2048, 4, 4096) if device.type == "cuda" else (256, 4, 64)
    with device:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
        model = nn.Sequential(*layers, nn.Linear(width, 1))
        x = torch.randn(batch, width)
    return model, lambda run: run(x).square().mean()


def dlrm(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The DLRM of examples/."""
    import torch
    from dlrm.data import BATCH_SIZES, click_batch
    from dlrm.model import DLRM, PRESETS

    preset = "26-table" if device.type == "cuda" else "tiny"
    config = PRESETS[preset]
    with device:
        model = DLRM(config)
    batch = click_batch(
        torch.Generator().manual_seed(0),
        dense_features=config.dense_features,
        rows=config.rows,
        batch_size=BATCH_SIZES[preset],
    )
    dense, ids, offsets, labels = (part.to(device) for part in batch)
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    return model, lambda run: loss(run(dense, ids, offsets), labels)


def gpt(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The GPT of examples/; on a GPU 124M parameters, 16 × 512 tokens."""
    import torch
    from gpt.data import token_batch
    from gpt.model import GPT, PRESETS

    config = PRESETS["124m" if device.type == "cuda" else "tiny"]
    with device:
        model = GPT(config)
    tokens, targets = token_batch(
        torch.Generator().manual_seed(0),
        vocab_size=config.vocab_size,
        block_size=min(config.block_size, 512),
        batch_size=16 if device.type == "cuda" else 4,
    )
    tokens, targets = tokens.to(device), targets.to(device)
    return model, lambda run: run(tokens, targets)


def user_kernel(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Layers of Triton kernels of the user's own: a norm, then a linear map with its activation."""
    import _kernels
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1024))
            self.weight = nn.Parameter(torch.randn(1024, 1024) / 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + _kernels.linear_swish(_kernels.norm(x, self.scale), self.weight)

    with device:
        model = nn.Sequential(*(Layer() for _ in range(4)))
        x = torch.randn(2048, 1024)
    return model, lambda run: run(x).square().mean()


def small_mlp(device: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Few layers: what max-autotune does, in less time."""
    import torch
    from torch import nn

    with device:
        model = nn.Sequential(nn.Linear(1024, 1024), nn.LayerNorm(1024), nn.GELU())
        x = torch.randn(1024, 1024)
    return model, lambda run: run(x).square().mean()


BUILD = {"mlp": mlp, "mlp-max": small_mlp, "dlrm": dlrm, "gpt": gpt, "gpt-max": gpt}
BUILD["triton"] = user_kernel


def child(model_name: str, side: str, folder: str) -> None:
    """Prepare, say so, wait to be told to go, take the first step, say what it took."""
    began = time.monotonic()
    sys.path.insert(0, str(ROOT / "examples"))
    import torch
    import torch._dynamo
    import torch._functorch._aot_autograd.autograd_cache
    import torch._inductor.async_compile
    import torch._inductor.codegen.triton
    import torch._inductor.compile_fx
    import torch._inductor.runtime.triton_heuristics

    import torchett.levers.compile.cache.session

    with suppress(ImportError):  # dynamo does it when it first meets a function of torch
        import torch.distributed.tensor.experimental
    imports_s = time.monotonic() - began
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        throwaway(device)
    torch.manual_seed(0)
    model, loss_of = BUILD[model_name](device)
    mode = "max-autotune" if model_name.endswith("-max") else None
    say({"ready": True, "imports_s": imports_s, "prepared_s": time.monotonic() - began})
    sys.stdin.readline()

    cpu = sum(os.times()[:4])
    began = time.monotonic()
    if side == "megacache":
        torch.compiler.load_cache_artifacts(Path(folder, "megacache").read_bytes())
    loaded = time.monotonic()
    if side in ("cold", "ours"):
        import torchett as ett

        run = ett.compile(model, cache=f"{folder}/library", workload=model_name, mode=mode)
    else:
        run = torch.compile(model, mode=mode)
    precise = (
        torch.autocast("cuda", torch.bfloat16)
        if device.type == "cuda" and model_name.startswith("gpt")
        else nullcontext()
    )
    with precise:
        loss = loss_of(run)
    loss.backward()
    value = loss.item()
    done = time.monotonic()

    from torchett.levers.compile.adapter.caches import counts

    found = counts()
    row: Row = {
        "side": side,
        "imports_s": imports_s,
        "load_s": loaded - began,
        "first_step_s": done - began,
        "cpu_s": sum(os.times()[:4]) - cpu,  # with compilers and other children
        "loss": value,
        "hits": found.hits,
        "misses": found.misses,
        "bypasses": found.bypasses,
        "graph_misses": found.graph_misses,
    }
    if side in ("cold", "ours"):
        outcome = torchett.levers.compile.cache.session._session._outcome  # type: ignore[union-attr]
        row |= {"match": outcome.match, "entries": outcome.entries, "reason": outcome.reason}
        row["load_s"] = outcome.download_s + outcome.install_s
    if side == "cold":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        Path(folder, "megacache").write_bytes(saved[0])
        row["megacache_bytes"] = len(saved[0])
        kept = time.monotonic()
        torchett.levers.compile.cache.session._session.settle(5.0)  # type: ignore[union-attr]
        row["keep_s"] = time.monotonic() - kept
        row["archive_bytes"] = sum(p.stat().st_size for p in Path(folder).glob("library/*/*.ett"))
    if os.environ.get("BENCH_PROFILE") and side != "cold":
        row["events"] = _events()
    say(row)
    sys.stdout.flush()
    os._exit(0)


def throwaway(device: Any) -> None:
    """Compile and run something else, elsewhere, and forget it: it imports what compilers need."""
    import torch
    from torch.compiler._cache import CacheArtifactManager

    real = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    with tempfile.TemporaryDirectory() as other:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = other
        weight = torch.ones(32, 32, device=device, requires_grad=True)

        @torch.compile
        def function(x: Any) -> Any:
            return (x @ weight).sin().sum()

        function(torch.ones(32, 32, device=device)).backward()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = real
    os.environ.pop("TRITON_CACHE_DIR", None)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.compilation_time_metrics.clear()
    CacheArtifactManager.clear()


def _events() -> dict[str, float]:
    """Torch's own times of the phases of compiling, for whoever wants to know what is left."""
    from torch._dynamo.utils import compilation_time_metrics

    totals = {name: sum(times) for name, times in compilation_time_metrics.items()}
    return {name: s for name, s in sorted(totals.items(), key=lambda i: -i[1])[:14] if s > 0.05}


def say(words: Row) -> None:
    print(json.dumps(words), flush=True)


# The four of them -------------------------------------------------------------------------------


def spawn(model: str, side: str, turn: int, folder: Path) -> "subprocess.Popen[str]":
    cache = folder / ("cache" if side in ("cold", "local") else f"cache-{side}-{turn}")
    env = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'benchmarks'}",
    }
    env.pop("TRITON_CACHE_DIR", None)
    command = [sys.executable, __file__, "--child", model, side, str(folder)]
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def answer(process: "subprocess.Popen[str]") -> Row:
    """The next JSON object the child prints that is one of ours."""
    stream: IO[str] | None = process.stdout
    assert stream is not None
    for line in stream:
        if line.startswith(('{"ready"', '{"side"')):
            found: Row = json.loads(line)
            return found
    return {"error": f"ended with {process.wait()}"}


def turns(rounds: int) -> list[tuple[str, int]]:
    """The processes of one model, in the order they are told to go."""
    warm = ("ours", "local", "megacache")
    order = [("cold", 0)]
    for turn in range(rounds):
        order += [(warm[(turn + at) % 3], turn) for at in range(3)]
    return order


def measure(
    model: str, processes: "dict[tuple[str, int], subprocess.Popen[str]]", rounds: int, folder: Path
) -> list[Row]:
    """One row a process; one that is not there yet is started now."""
    rows = []
    for side, turn in turns(rounds):
        process = processes.get((side, turn)) or spawn(model, side, turn, folder)
        row = {"model": model, "side": side, **answer(process)}
        if "error" not in row:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            row |= answer(process)
        process.wait()
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def table_row(rows: list[Row]) -> Row:
    """The sides of one model in one row."""
    cold = rows[0]
    found: Row = {"model": cold["model"]}
    for side in SIDES:
        times = [row["first_step_s"] for row in rows if row["side"] == side and "loss" in row]
        found[side] = statistics.median(times) if times else None
    if all(found[side] for side in SIDES):
        found["cut"] = 100 * (1 - found["ours"] / found["cold"])
        found["megacache_cut"] = 100 * (1 - found["megacache"] / found["cold"])
        found["archive_mb"] = cold["archive_bytes"] / 1e6
        found["megacache_mb"] = cold["megacache_bytes"] / 1e6
        losses = [row["loss"] for row in rows if "loss" in row]
        near = max(losses) - min(losses) <= 1e-3 * abs(losses[0]) + 1e-6
        found["same_loss"] = "yes" if near else f"NO: {losses}"
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
        return
    parser = options(__doc__ or "")
    parser.add_argument("--model", action="append", choices=(*MODELS, "mlp-max"))
    parser.add_argument(
        "--together",
        action="store_true",
        help="let all processes import side by side first (a machine with many cores)",
    )
    parser.add_argument("--rounds", type=int, help="of the warm sides; 3, or 1 with --quick")
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 3)
    gpu = gpu_name()
    chosen = args.model or [m for m in MODELS if gpu or m != "triton"]
    details, rows = [], []
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as folder:
        places = {model: Path(folder, model) for model in chosen}
        ready: dict[str, dict[tuple[str, int], subprocess.Popen[str]]] = {}
        for model, place in places.items():
            place.mkdir()
            early = turns(rounds) if args.together else []
            ready[model] = {turn: spawn(model, *turn, place) for turn in early}
        for model, place in places.items():
            measured = measure(model, ready[model], rounds, place)
            details += measured
            rows.append(table_row(measured))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    seconds, percent = "{:.2f}".format, "{:.1f}".format
    order = ("cold", "local", "megacache", "ours")
    columns = [Column("model", ""), *(Column(side, side, seconds) for side in order)]
    columns += [Column("cut", "ours: cut %", percent)]
    columns += [Column("megacache_cut", "megacache: cut %", percent)]
    columns += [Column("archive_mb", "archive MB", percent)]
    columns += [Column("megacache_mb", "megacache MB", percent), Column("same_loss", "same loss")]
    facts = {"device": gpu or "CPU", "torch": _torch()}
    report = Report("compile", facts=facts)
    report.sheets = [Sheet("seconds to load and take the first step", columns, rows)]
    for row in rows:
        cut, name = row.get("cut"), row["model"]
        report.bars.append(bar(f"{name}: cut", "≥ 85%", cut, cut is not None and cut >= 85, "%"))
        if cut is not None:
            less = row["ours"] - row["megacache"]
            report.bars.append(bar(f"{name}: against megacache", "≤ 0 s", less, less <= 0, "s"))
        if name == "gpt-max" and gpu and cut is not None:
            held, size = row["ours"] <= row["local"], row["archive_mb"]
            report.bars.append(bar("gpt-max: as a warm folder", "≤ local", row["ours"], held, "s"))
            report.bars.append(bar("gpt-max: archive", "≤ 30 MB", size, size <= 30, "MB"))
    report.sheets.append(Sheet("each process", [Column("model", "")], details))
    if args.json:
        report.show(True)
    else:
        report.sheets.pop()
        report.show(False)


def _torch() -> str:
    from importlib.metadata import version

    return f"torch {version('torch')}"


if __name__ == "__main__":
    main()
