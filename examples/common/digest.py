"""A fingerprint of a model's weights."""

import hashlib

import torch


def weights_digest(model: torch.nn.Module) -> str:
    """The sha256 over names and bytes of all weights: equal only if every bit is."""
    sha = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()
