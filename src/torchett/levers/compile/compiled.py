"""`ett.compile`: torch.compile with a library of compiled code."""

import os
from typing import Any


def compile(
    model: Any = None, *, cache: str | None = None, workload: str | None = None, **options: Any
) -> Any:
    """`torch.compile(model, **options)`, with compiled code from the library at `cache`.

        model = ett.compile(model, cache="file:///mnt/team/compiled", mode="max-autotune")

    `cache` is a path or a URL (file, s3, gs, memory …); the default is ETT_COMPILE_CACHE. The first
    library given is used for all compiles of the process. Code that this job compiles is published
    after its warm-up.
    """
    import torch

    url = cache or os.environ.get("ETT_COMPILE_CACHE")
    if url and os.environ.get("ETT_DISABLE") != "1":
        import torch._dynamo

        from torchett.levers.compile.cache.session import start

        start(url, workload=workload)
    return torch.compile(model, **options)
