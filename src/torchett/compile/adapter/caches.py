"""Torch's compile caches: the one place that knows their private names (torch 2.11 to 2.13).

Each function probes for what it needs and raises `MissingError` where a torch has moved it: the
cache is then off, and the job compiles as ever.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class MissingError(Exception):
    """This torch has not what we need of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What torch would put into a MegaCache: a kind, a key and bytes."""

    kind: str
    key: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often a compile was found in a cache, was not, or could not be kept in one."""

    hits: int
    misses: int
    bypasses: int
    graph_hits: int
    graph_misses: int


def cache_dir() -> Path:
    """The folder in which this process keeps what it compiles."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir as found

    return Path(found())


def device_index() -> int:
    """The number of the GPU this process uses; 0 on a CPU."""
    import torch

    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0


def choose_triton_dir() -> None:
    """Have Triton keep its files in the cache folder from now on, as inductor will have it.

    Inductor does so when it builds its first kernel; what Triton built until then (launchers, by
    a C compiler) would lie elsewhere, and be built again by a job that finds its kernels ready.
    """
    import torch
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

    if torch.cuda.is_initialized() and os.environ.get("TRITON_CACHE_DIR") is None:
        os.environ["TRITON_CACHE_DIR"] = triton_cache_dir(device_index())


def seen_artifacts() -> list[Artifact]:
    """What this process compiled or found in a cache so far, in order.

    Read from torch's memory, not by `save_cache_artifacts`: a script that saves its own
    MegaCache would find it empty afterwards.
    """
    from torch.compiler._cache import CacheArtifactManager

    seen = getattr(CacheArtifactManager, "_seen_artifacts", None)
    if seen is None:
        raise MissingError("torch.compiler._cache.CacheArtifactManager._seen_artifacts")
    return [Artifact(kind=one.type(), key=one.key, content=one.content) for one in list(seen)]


def seen_count() -> int:
    """How many artifacts there would be: cheap enough to ask often."""
    from torch.compiler._cache import CacheArtifactManager

    return len(getattr(CacheArtifactManager, "_seen_artifacts", ()))


def install_artifact(kind: str, key: str, content: bytes) -> None:
    """Put an artifact where torch will look for it. Nothing of it is run or unpickled here.

    A MegaCache load unpickles every graph to write its kernels; torch does so anyway when the
    graph is found, so here it waits until then.
    """
    if kind == "inductor":
        from torch._inductor.codecache import FxGraphCache

        FxGraphCache._write_to_local_cache(key, content)
    elif kind == "aot_autograd":
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

        AOTAutogradCache._write_to_local_cache(key, content)
    elif kind == "autotune":
        from torch._inductor.runtime.autotune_cache import AutotuneCacheArtifact

        AutotuneCacheArtifact(key, content).populate_cache()
    else:
        raise MissingError(f"a place for artifacts of kind {kind}")


def pgo_key() -> str | None:
    """The key under which this rank reads its profile; None if it reads none."""
    from torch._dynamo.pgo import get_cache_key

    found = get_cache_key()
    return None if found is None else str(found)


def write_pgo(key: str, content: bytes) -> None:
    """Make this the profile under a key; it is read at the next compile, once.

    A standby has compiled something already to warm up, and read what there was then.
    """
    from torch._dynamo.pgo import reset_code_state, write_local_impl

    write_local_impl(key, content)
    reset_code_state()


def counts() -> Counts:
    """What torch has counted in this process."""
    from torch._dynamo.utils import counters

    whole, graphs = counters["aot_autograd"], counters["inductor"]
    return Counts(
        hits=whole["autograd_cache_hit"],
        misses=whole["autograd_cache_miss"],
        bypasses=whole["autograd_cache_bypass"] + graphs["fxgraph_cache_bypass"],
        graph_hits=graphs["fxgraph_cache_hit"],
        graph_misses=graphs["fxgraph_cache_miss"],
    )


def on_compiles(start: Callable[[], None], end: Callable[[], None]) -> None:
    """Call these around every compile, for as long as the process lives.

    `torch._dynamo.reset()` forgets callbacks: ours are put back. Neither may raise, for that
    would end the compile.
    """
    from torch._dynamo.callback import callback_handler

    def started(_: Any) -> None:
        start()

    def ended(_: Any) -> None:
        end()

    def register() -> None:
        callback_handler.register_start_callback(started)
        callback_handler.register_end_callback(ended)

    clear = callback_handler.clear

    def cleared() -> None:
        clear()
        register()

    callback_handler.clear = cleared
    register()


def inductor_settings() -> dict[str, Any]:
    """Settings of torch's compilers that are part of its cache keys."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    found: dict[str, Any] = {}
    for config in (inductor_config, functorch_config):
        found |= {f"{config.__name__}.{k}": v for k, v in config.save_config_portable().items()}
    return dict(sorted(found.items()))


def triton_version() -> str:
    """Triton's version; empty where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def megacache(data: bytes) -> Iterator[Artifact]:
    """The artifacts in what `torch.compiler.save_cache_artifacts()` returned, of all its parts.

    torch's own reader keeps one part of each kind, so that a second save loses the first.
    """
    from torch.compiler._cache import CacheArtifactManager, _deserialize_single_cache
    from torch.utils._appending_byte_serializer import AppendingByteSerializer

    CacheArtifactManager._ensure_cache_artifacts_registered()
    for kind, artifacts in AppendingByteSerializer.to_list(
        data, deserialize_fn=_deserialize_single_cache
    ):
        for one in artifacts:
            yield Artifact(kind=kind, key=one.key, content=one.content)
