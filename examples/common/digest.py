"""A fingerprint of a model's weights."""

import hashlib

import torch
import torch.distributed as dist


def weights_digest(model: torch.nn.Module) -> str:
    """The sha256 over names and bytes of all weights: equal only if every bit is.

    On every rank; where weights are sharded it is made of what each rank holds.
    """
    sha = hashlib.sha256()
    is_sharded = False
    for name, weight in sorted(model.state_dict().items()):
        sha.update(name.encode())
        is_sharded |= hasattr(weight, "to_local")
        for part in _local_parts(weight):
            sha.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    if is_sharded:
        digests: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(digests, sha.hexdigest())
        sha = hashlib.sha256("".join(digests).encode())
    return sha.hexdigest()


def _local_parts(weight: torch.Tensor) -> list[torch.Tensor]:
    """What this rank holds of it: in TorchRec's DTensors a local tensor may be several shards."""
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    return local.local_shards() if hasattr(local, "local_shards") else [local]
