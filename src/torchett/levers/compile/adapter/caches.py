"""Torch's compile caches: the only module with their private names (torch 2.11 to 2.13).

Each function probes for the names it needs and raises `MissingError` if this torch lacks one. The
cache is then off, and the job compiles as usual.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchett.record.patches import install


class MissingError(Exception):
    """This torch lacks a private name that the cache needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One entry of a MegaCache: its kind, key and bytes."""

    kind: str
    key: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Cache hits, misses, and compiles that cannot be cached (bypasses)."""

    hits: int
    misses: int
    bypasses: int
    graph_hits: int
    graph_misses: int


def cache_dir() -> Path:
    """Inductor's cache folder of this process."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir as found

    return Path(found())


def device_index() -> int:
    """The number of the GPU this process uses; 0 on a CPU."""
    import torch

    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0


def choose_triton_dir() -> None:
    """Set Triton's cache folder inside inductor's from now on.

    Inductor does so only when it builds its first kernel. Files that Triton built before
    (launchers, by a C compiler) would be elsewhere, and a job with cached kernels would build them
    again.
    """
    import torch
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

    if torch.cuda.is_initialized() and os.environ.get("TRITON_CACHE_DIR") is None:
        os.environ["TRITON_CACHE_DIR"] = triton_cache_dir(device_index())


def seen_artifacts() -> list[Artifact]:
    """The artifacts that this process has compiled or found in a cache so far, in order.

    They are read from torch's memory, not with `save_cache_artifacts`: that would empty the
    MegaCache of a script that saves its own.
    """
    from torch.compiler._cache import CacheArtifactManager

    seen = getattr(CacheArtifactManager, "_seen_artifacts", None)
    if seen is None:
        raise MissingError("torch.compiler._cache.CacheArtifactManager._seen_artifacts")
    return [Artifact(kind=one.type(), key=one.key, content=one.content) for one in list(seen)]


def seen_count() -> int:
    """The number of these artifacts; cheap to call often."""
    from torch.compiler._cache import CacheArtifactManager

    return len(getattr(CacheArtifactManager, "_seen_artifacts", ()))


def install_artifact(kind: str, key: str, content: bytes) -> None:
    """Write an artifact to the place where torch looks for it, without running or unpickling it.

    Loading a MegaCache would unpickle every graph to write its kernels. torch also does that at a
    cache hit, so it is left until then.
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
    """Write the profile under a key; torch reads it once, at the next compile.

    The reset is for standbys: they have read a profile when they compiled something to warm up.
    """
    from torch._dynamo.pgo import reset_code_state, write_local_impl

    write_local_impl(key, content)
    reset_code_state()


def counts() -> Counts:
    """The counters of torch in this process."""
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
    """Call these around every compile until the process ends.

    `torch._dynamo.reset()` drops callbacks, so ours are registered again. Neither may raise: an
    exception would end the compile.
    """
    from torch._dynamo.callback import callback_handler

    def started(_: Any) -> None:
        start()

    def ended(_: Any) -> None:
        end()

    def register() -> None:
        callback_handler.register_start_callback(started)
        callback_handler.register_end_callback(ended)

    def make(clear: Callable[[], None]) -> Callable[[], None]:
        def cleared() -> None:
            clear()
            register()

        return cleared

    install("torch._dynamo.callback:callback_handler.clear", make)
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
    """Triton's version; empty if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def megacache(data: bytes) -> Iterator[Artifact]:
    """All artifacts in the bytes from `torch.compiler.save_cache_artifacts()`.

    torch's own reader keeps only one part for each kind, so a second save would lose the first.
    """
    from torch.compiler._cache import CacheArtifactManager, _deserialize_single_cache
    from torch.utils._appending_byte_serializer import AppendingByteSerializer

    CacheArtifactManager._ensure_cache_artifacts_registered()
    for kind, artifacts in AppendingByteSerializer.to_list(
        data, deserialize_fn=_deserialize_single_cache
    ):
        for one in artifacts:
            yield Artifact(kind=kind, key=one.key, content=one.content)
