"""A published model, loaded with torch and the standard library alone.

    model = Snapshot("snapshots/dlrm-7")
    logits = model(dense, ids, offsets)        # refuses a wrong shape or dtype with one sentence

This file lies in every snapshot as load.py, too: a host that serves needs no torchett, and
`python load.py --check` answers the examples that the snapshot was published with.

    snapshot.json          inputs, bounds, torch, instruction set
    model.pt2              compiled code, without weights
    weights.safetensors    the weights: mapped, not copied
    constants.safetensors  what the model computed while it was built, if anything
    examples.safetensors   inputs of some batch sizes and what the anchor answered
"""

import json
import mmap
import os
import platform
import sys
import time
import warnings
from pathlib import Path

if __name__ == "__main__" and sys.path and Path(sys.path[0], "load.py").exists():
    sys.path.pop(0)  # nothing is imported from a snapshot

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_V2 = {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
FLOORS = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


class SnapshotError(Exception):
    """A snapshot cannot be loaded here, or an input is refused: one sentence."""


class Snapshot:
    """A published model that answers batches."""

    def __init__(self, folder: "str | os.PathLike[str]") -> None:
        self.folder = Path(folder)
        self.told = _told(self.folder)
        began = time.perf_counter()
        import torch

        self.import_s = time.perf_counter() - began
        _refuse_unfit(self.told, str(torch.__version__), cpu_flags())
        if not (self.folder / "model.pt2").exists():
            raise SnapshotError(f"{self.folder} holds weights only: its recipe says compiled=False")
        began = time.perf_counter()
        os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"  # the compiled code checks, too
        self.weights = read_tensors(self.folder / "weights.safetensors")
        whole = {**self.weights}
        if (self.folder / "constants.safetensors").exists():
            whole.update(read_tensors(self.folder / "constants.safetensors"))
        whole.update({name: whole[to] for name, to in self.told["aliases"].items()})
        try:
            self._loader = torch._C._aoti.AOTIModelPackageLoader(
                str(self.folder / "model.pt2"), "model", False, 1, -1
            )
            names = self._loader.get_constant_fqns()
            missing = [name for name in names if name not in whole]
            if missing:
                raise SnapshotError(f"{self.folder}: weights.safetensors lacks {missing[0]!r}")
            self._constants = {name: whole[name] for name in names}  # kept: the code points at them
            self._loader.load_constants(self._constants, False, True, True, False)
        except RuntimeError as error:
            said = str(error).strip().splitlines()[0]
            raise SnapshotError(f"{self.folder}/model.pt2 cannot be loaded: {said}") from None
        self.load_s = time.perf_counter() - began

    def __call__(self, *inputs: object) -> object:
        """The model's answer: a tensor, or a list of all tensors in its answer."""
        answer = self.flat(*inputs)
        return answer[0] if len(answer) == 1 else answer

    def flat(self, *inputs: object) -> list:  # type: ignore[type-arg]
        """Every tensor of the model's answer; SnapshotError if the inputs are not as declared."""
        problem = self.refusal(*inputs)
        if problem is not None:
            raise SnapshotError(problem)
        try:
            return list(self._loader.boxed_run([tensor.contiguous() for tensor in inputs]))  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise SnapshotError(_refused(str(error))) from None

    def refusal(self, *inputs: object) -> "str | None":
        """What is wrong with these inputs, in one sentence; None if nothing is."""
        return refusal(self.told["inputs"], self.told["dims"], inputs)

    def examples(self) -> "dict[int, tuple[list, list]]":  # type: ignore[type-arg]
        """Batch size → inputs, and what the anchor answered."""
        found: dict[int, tuple[dict, dict]] = {}  # type: ignore[type-arg]
        for name, tensor in read_tensors(self.folder / "examples.safetensors").items():
            batch, side, number = name.split(".")
            sides = found.setdefault(int(batch), ({}, {}))
            sides[side == "answer"][int(number)] = tensor
        return {
            batch: ([a[i] for i in sorted(a)], [b[i] for i in sorted(b)])
            for batch, (a, b) in sorted(found.items())
        }

    def check(self) -> "dict[str, object]":
        """Answer every example; SnapshotError if an answer is off by more than the recipe says."""
        bounds = self.told["parity"]
        most, total, count, batches = 0.0, 0.0, 0, []
        for batch, (inputs, answers) in self.examples().items():
            for ours, theirs in zip(self.flat(*inputs), answers, strict=True):
                off = (ours.double() - theirs.double()).abs()
                if bool(ours.isnan().any()) != bool(theirs.isnan().any()):
                    raise SnapshotError(f"batch of {batch}: NaN on one side only")
                most = max(most, float(off.max()) if off.numel() else 0.0)
                total, count = total + float(off.sum()), count + off.numel()
            batches.append(batch)
        mean = total / max(count, 1)
        if most > bounds["most"] or mean > bounds["mean"]:
            raise SnapshotError(
                f"answers are off by {most:.3g} at most and {mean:.3g} on average: expected "
                f"{bounds['most']:g} and {bounds['mean']:g}"
            )
        return {"batches": batches, "max_error": most, "mean_error": mean}


def refusal(wanted: list, dims: dict, inputs: "tuple[object, ...]") -> "str | None":  # type: ignore[type-arg]
    """What is wrong with these inputs, in one sentence; None if nothing is."""
    if len(inputs) != len(wanted):
        names = ", ".join(one["name"] for one in wanted)
        return f"expected {len(wanted)} inputs ({names}), found {len(inputs)}"
    seen: dict[str, tuple[int, str]] = {}
    for one, tensor in zip(wanted, inputs, strict=True):
        name, dtype = one["name"], str(getattr(tensor, "dtype", type(tensor).__name__))
        if dtype != one["dtype"]:
            return f"input {name!r}: expected {one['dtype']}, found {dtype}"
        shape = tuple(tensor.shape)  # type: ignore[attr-defined]
        if len(shape) != len(one["shape"]):
            return f"input {name!r}: expected shape {_shown(one['shape'])}, found {shape}"
        for at, (size, bound) in enumerate(zip(shape, one["shape"], strict=True)):
            if isinstance(bound, int):
                if size != bound:
                    return f"input {name!r}: expected {bound} in dimension {at}, found {size}"
                continue
            least, most = dims[bound]
            if not least <= size <= most:
                return (
                    f"input {name!r}: expected {least} to {most} in dimension {at} ({bound}), "
                    f"found {size}"
                )
            before = seen.setdefault(bound, (size, name))
            if before[0] != size:
                return (
                    f"input {name!r}: {bound} is {size}, but it is {before[0]} in input "
                    f"{before[1]!r}"
                )
    return None


def _refused(said: str) -> str:
    """What the compiled code says of inputs that it cannot take, without advice for its authors."""
    line = (said.strip().splitlines() or ["no reason given"])[0].partition("(Could this error")[0]
    if "index_size" in line or "valid range" in line:
        return f"refused: an index lies outside its table ({line.strip().rstrip('.')})"
    return f"refused: {line.strip()}"


def read_tensors(path: "str | os.PathLike[str]") -> dict:  # type: ignore[type-arg]
    """The tensors of a safetensors file: views of the mapped file."""
    import torch

    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length + 8 > size:
            raise SnapshotError(f"{path} is no safetensors file, or was cut off")
        header = json.loads(file.read(length))
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    header.pop("__metadata__", None)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, one in header.items():
            begin, end = one["data_offsets"]
            if end + 8 + length > size:
                raise SnapshotError(f"{path} was cut off: {name!r} ends at {end + 8 + length}")
            dtype = getattr(torch, _DTYPES[one["dtype"]])
            count = (end - begin) // dtype.itemsize
            if count:
                flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=8 + length + begin)
                found[name] = flat.view(one["shape"])
            else:
                found[name] = torch.empty(one["shape"], dtype=dtype)
    return found


def cpu_flags() -> "set[str]":
    """What the kernel says that this host's processor has."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def _told(folder: Path) -> dict:  # type: ignore[type-arg]
    try:
        told = json.loads((folder / "snapshot.json").read_bytes())
    except FileNotFoundError:
        raise SnapshotError(f"{folder}: expected a snapshot, found no snapshot.json") from None
    if told.get("format") != "snapshot/1":
        raise SnapshotError(f"{folder}: expected format snapshot/1, found {told.get('format')!r}")
    return told  # type: ignore[no-any-return]


def _refuse_unfit(told: dict, version: str, flags: "set[str]") -> None:  # type: ignore[type-arg]
    """SnapshotError where this torch or this processor is older than the snapshot needs."""
    if _release(told["torch"]) > _release(version):
        raise SnapshotError(
            f"published with torch {told['torch']}, this is {version}: install "
            f"torch >= {told['torch'].partition('+')[0]}, or publish it with this one"
        )
    floor, machine = told["isa"], platform.machine()
    if floor in FLOORS:
        missing = sorted(FLOORS[floor] - flags) if machine == "x86_64" else [machine]
        if missing:
            raise SnapshotError(
                f"published for {floor}, which this processor is not (no {', '.join(missing)}): "
                "publish it with a lower isa in the recipe"
            )
    elif floor != machine:
        raise SnapshotError(f"published for {floor}, this is {machine}: publish it for this one")


def _release(version: str) -> "tuple[int, ...]":
    parts = version.partition("+")[0].split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts[:2])


def _shown(shape: list) -> str:  # type: ignore[type-arg]
    return "[" + ", ".join(map(str, shape)) + "]"


def main(folder: str, *, check: bool) -> int:
    """Load, answer, and print what was found as one JSON object; 2 with one line if refused."""
    try:
        model = Snapshot(folder)
        found = model.check() if check else {}
    except (SnapshotError, OSError) as error:
        print(f"snapshot: {error}", file=sys.stderr)
        return 2
    shown = {"import_s": round(model.import_s, 3), "load_s": round(model.load_s, 3), **found}
    shown["alone"] = not any(name.split(".")[0] == "torchett" for name in sys.modules)
    print(json.dumps(shown))
    return 0


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    here = words[0] if words else os.path.dirname(os.path.abspath(__file__))
    raise SystemExit(main(here, check="--check" in sys.argv))
