"""The context of a stage: its own random numbers, and the settings of the calling thread.

A process has one generator each for `random`, numpy and torch (one per device). If two threads draw
from one of them at once, the numbers depend on timing. So stages that draw (`rng=True`) never run
at the same time, and each starts the generators from its own seed:

    generators   ── before ──┐ seed(base, "model") … drawn … ┌── before ── … ── before ──
    stage                    ├── model (rng) ────────────────┤

Its numbers depend only on the base seed and its name: not on other stages, nor on their order. A
stage that calls `torch.manual_seed(7)` itself uses that seed.

One draw is easy to miss: a DataLoader that begins to iterate draws a seed for its workers. In a
stage without `rng=True` this seed comes from a separate generator of the stage, so that the numbers
of other stages do not change.
"""

import contextvars
import functools
import hashlib
import importlib.util
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from torchett.record.patches import install, install_on
from torchett.record.plugins import when_imported

log = logging.getLogger("torchett")


def loaded(name: str) -> Any:
    """The module, if its import has finished: another thread may be importing it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def base_seed() -> int:
    """The seed that the script gave torch, else torch's default."""
    torch = loaded("torch")
    return int(torch.initial_seed()) if torch is not None else 0


def seed_of(base: int, name: str) -> int:
    """A seed for the stage called `name`: the same in every run, on every machine."""
    return int.from_bytes(hashlib.sha256(f"{base}:{name}".encode()).digest()[:4], "little")


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """Start the generators from `seed` in the body, and restore them after it."""
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: F401  (its generator must exist to be seeded)
    with kept_random_numbers():
        _seed(seed)
        yield


@contextmanager
def kept_random_numbers() -> Iterator[None]:
    """Restore the generators after the body."""
    before = generators()
    try:
        yield
    finally:
        restore(before)
        torch = loaded("torch")
        if torch is not None and "cuda" not in before:
            # There was no CUDA context: one made in the body or later must start from the seed.
            torch.cuda.manual_seed_all(torch.initial_seed())


class _Here(threading.local):
    loaders_from: int | None = None


_here = _Here()


@contextmanager
def own_loader_seeds(seed: int) -> Iterator[None]:
    """In the body, DataLoaders that begin to iterate on this thread get a seed from `seed`."""
    _watch_loaders()
    outer, _here.loaders_from = _here.loaders_from, seed
    try:
        yield
    finally:
        _here.loaders_from = outer


@functools.cache
def _watch_loaders() -> None:
    when_imported("torch.utils.data.dataloader", _seed_loaders)


def _seed_loaders(_: ModuleType) -> None:
    install("torch.utils.data.dataloader:_BaseDataLoaderIter.__init__", _seeding, lever="plan")


def _seeding(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def begin(self: Any, loader: Any) -> None:
        if _here.loaders_from is None or loader.generator is not None:
            original(self, loader)
            return
        if getattr(getattr(loader, "sampler", None), "generator", self) is None:
            log.warning(
                "torchett: a stage without rng=True shuffles: give its DataLoader a generator, "
                "or its order may depend on timing"
            )
        own = sys.modules["torch"].Generator().manual_seed(_here.loaders_from)
        name = "torch.utils.data.dataloader:DataLoader.generator"
        patch = install_on(loader, name, lambda _: own)
        try:
            original(self, loader)
        finally:
            if patch is not None:
                patch.remove()

    return begin


def generators() -> dict[str, Any]:
    """The states of the process's generators, for the libraries that are imported."""
    states: dict[str, Any] = {"random": random.getstate()}
    if (numpy := loaded("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if (torch := loaded("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def moved(before: dict[str, Any]) -> bool:
    """Whether random numbers were drawn since `before`."""
    after = generators()
    return any(state_bytes(before[name]) != state_bytes(after[name]) for name in before)


def state_bytes(state: Any) -> bytes:
    """The bytes of a generator's state, of any library."""
    if isinstance(state, list | tuple):
        return b"".join(map(state_bytes, state))
    if hasattr(state, "numpy"):
        state = state.numpy()
    return bytes(state.tobytes()) if hasattr(state, "tobytes") else repr(state).encode()


def _seed(seed: int) -> None:
    random.seed(seed)
    if (numpy := loaded("numpy")) is not None:
        numpy.random.seed(seed)
    if (torch := loaded("torch")) is not None:
        torch.manual_seed(seed)


def restore(states: dict[str, Any]) -> None:
    """Restore these states of generators."""
    if "random" in states:
        random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "torch" in states:
        sys.modules["torch"].set_rng_state(states["torch"])
    if "cuda" in states:
        sys.modules["torch"].cuda.set_rng_state_all(states["cuda"])


@contextmanager
def _intra_op_threads(number: int) -> Iterator[None]:
    """Set the number of intra-op threads of this thread, which runs stages only.

    `torch.set_num_threads` also sets the default for threads that have not computed yet. One of
    them is the loader's pinning thread, which has set one thread for itself: it would then take
    cores from the workers. So the default is set back at once, from another thread.
    """
    torch = loaded("torch")
    found = torch.get_num_threads()
    if found != number:
        torch.set_num_threads(number)
        reset = threading.Thread(target=torch.set_num_threads, args=(found,))
        reset.start()
        reset.join()
    yield


class Surroundings:
    """The per-thread settings of torch and Python, copied from the calling thread.

    A new thread has grad mode on, no autocast, no default device, **CUDA device 0**, and OpenMP's
    number of threads (the main thread has MKL's). Compiled code has guards on most of these.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._enter: list[Callable[[], AbstractContextManager[Any]]] = []
        if (torch := loaded("torch")) is None:
            return
        self._enter.append(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
        self._enter.append(partial(_intra_op_threads, torch.get_num_threads()))
        if torch.cuda.is_initialized():
            self._enter.append(partial(torch.cuda.device, torch.cuda.current_device()))
        chosen = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
        if chosen is not None:  # set by torch.set_default_device
            self._enter.append(lambda: torch.device(chosen.device))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                dtype, cache = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
                self._enter.append(partial(torch.autocast, kind, dtype=dtype, cache_enabled=cache))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function with these settings."""
        with ExitStack() as stack:
            for enter in self._enter:
                stack.enter_context(enter())
            return self._context.copy().run(function, *args)
