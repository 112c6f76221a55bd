"""Small tensors of a batch are sent through the loader's pipe instead of shared memory.

    torch     worker ── message: "it is in file 7" ──►  trainer ── connects to the worker, ──►
              authenticates, gets the file descriptor, maps it: 0.2 ms of a core for each tensor
    here      worker ── message, and the bytes ───────► trainer

A tensor in shared memory, or with an alias, is sent as without this. So is a large tensor, to avoid
two copies.

`ett run --light-batches` installs this plugin. It changes only the loaders' workers, and imports
multiprocessing only there: the import makes a module `__mp_main__`. If that comes before torch's
modules in `sys.modules`, torch's cache keys contain it and differ.
"""

import os
from contextlib import suppress
from typing import Any

from torchett.record.patches import install
from torchett.record.plugins import when_imported

SMALL = 1 << 16  # bytes: the capacity of a pipe
_ALONE = 2  # references to the storage of one tensor: the tensor's and the caller's

_original_loop: Any = None


def install_plugin() -> None:
    """Make loaders' workers send small tensors through the pipe."""
    when_imported("torch.utils.data._utils.worker", _hook)


def _hook(_: Any) -> None:
    install("torch.utils.data._utils.worker:_worker_loop", _before)


def _before(original: Any) -> Any:
    global _original_loop
    _original_loop = original
    return loop


def loop(*args: Any, **kwargs: Any) -> None:
    """The main function of a worker; a spawned process imports it by this name."""
    from torch.utils.data._utils import worker

    with suppress(Exception):
        lighten()
    trainer = os.getppid()
    try:
        (_original_loop or worker._worker_loop)(*args, **kwargs)
    finally:
        if os.getppid() != trainer:  # the trainer has ended, and the pipe may be full
            _, _, _, to_trainer, *_ = args
            to_trainer.cancel_join_thread()


def lighten() -> None:
    """Make this process send small tensors in the message."""
    from multiprocessing.reduction import ForkingPickler

    import torch.utils.data._utils.collate

    ForkingPickler.register(torch.Tensor, _sent)

    def make(functions: Any) -> Any:
        original = functions[torch.Tensor]

        def stacked(batch: Any, **kwargs: Any) -> Any:
            """Samples as one tensor; torch's function would put it into shared memory."""
            with suppress(Exception):  # torch's function raises the better error
                if batch[0].nbytes * len(batch) <= SMALL and _is_plain(batch[0]):
                    return torch.stack(batch, 0)
            return original(batch, **kwargs)

        return {**functions, torch.Tensor: stacked}

    install("torch.utils.data._utils.collate:default_collate_fn_map", make)


def _sent(tensor: Any) -> Any:
    """The reduction of a tensor for pickle. An error on this thread would block the trainer."""
    from torch.multiprocessing.reductions import reduce_tensor

    with suppress(Exception):
        if 0 < tensor.nbytes <= SMALL and _is_plain(tensor) and _is_alone(tensor):
            return received, (_bytes_of(tensor), tensor.dtype, tensor.shape)
    return reduce_tensor(tensor)


def _bytes_of(tensor: Any) -> bytearray:
    import torch

    return bytearray(tensor.reshape(-1).view(torch.uint8).numpy())


def received(data: bytearray, dtype: Any, shape: Any) -> Any:
    """The tensor, in memory allocated by torch."""
    import torch

    return torch.frombuffer(data, dtype=torch.uint8).clone().view(dtype).view(shape)


def _is_plain(tensor: Any) -> bool:
    """Whether the tensor is only a contiguous block of numbers on the CPU."""
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
    """Whether no other tensor or process shares its memory."""
    import torch

    if tensor.is_shared():
        return False
    count = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return bool(count == _ALONE)
