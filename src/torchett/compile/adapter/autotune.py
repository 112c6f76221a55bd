"""Where kernels are tuned: Triton's Autotuner, Inductor's CachingAutotuner, Triton's compiler.

    triton.runtime.autotuner      Autotuner.cache: asked for the winner, told the winner
                                  Autotuner._bench, prune_configs: what is tried, and for how long
    torch._inductor.runtime       CachingAutotuner.benchmark_all_configs: answered by a pin
    triton.knobs                  compilation.listener: how long a kernel took to compile

Triton looks a winner up in `self.cache` by a key it makes itself. A cache that asks the pins for
what it lacks needs to know nothing of how that key is made.
"""

import hashlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from torchett.compile.adapter.wrapping import wrap

log = logging.getLogger("torchett")

_DEVICE = ("type", "cc", "major", "multi_processor_count", "warp_size")  # not which of them


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to be tuned: whatever of this changes, earlier winners say nothing."""

    name: str
    origin: str  # "triton": a user's own @triton.autotune; "inductor"
    source: str  # hashes: of the kernel's source and what it calls,
    configs: str  # of all configs it may run with,
    device: str  # and what it runs on, by which Triton


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A kernel was tuned: what was tried, what won, and what that took."""

    kernel: Kernel
    key: str
    winner: str
    timings_ms: tuple[tuple[str, float], ...]
    tuning_s: float


class Tuner(Protocol):
    """Who remembers winners. Trouble of its own must not leave it."""

    def winner(self, kernel: Kernel, key: str) -> str | None: ...

    def tuned(self, what: Tuned) -> None: ...

    def kept(self, kernel: Kernel) -> frozenset[str] | None:
        """The configs worth trying; None for all."""

    def compiled(self, name: str, seconds: float) -> None: ...


class _Winners(dict[Any, Any]):
    """An Autotuner's cache: key → winning config. What it lacks it asks the pins for."""

    def __init__(self, autotuner: Any, heard: Tuner) -> None:
        super().__init__()
        self._autotuner, self._heard = autotuner, heard
        self._asked: set[Any] = set()
        self._kernel: Kernel | None = None
        self.tried: list[tuple[str, float]] = []
        self.tried_s = 0.0

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        if key in self._asked:
            return False
        try:
            self._asked.add(key)
            self._ask(key)
        except Exception as error:
            log.debug("torchett: no pin is used: %r", error)
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (which would call this)

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        try:
            text = _key_text(key)
            if text is not None:
                self._heard.tuned(
                    Tuned(
                        kernel=self.kernel,
                        key=text,
                        winner=str(config),
                        timings_ms=tuple(self.tried),
                        tuning_s=self.tried_s,
                    )
                )
        except Exception as error:
            log.debug("torchett: a winner is not pinned: %r", error)
        self.tried, self.tried_s = [], 0.0

    def _ask(self, key: Any) -> None:
        text = _key_text(key)
        winner = self._heard.winner(self.kernel, text) if text is not None else None
        fits = [config for config in self._autotuner.configs if str(config) == winner]
        if len(fits) == 1:
            super().__setitem__(key, fits[0])

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            autotuner = self._autotuner
            self._kernel = Kernel(
                autotuner.base_fn.__name__,
                "triton",
                _source(autotuner.fn),
                _hash(sorted(map(str, autotuner.configs))),
                _device(),
            )
        return self._kernel


def listen_to_triton(module: ModuleType, heard: Tuner) -> None:
    """Have winners remembered for kernels that are made from here on. For Triton's autotuner."""

    def made(original: Callable[..., Any], autotuner: Any, *args: Any, **kwargs: Any) -> None:
        original(autotuner, *args, **kwargs)
        if type(autotuner.cache) is dict:
            autotuner.cache = _Winners(autotuner, heard)

    def bench(original: Callable[..., Any], autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        timing = original(autotuner, *args, **kwargs)
        winners = autotuner.cache
        if isinstance(winners, _Winners):
            winners.tried_s += time.perf_counter() - began
            winners.tried.append((str(kwargs.get("config")), _milliseconds(timing)))
        return timing

    def prune(original: Callable[..., Any], autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        configs = original(autotuner, *args, **kwargs)
        try:
            kept = heard.kept(autotuner.cache.kernel)
            few = [config for config in configs if kept is None or str(config) in kept]
        except Exception as error:
            log.debug("torchett: configs are not pruned: %r", error)
            return configs
        return few or configs

    wrap(module.Autotuner, "__init__", made)
    wrap(module.Autotuner, "_bench", bench)
    wrap(module.Autotuner, "prune_configs", prune)


def listen_to_inductor(module: ModuleType, heard: Tuner) -> None:
    """Have winners remembered for Inductor's kernels. For its `runtime.triton_heuristics`."""

    def time_all(original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = key = None
        try:
            kernel, key = _inductor_kernel(tuner)
            winner = heard.winner(kernel, key)
            if [str(one.config) for one in tuner.launchers].count(str(winner)) == 1:
                # Torch takes the fastest, and keeps it as it keeps every winner.
                return {one: float(str(one.config) != winner) for one in tuner.launchers}
        except Exception as error:
            log.debug("torchett: no pin is used: %r", error)
        began = time.perf_counter()
        timings = original(tuner, *args, **kwargs)
        try:
            if kernel is not None and key is not None:
                tried = tuple((str(one.config), float(ms)) for one, ms in timings.items())
                heard.tuned(
                    Tuned(
                        kernel=kernel,
                        key=key,
                        winner=min(tried, key=lambda one: one[1])[0],
                        timings_ms=tried,
                        tuning_s=time.perf_counter() - began,
                    )
                )
        except Exception as error:
            log.debug("torchett: a winner is not pinned: %r", error)
        return timings

    wrap(module.CachingAutotuner, "benchmark_all_configs", time_all)


def listen_to_compiler(knobs: ModuleType, heard: Tuner) -> None:
    """Hear how long a user's kernel took to compile. For `triton.knobs`; a listener is kept.

    Inductor compiles its own in other processes and tells with its metrics: see `compile.watch`.
    """
    compilation: Any = getattr(knobs, "compilation", None)
    if not hasattr(compilation, "listener"):
        return
    before = compilation.listener

    def listen(**told: Any) -> None:
        try:
            if not told.get("cache_hit"):
                name = told["metadata"].get("name") or getattr(told["src"], "name", "?")
                if not str(name).startswith("triton_"):
                    heard.compiled(str(name), told["times"].total / 1e6)
        except Exception as error:
            log.debug("torchett: a kernel's compile is not observed: %r", error)
        if before is not None:
            before(**told)

    compilation.listener = listen


def _inductor_kernel(tuner: Any) -> tuple[Kernel, str]:
    """A kernel of Inductor's; one from its cache is without the function, but has its source.

    What such a source calls is torch's own.
    """
    configs = sorted(str(launcher.config) for launcher in tuner.launchers)
    kernel = Kernel(
        str(tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__),
        "inductor",
        _hash([tuner.fn.src, str(getattr(sys.modules.get("torch"), "__version__", ""))]),
        _hash(configs),
        " ".join([_device(), *(str(getattr(tuner.device_props, name, "")) for name in _DEVICE)]),
    )
    meta = {key: tuner.triton_meta.get(key) for key in ("signature", "constants")}
    return kernel, f"{getattr(tuner, 'size_hints', None)} {meta}"


def _source(function: Any) -> str:
    """A hash of a kernel's source, with what it calls where Triton tells."""
    while not hasattr(function, "cache_key") and hasattr(function, "fn"):
        function = function.fn
    key = getattr(function, "cache_key", None)
    if key is not None:
        return str(key)
    return _hash([inspect.getsource(function)])


def _device() -> str:
    """What kernels run on: Triton and its target, and the model of the GPU."""
    triton: Any = sys.modules["triton"]
    if hasattr(triton, "knobs") and triton.knobs.runtime.interpret:
        return f"triton {triton.__version__} interpreter"
    target = triton.runtime.driver.active.get_current_target()
    said = f"triton {triton.__version__} {target}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        said += f" {torch.cuda.get_device_name()}"
    return said


def _key_text(key: Any) -> str | None:
    """A tuning key as text; None if it holds what has no lasting text."""
    parts = key if isinstance(key, tuple) else (key,)
    if all(part is None or isinstance(part, bool | int | float | str) for part in parts):
        return repr(parts)
    return None


def _milliseconds(timing: Any) -> float:
    """The median, of what a benchmark returns."""
    return float(timing[0] if isinstance(timing, list | tuple) else timing)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
