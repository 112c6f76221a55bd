"""What a stage finds around it: its own random numbers, and the settings of the calling thread.

A process has one generator each for `random`, numpy and torch (one per device), and two threads
that draw from one of them at once get numbers that depend on timing. So a stage that draws
(`rng=True`) has them to itself, and starts them from a seed of its own:

    generators   ── before ──┐ seed(base, "model") … drawn … ┌── before ── … ── before ──
    stage                    ├── model (rng) ────────────────┤

What it draws depends on the base seed and its name alone: not on the other stages, nor on their
order. A stage that seeds by itself (`torch.manual_seed(7)`) is seeded as it says.

One draw is hidden in a stage that hardly seems to: a DataLoader that begins to iterate draws a
seed for its workers. In a stage that does not say `rng=True` that seed comes from a generator of
the stage's own, so that it falls into nobody else's numbers.
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

from torchett.record.boarding import when_imported

log = logging.getLogger("torchett")


def loaded(name: str) -> Any:
    """The module, if its import is over: another thread may be in the middle of it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def base_seed() -> int:
    """The seed that the script gave torch; torch's own default where it gave none."""
    torch = loaded("torch")
    return int(torch.initial_seed()) if torch is not None else 0


def seed_of(base: int, name: str) -> int:
    """A seed for the stage called `name`: the same in every run, on every machine."""
    return int.from_bytes(hashlib.sha256(f"{base}:{name}".encode()).digest()[:4], "little")


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """In the body the generators start from `seed`; afterwards they are as they were."""
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: F401  (a generator that does not exist yet cannot be seeded)
    with kept_random_numbers():
        _seed(seed)
        yield


@contextmanager
def kept_random_numbers() -> Iterator[None]:
    """After the body the generators are as they were before it."""
    before = generators()
    try:
        yield
    finally:
        restore(before)
        torch = loaded("torch")
        if torch is not None and "cuda" not in before:
            # There was no context: one made later, or in the body, starts from the seed.
            torch.cuda.manual_seed_all(torch.initial_seed())


class _Here(threading.local):
    loaders_from: int | None = None


_here = _Here()


@contextmanager
def own_loader_seeds(seed: int) -> Iterator[None]:
    """In the body, DataLoaders that this thread begins to iterate take their seed from `seed`."""
    _watch_loaders()
    outer, _here.loaders_from = _here.loaders_from, seed
    try:
        yield
    finally:
        _here.loaders_from = outer


@functools.cache
def _watch_loaders() -> None:
    when_imported("torch.utils.data.dataloader", _seed_loaders)


def _seed_loaders(dataloader: ModuleType) -> None:
    iterator = dataloader._BaseDataLoaderIter
    theirs = iterator.__init__

    @functools.wraps(theirs)
    def begin(self: Any, loader: Any) -> None:
        if _here.loaders_from is None or loader.generator is not None:
            theirs(self, loader)
            return
        if getattr(getattr(loader, "sampler", None), "generator", self) is None:
            log.warning(
                "torchett: a stage without rng=True shuffles: give its DataLoader a generator, "
                "or what is drawn may depend on timing"
            )
        loader.generator = sys.modules["torch"].Generator().manual_seed(_here.loaders_from)
        try:
            theirs(self, loader)
        finally:
            loader.generator = None

    iterator.__init__ = begin


@contextmanager
def no_rewinding() -> Iterator[None]:
    """In the body, this thread and autograd's do not set the generators of the CPU back.

    torch.compile saves them before it compiles and restores them afterwards, and so does a
    checkpoint of activations in backward; from a thread, that rewinds what the script has drawn
    in between:

        script   draw a ── draw b ── draw c ──────── draw b again!
        thread       ├ save … compile … restore ┤
    """
    import torch

    here = threading.current_thread()

    def except_here(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_state(*args: Any, **kwargs: Any) -> Any:
            thread = threading.current_thread()  # a dummy: autograd's, where a GPU's backward runs
            if thread is here or isinstance(thread, threading._DummyThread):
                return None
            return original(*args, **kwargs)

        return set_state

    theirs, python_theirs = torch.random.set_rng_state, random.setstate
    torch.random.set_rng_state = torch.set_rng_state = except_here(theirs)
    random.setstate = except_here(python_theirs)
    try:
        yield
    finally:
        torch.random.set_rng_state = torch.set_rng_state = theirs
        random.setstate = python_theirs


def generators() -> dict[str, Any]:
    """The states of the process's generators, of those libraries that are loaded."""
    states: dict[str, Any] = {"random": random.getstate()}
    if (numpy := loaded("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if (torch := loaded("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def moved(before: dict[str, Any]) -> bool:
    """Whether any generator has been drawn from since."""
    after = generators()
    return any(repr_of(before[name]) != repr_of(after[name]) for name in before)


def repr_of(state: Any) -> bytes:
    """A state's bytes, of whichever library."""
    if isinstance(state, list | tuple):
        return b"".join(map(repr_of, state))
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
    """Set these generators back."""
    if "random" in states:
        random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "torch" in states:
        sys.modules["torch"].set_rng_state(states["torch"])
    if "cuda" in states:
        sys.modules["torch"].cuda.set_rng_state_all(states["cuda"])


@contextmanager
def _as_many_threads(number: int) -> Iterator[None]:
    """Have this thread compute with as many threads; it is a thread of ours, and stays so.

    torch tells every thread that has not computed yet, too. One of those is the loader's that pins
    batches: it has asked for one thread, and would take all cores from those that make batches.
    So they are told at once what they would have found.
    """
    torch = loaded("torch")
    found = torch.get_num_threads()
    if found != number:
        torch.set_num_threads(number)
        told = threading.Thread(target=torch.set_num_threads, args=(found,))
        told.start()
        told.join()
    yield


class Surroundings:
    """Settings that torch and Python keep per thread, as the calling thread had them.

    A fresh thread has grad mode on, no autocast, no default device, and **CUDA device 0**
    current, whatever the caller chose; and OpenMP's number of threads, where the main thread has
    MKL's. Compiled code is guarded by most of it.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._enter: list[Callable[[], AbstractContextManager[Any]]] = []
        if (torch := loaded("torch")) is None:
            return
        self._enter.append(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
        self._enter.append(partial(_as_many_threads, torch.get_num_threads()))
        if torch.cuda.is_initialized():
            self._enter.append(partial(torch.cuda.device, torch.cuda.current_device()))
        chosen = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
        if chosen is not None:  # by torch.set_default_device
            self._enter.append(lambda: torch.device(chosen.device))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                dtype, cache = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
                self._enter.append(partial(torch.autocast, kind, dtype=dtype, cache_enabled=cache))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function as if from the thread these were taken on."""
        with ExitStack() as stack:
            for enter in self._enter:
                stack.enter_context(enter())
            return self._context.copy().run(function, *args)
