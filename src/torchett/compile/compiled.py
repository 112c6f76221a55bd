"""`ett.compile`: torch.compile with a library behind it."""

import os
from typing import Any


def compile(
    model: Any = None, *, cache: str | None = None, workload: str | None = None, **options: Any
) -> Any:
    """`torch.compile(model, **options)`, which first looks into the library at `cache`.

        model = ett.compile(model, cache="file:///mnt/team/compiled", mode="max-autotune")

    `cache` is a path or a URL (file, s3, gs, memory …); without one, ETT_COMPILE_CACHE counts.
    The library serves every compile of the process, and the first one given is used. What this
    job compiled anew is published once it has warmed up.
    """
    import torch

    url = cache or os.environ.get("ETT_COMPILE_CACHE")
    if url and os.environ.get("ETT_DISABLE") != "1":
        import torch._dynamo

        from torchett.compile.session import start

        start(url, workload=workload)
    return torch.compile(model, **options)
