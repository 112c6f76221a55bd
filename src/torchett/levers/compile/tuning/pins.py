"""Pins: a kernel is tuned once; its winner is used until kernel, configs or device change.

    <inductor's cache folder>/ett-pins/
      matmul-3f09c2….json          one kernel, one key: winner, timings, seconds of tuning
      matmul-77d1e0….keep.json     the configs to try for other keys (`--prune`)

The name is a hash of everything that a winner depends on, so an outdated pin is never found. Pins
are used only with ETT_PINS=1, which `ett run` sets.
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
from typing import Any

from torchett.levers.compile.adapter import autotune
from torchett.levers.compile.adapter.autotune import Kernel, Tuned
from torchett.levers.compile.observe.facts import KERNEL, keep
from torchett.record.plugins import when_imported

FORMAT = "pin/1"
_MOST_FACTS = 1000
logger = logging.getLogger("torchett")


def install_plugin() -> None:
    """Record the tuning of kernels, and use pins if ETT_PINS=1."""
    when_imported(autotune.AUTOTUNER, lambda _: autotune.listen_to_triton(_pins))
    when_imported(autotune.HEURISTICS, lambda _: autotune.listen_to_inductor(_pins))
    when_imported(autotune.KNOBS, lambda _: autotune.listen_to_compiler(_pins))


def pins_folder() -> Path:
    """The folder of pins: inside Inductor's cache folder, so that it is copied with that."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not folder:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
        folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")
    return Path(folder) / "ett-pins"


class Pins:
    """The pins of this process: reads and stores winners."""

    def __init__(self) -> None:
        self._facts = 0

    def winner(self, kernel: Kernel, key: str) -> str | None:
        """The pinned winner; None if there is none, or without ETT_PINS=1."""
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
        """Pin the winner, and record the time of tuning."""
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
            pin = {"key": key[:200], "winner": winner, "pins": str(pins_folder())}
            keep(KERNEL, about | pin | took)


def pin_path(folder: Path, kernel: Kernel, key: str) -> Path:
    return folder / f"{_name(kernel, key)}.json"


def keep_path(folder: Path, kernel: Kernel) -> Path:
    return folder / f"{_name(kernel)}.keep.json"


def _name(kernel: Kernel, *more: str) -> str:
    text = "\0".join([*asdict(kernel).values(), *more])
    safe = re.sub(r"\W", "_", kernel.name)[:80]
    return f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def prune(folder: Path, k: int) -> dict[str, tuple[int, int]]:
    """Keep the k best configs of each user's kernel: name → (number kept, number of all).

    Configs are ranked by the geometric mean, over all keys, of their time relative to the winner.
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
    """Write a pin atomically."""
    from torchett.store import write_whole  # imported here, because few processes write pins

    try:
        write_whole(path, json.dumps(pin).encode(), durable=False)
    except OSError as error:
        logger.warning("torchett: a winner is not pinned: %s", error)


_pins = Pins()
