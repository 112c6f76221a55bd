"""Small tensors of a batch travel in the loader's pipe, with the message, and not beside it.

    torch     worker ── message: "it lies in file 7" ──►  trainer ── connects to the worker, ──►
              proves who it is, is handed the file, maps it: for every tensor 0.2 ms of a core
    here      worker ── message, and the bytes ─────────► trainer

A tensor that somebody shares on purpose, or that has an alias, is sent as ever; so is a large one,
which is not copied twice.

`board()` is what `ett run` brings aboard. It changes loaders' workers only, and imports
multiprocessing in them alone: that makes a module `__mp_main__`, and where it stands before those
of torch, torch's cache keys name it and are others.
"""

import os
from contextlib import suppress
from typing import Any

from torchett.record.boarding import when_imported

SMALL = 1 << 16  # bytes: what a pipe holds
_ALONE = 2  # holders of a storage that has one tensor: that, and who asks

_their_loop: Any = None


def board() -> None:
    """Have loaders' workers send small tensors in the pipe."""
    when_imported("torch.utils.data._utils.worker", _hook)


def _hook(worker: Any) -> None:
    global _their_loop
    if worker._worker_loop is not loop:
        _their_loop, worker._worker_loop = worker._worker_loop, loop


def loop(*args: Any, **kwargs: Any) -> None:
    """What a worker runs; by this name, for a process that is spawned."""
    from torch.utils.data._utils import worker

    with suppress(Exception):
        lighten()
    trainer = os.getppid()
    try:
        (_their_loop or worker._worker_loop)(*args, **kwargs)
    finally:
        if os.getppid() != trainer:  # nobody reads any more, and the pipe may be full
            _, _, _, to_trainer, *_ = args
            to_trainer.cancel_join_thread()


def lighten() -> None:
    """Have this process send small tensors in the message."""
    from multiprocessing.reduction import ForkingPickler

    import torch
    from torch.utils.data._utils import collate

    ForkingPickler.register(torch.Tensor, _sent)
    theirs = collate.default_collate_fn_map[torch.Tensor]

    def stacked(batch: Any, **kwargs: Any) -> Any:
        """Samples as one tensor; torch puts it into shared memory at once."""
        with suppress(Exception):  # torch says it better
            if batch[0].nbytes * len(batch) <= SMALL and _is_plain(batch[0]):
                return torch.stack(batch, 0)
        return theirs(batch, **kwargs)

    collate.default_collate_fn_map[torch.Tensor] = stacked


def _sent(tensor: Any) -> Any:
    """How a tensor is pickled; on a thread where an error would leave the trainer waiting."""
    from torch.multiprocessing.reductions import reduce_tensor

    with suppress(Exception):
        if 0 < tensor.nbytes <= SMALL and _is_plain(tensor) and _is_alone(tensor):
            return received, (_bytes_of(tensor), tensor.dtype, tensor.shape)
    return reduce_tensor(tensor)


def _bytes_of(tensor: Any) -> bytearray:
    import torch

    return bytearray(tensor.reshape(-1).view(torch.uint8).numpy())


def received(data: bytearray, dtype: Any, shape: Any) -> Any:
    """The tensor, in memory of torch's own."""
    import torch

    return torch.frombuffer(data, dtype=torch.uint8).clone().view(dtype).view(shape)


def _is_plain(tensor: Any) -> bool:
    """Whether nothing but numbers in a row would be sent."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_nested
        and tensor.is_contiguous()
    )


def _is_alone(tensor: Any) -> bool:
    """Whether nobody else sees what is written to it."""
    import torch

    if tensor.is_shared():
        return False
    count = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return bool(count == _ALONE)
