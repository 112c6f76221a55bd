"""Pins: a kernel is tuned once, and what won is used until kernel, configs or device change.

    <inductor's cache folder>/ett-pins/
      matmul-3f09c2….json          one kernel, one key: winner, timings, seconds it took
      matmul-77d1e0….keep.json     the configs worth trying for other keys (`--prune`)

The name is a hash of all that a winner depends on, so one that no longer holds is simply not
found. Under `ett run` pins are used; a script that only records writes none (`ETT_PINS=1` does).
"""

import getpass
import hashlib
import json
import logging
import os
import re
import tempfile
from collections import defaultdict
from dataclasses import asdict
from math import exp, isfinite, log
from pathlib import Path
from types import ModuleType
from typing import Any

from torchett.compile.adapter import autotune
from torchett.compile.adapter.autotune import Kernel, Tuned
from torchett.compile.facts import KERNEL, keep
from torchett.record.boarding import when_imported

FORMAT = "pin/1"
_MOST_FACTS = 1000
logger = logging.getLogger("torchett")


def board() -> None:
    """Watch kernels being tuned, and use pins where ETT_PINS=1."""
    when_imported("triton.runtime.autotuner", _watch_triton)
    when_imported("torch._inductor.runtime.triton_heuristics", _watch_inductor)
    when_imported("triton.knobs", _watch_compiler)


def _watch_triton(module: ModuleType) -> None:
    autotune.listen_to_triton(module, _pins)


def _watch_inductor(module: ModuleType) -> None:
    autotune.listen_to_inductor(module, _pins)


def _watch_compiler(module: ModuleType) -> None:
    autotune.listen_to_compiler(module, _pins)


def pins_folder() -> Path:
    """The folder of pins: inside Inductor's cache folder, so that they travel with it."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not folder:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
        folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")
    return Path(folder) / "ett-pins"


class Pins:
    """The pins of this process: answers what won, and writes down what wins."""

    def __init__(self) -> None:
        self._facts = 0

    def winner(self, kernel: Kernel, key: str) -> str | None:
        """The pinned winner; None where there is none, or pins are not to be used."""
        if os.environ.get("ETT_PINS") != "1":
            return None
        pin = _read(pin_path(pins_folder(), kernel, key))
        if pin is None or pin.get("key") != key or pin.get("kernel") != asdict(kernel):
            return None
        winner = pin.get("winner")
        if not isinstance(winner, str):
            return None
        self._note(kernel, key, winner, pinned=True)
        return winner

    def tuned(self, what: Tuned) -> None:
        """Pin the winner, and note what it took to find it."""
        self._note(
            what.kernel,
            what.key,
            what.winner,
            tuning_s=what.tuning_s,
            benchmarks=len(what.timings_ms),
        )
        if os.environ.get("ETT_PINS") == "1":
            pin = {"format": FORMAT, **asdict(what)}
            _write(pin_path(pins_folder(), what.kernel, what.key), pin)

    def kept(self, kernel: Kernel) -> frozenset[str] | None:
        if os.environ.get("ETT_PINS") != "1":
            return None
        found = _read(keep_path(pins_folder(), kernel))
        return frozenset(map(str, found["keep"])) if found and found.get("keep") else None

    def compiled(self, name: str, seconds: float) -> None:
        self._facts += 1
        if self._facts <= _MOST_FACTS:
            keep(KERNEL, {"kernel": name, "compiling_s": round(seconds, 6)})

    def _note(self, kernel: Kernel, key: str, winner: str, **took: Any) -> None:
        self._facts += 1
        if self._facts <= _MOST_FACTS:
            about = {"kernel": kernel.name, "origin": kernel.origin, "source": kernel.source[:16]}
            told = {"key": key[:200], "winner": winner, "pins": str(pins_folder())}
            keep(KERNEL, about | told | took)


def pin_path(folder: Path, kernel: Kernel, key: str) -> Path:
    return folder / f"{_name(kernel, key)}.json"


def keep_path(folder: Path, kernel: Kernel) -> Path:
    return folder / f"{_name(kernel)}.keep.json"


def _name(kernel: Kernel, *more: str) -> str:
    text = "\0".join([*asdict(kernel).values(), *more])
    safe = re.sub(r"\W", "_", kernel.name)[:80]
    return f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def prune(folder: Path, k: int) -> dict[str, tuple[int, int]]:
    """Keep the k best configs of every user's kernel pinned here: name → kept, of how many.

    Best over all its keys: by the geometric mean of how much slower than the winner each was.
    """
    slower = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    kernels: dict[str, Kernel] = {}
    for path in sorted(folder.glob("*.json")):
        pin = None if path.name.endswith(".keep.json") else _read(path)
        try:
            if pin is None or pin["kernel"]["origin"] != "triton":
                continue
            kernel = Kernel(**pin["kernel"])
            timings = {str(c): float(ms) for c, ms in pin["timings_ms"] if isfinite(float(ms))}
        except (KeyError, TypeError, ValueError):
            continue
        best = min(timings.values(), default=0.0)
        kernels[_name(kernel)] = kernel
        for config, ms in timings.items():
            slower[_name(kernel)][config].append(ms / best if best > 0 else 1.0)
    done: dict[str, tuple[int, int]] = {}
    for name, by_config in slower.items():
        most = max(len(times) for times in by_config.values())
        tried = {c: times for c, times in by_config.items() if len(times) == most}
        mean = {c: exp(sum(map(log, times)) / len(times)) for c, times in tried.items()}
        best_few = sorted(mean, key=lambda config: (mean[config], config))[:k]
        _write(keep_path(folder, kernels[name]), {"format": FORMAT, "keep": best_few})
        done[kernels[name].name] = (len(best_few), len(by_config))
    return done


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def _write(path: Path, pin: dict[str, Any]) -> None:
    """In one piece: a reader sees all of it or nothing."""
    from torchett.store import write_whole  # few processes come this far

    try:
        write_whole(path, json.dumps(pin).encode(), durable=False)
    except OSError as error:
        logger.warning("torchett: a winner is not pinned: %s", error)


_pins = Pins()
