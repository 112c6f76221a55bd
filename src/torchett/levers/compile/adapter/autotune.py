"""Hooks into kernel tuning: Triton's Autotuner, Inductor's CachingAutotuner, Triton's compiler.

    triton.runtime.autotuner      Autotuner.cache: reads and stores winners
                                  Autotuner._bench, prune_configs: which configs run, and how long
    torch._inductor.runtime       CachingAutotuner.benchmark_all_configs: replaced by a pin
    triton.knobs                  compilation.listener: the compile time of a kernel

Triton looks up a winner in `self.cache` by a key of its own. Our cache reads the pins on a miss, so
it does not depend on how the key is made.
"""

import hashlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torchett.record.patches import calling, install, install_on

log = logging.getLogger("torchett")

AUTOTUNER, HEURISTICS = "triton.runtime.autotuner", "torch._inductor.runtime.triton_heuristics"
KNOBS = "triton.knobs"
_DEVICE = ("type", "cc", "major", "multi_processor_count", "warp_size")  # without its index


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to be tuned. If any field changes, earlier winners are not valid."""

    name: str
    origin: str  # "triton": a user's @triton.autotune; "inductor"
    source: str  # hash of the kernel's source and of the functions it calls
    configs: str  # hash of all configs
    device: str  # the GPU, and the version of Triton


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result of tuning a kernel: the timings, the winner, and the time of tuning."""

    kernel: Kernel
    key: str
    winner: str
    timings_ms: tuple[tuple[str, float], ...]
    tuning_s: float


class Tuner(Protocol):
    """Stores winners. Its methods must not raise."""

    def winner(self, kernel: Kernel, key: str) -> str | None: ...

    def tuned(self, what: Tuned) -> None: ...

    def kept(self, kernel: Kernel) -> frozenset[str] | None:
        """The configs to try; None for all."""

    def compiled(self, name: str, seconds: float) -> None: ...


class _Winners(dict[Any, Any]):
    """An Autotuner's cache: key → winning config. On a miss it reads the pins."""

    def __init__(self, autotuner: Any, tuner: Tuner) -> None:
        super().__init__()
        self._autotuner, self._tuner = autotuner, tuner
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
            self._look_up(key)
        except Exception as error:
            log.debug("torchett: no pin is used: %r", error)
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (dict.get calls this method)

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        try:
            text = _key_text(key)
            if text is not None:
                self._tuner.tuned(
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

    def _look_up(self, key: Any) -> None:
        text = _key_text(key)
        winner = self._tuner.winner(self.kernel, text) if text is not None else None
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


def listen_to_triton(tuner: Tuner) -> None:
    """Pass winners of kernels that are made from now on to `tuner`; `AUTOTUNER` is imported."""

    def made(original: Callable[..., Any], autotuner: Any, *args: Any, **kwargs: Any) -> None:
        original(autotuner, *args, **kwargs)
        if type(autotuner.cache) is dict:
            winners = _Winners(autotuner, tuner)
            install_on(autotuner, f"{AUTOTUNER}:Autotuner.cache", lambda _: winners)

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
            kept = tuner.kept(autotuner.cache.kernel)
            few = [config for config in configs if kept is None or str(config) in kept]
        except Exception as error:
            log.debug("torchett: configs are not pruned: %r", error)
            return configs
        return few or configs

    for name, around in (("__init__", made), ("_bench", bench), ("prune_configs", prune)):
        install(f"{AUTOTUNER}:Autotuner.{name}", calling(around))


def listen_to_inductor(tuner: Tuner) -> None:
    """Pass winners of Inductor's kernels to `tuner`; `HEURISTICS` is imported."""

    def time_all(original: Callable[..., Any], caching: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = key = None
        try:
            kernel, key = _inductor_kernel(caching)
            winner = tuner.winner(kernel, key)
            if [str(one.config) for one in caching.launchers].count(str(winner)) == 1:
                # Torch chooses the fastest, and stores it like every winner.
                return {one: float(str(one.config) != winner) for one in caching.launchers}
        except Exception as error:
            log.debug("torchett: no pin is used: %r", error)
        began = time.perf_counter()
        timings = original(caching, *args, **kwargs)
        try:
            if kernel is not None and key is not None:
                tried = tuple((str(one.config), float(ms)) for one, ms in timings.items())
                tuner.tuned(
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

    install(f"{HEURISTICS}:CachingAutotuner.benchmark_all_configs", calling(time_all))


def listen_to_compiler(tuner: Tuner) -> None:
    """Pass compile times of a user's kernels to `tuner`; `KNOBS` is imported.

    A listener that is set already is still called. Inductor compiles its kernels in other processes
    and reports their times in its metrics: see `observe.watch`.
    """

    def make(before: Callable[..., None] | None) -> Callable[..., None]:
        def listen(**event: Any) -> None:
            try:
                if not event.get("cache_hit"):
                    name = event["metadata"].get("name") or getattr(event["src"], "name", "?")
                    if not str(name).startswith("triton_"):
                        tuner.compiled(str(name), event["times"].total / 1e6)
            except Exception as error:
                log.debug("torchett: a kernel's compile is not observed: %r", error)
            if before is not None:
                before(**event)

        return listen

    install(f"{KNOBS}:compilation.listener", make)


def _inductor_kernel(tuner: Any) -> tuple[Kernel, str]:
    """The kernel and key of one of Inductor's tuners.

    A tuner from the cache lacks the function, but has its source. Such a source calls only
    functions of torch.
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
    """A hash of a kernel's source, with the functions it calls if Triton provides it."""
    while not hasattr(function, "cache_key") and hasattr(function, "fn"):
        function = function.fn
    key = getattr(function, "cache_key", None)
    if key is not None:
        return str(key)
    return _hash([inspect.getsource(function)])


def _device() -> str:
    """The version of Triton, its target, and the model of the GPU."""
    triton: Any = sys.modules["triton"]
    if hasattr(triton, "knobs") and triton.knobs.runtime.interpret:
        return f"triton {triton.__version__} interpreter"
    target = triton.runtime.driver.active.get_current_target()
    device = f"triton {triton.__version__} {target}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        device += f" {torch.cuda.get_device_name()}"
    return device


def _key_text(key: Any) -> str | None:
    """A tuning key as text; None if a part has no text that is the same in another process."""
    parts = key if isinstance(key, tuple) else (key,)
    if all(part is None or isinstance(part, bool | int | float | str) for part in parts):
        return repr(parts)
    return None


def _milliseconds(timing: Any) -> float:
    """The median in the result of a benchmark."""
    return float(timing[0] if isinstance(timing, list | tuple) else timing)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
