"""How MLflow loads a published version: `mlflow.pyfunc.load_model("models:/dlrm@live")`.

This file lies beside a version in MLflow as code/ett_pyfunc.py. It needs torch, numpy and the
version's own load.py, not torchett.
"""

import importlib.util
from pathlib import Path


class Served:
    """A snapshot behind MLflow's `predict`."""

    def __init__(self, folder: str) -> None:
        path = Path(folder) / "load.py"
        spec = importlib.util.spec_from_file_location("ett_snapshot_load", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{path}: expected a published version's loader")
        load = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(load)
        self.snapshot = load.Snapshot(folder)
        self.refused = load.SnapshotError

    def predict(self, inputs: object, params: object = None) -> object:
        """The answers as numpy arrays, of arrays (or lists) by input name or in their order."""
        names = [one["name"] for one in self.snapshot.told["inputs"]]
        if isinstance(inputs, dict):
            if set(inputs) != set(names):
                raise self.refused(f"expected the inputs {', '.join(names)} by name")
            given = [inputs[name] for name in names]
        else:
            given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) == len(names):  # else the snapshot says what it expects
            told = self.snapshot.told["inputs"]
            given = [_tensor(one, how["dtype"]) for one, how in zip(given, told, strict=True)]
        arrays = [answer.numpy() for answer in self.snapshot.flat(*given)]
        return arrays[0] if len(arrays) == 1 else arrays


def _tensor(given: object, declared: str) -> object:
    """A list has no dtype: it takes the declared one. An array keeps its own and is checked."""
    import torch

    if isinstance(given, list):
        return torch.tensor(given, dtype=getattr(torch, declared.removeprefix("torch.")))
    return torch.as_tensor(given)


def _load_pyfunc(path: str) -> Served:
    return Served(path)
