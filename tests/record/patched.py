"""A tiny training that tells which attributes of other packages are not what they were.

    python patched.py < cases.json > results.json

Torch is imported once; each case runs in a fork: {"how": "stock" | "init" | "levers", "levers":
[…], "env": {…}, "lacking": "module:Class.name", "hidden": "module:Class.name"}. What is lacking is
deleted; what is hidden, torchett's probe does not find, for names that torch itself cannot do
without. A result holds what changed, which of it no installed patch explains, the patches, the
log's lines and the loss at the end.
"""

import contextlib
import importlib
import io
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from types import CellType, FunctionType, ModuleType
from typing import Any

MODULES = (
    *("torch", "torch.distributed", "torch.distributed.checkpoint", "torch._dynamo"),
    *("torch._dynamo.utils", "torch._dynamo.convert_frame", "torch._inductor.compile_fx"),
    *("torch._inductor.runtime.triton_heuristics", "torch.utils.data.dataloader", "inspect"),
    *("torch.distributed.elastic.agent.server.local_elastic_agent", "dataclasses", "random"),
    *("torch.utils.data._utils.worker", "torch.amp.grad_scaler", "pickle", "threading", "gc"),
)


def attributes() -> dict[str, Any]:
    """Every function, class and method of modules that are not ours, by its name."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if type(module) is not ModuleType or name.partition(".")[0] in ("torchett", "__main__"):
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[f"{name}:{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                for own, held in list(vars(value).items()):
                    if not isinstance(held, int):  # a counter
                        found[f"{name}:{key}.{own}"] = held
            found |= {f"{name}:{key}()": cell for cell in _cells(value)}
    return found


def _cells(value: Any) -> list[Any]:
    """What a wrapper calls, all the way in: torch's logging wrappers are changed there."""
    found: list[Any] = []
    while type(value) is FunctionType and "func" in value.__code__.co_freevars:
        cell: CellType = value.__closure__[value.__code__.co_freevars.index("func")]
        value = cell.cell_contents
        found = [value]
    return found


def train(torch: Any, folder: str, backward: bool = True) -> float:
    """Three steps, a save and a load."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(6, 4), torch.ones(6, 2))
    run = torch.compile(model, backend="eager")
    loss = torch.zeros(())
    for x, y in torch.utils.data.DataLoader(data, batch_size=2):
        optimizer.zero_grad()
        loss = (run(x) - y).square().mean()
        if backward:
            loss.backward()
        optimizer.step()
    path = os.path.join(folder, "state.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    with torch.no_grad():
        return float((run(data.tensors[0]) - data.tensors[1]).square().mean())


def result(torch: Any, case: dict[str, Any], folder: str) -> dict[str, Any]:
    """What one case comes to, in a process of its own."""
    os.environ.update(case.get("env", {}))
    said = io.StringIO()
    logging.getLogger("torchett").addHandler(logging.StreamHandler(said))
    if lacking := case.get("lacking"):  # as in a version of torch that has no such name
        module, _, path = lacking.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, last = path.split(".")
        for name in outer:
            owner = getattr(owner, name)
        delattr(owner, last)
    if hidden := case.get("hidden"):
        from torchett.record import patches as probed

        find = probed.find
        gone = object.__getattribute__(probed, "_MISSING")
        probed.find = lambda name: gone if name == hidden else find(name)
    before = {}
    if "lacking" not in case and "hidden" not in case:
        train(torch, folder)  # what torch itself puts in place while it works is there
        before = attributes()
    if case["how"] == "levers":
        from torchett.record.plugins import install_plugins

        install_plugins(case["levers"])
    if case["how"] == "init":
        import torchett as ett

        assert ett.init() is not None
    try:
        loss: Any = train(torch, folder)
    except Exception:
        loss = traceback.format_exc()
    after = attributes() if before else {}
    changed = sorted(name for name in before.keys() & after if before[name] is not after[name])
    rows: list[tuple[str, str, str]] = []
    if case["how"] != "stock":
        from torchett.record.patches import _installed

        rows = [(one.patch.target, one.patch.lever, one.patch.default) for one in _installed]
    plain = [before.get(f"{target}{end}") for target, _, _ in rows for end in ("", "()")]
    unexplained = [name for name in changed if not any(before[name] is one for one in plain)]
    lines = [line for line in said.getvalue().splitlines() if line.startswith("torchett")]
    told = {"changed": changed, "unexplained": unexplained, "installed": rows}
    return {**told, "loss": loss, "said": lines}


def main() -> None:
    warnings.simplefilter("ignore")
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        # Imports and compiles. No backward pass: after one, torch for CUDA refuses those of forks.
        train(torch, folder, backward=False)
        for number, case in enumerate(cases):
            file = os.path.join(folder, f"{number}.json")
            if (pid := os.fork()) == 0:
                try:
                    os.environ["ETT_RUNS"] = os.path.join(folder, f"runs-{number}")
                    found = result(torch, case, folder)
                    with open(file, "w", encoding="utf-8") as out:
                        json.dump(found, out)
                except BaseException:
                    traceback.print_exc()
                os._exit(0)
            os.waitpid(pid, 0)
            with open(file, encoding="utf-8") as out:
                print(out.read(), flush=True)


if __name__ == "__main__":
    main()
