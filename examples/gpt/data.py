"""Synthetic text that a GPT can learn: each row counts by its own stride, with some noise."""

import torch
from torch import Tensor

BATCH_SIZES = {"tiny": 4, "small": 16, "124m": 16}
NOISE = 0.1


def token_batch(
    generator: torch.Generator, *, vocab_size: int, block_size: int, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens that follow them, both `[batch_size, block_size]`."""
    start = torch.randint(vocab_size, (batch_size, 1), generator=generator)
    stride = torch.randint(1, 5, (batch_size, 1), generator=generator)
    text = (start + stride * torch.arange(block_size + 1)) % vocab_size
    noise = torch.randint(vocab_size, text.shape, generator=generator)
    text = torch.where(torch.rand(text.shape, generator=generator) < NOISE, noise, text)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
