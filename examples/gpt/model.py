"""A GPT-2 style language model."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """The shape of a GPT."""

    vocab_size: int
    block_size: int
    layers: int
    heads: int
    width: int


PRESETS = {
    "tiny": GPTConfig(vocab_size=512, block_size=64, layers=2, heads=4, width=128),
    "small": GPTConfig(vocab_size=8192, block_size=256, layers=6, heads=6, width=384),
    "124m": GPTConfig(vocab_size=50304, block_size=1024, layers=12, heads=12, width=768),
}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two layers, four times as wide in between."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.out = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention, then MLP, each added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Tokens and the tokens that follow them in, mean cross-entropy out; nothing is random."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.block_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self._init_weights(config)

    def _init_weights(self, config: GPTConfig) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Each block adds twice to the residual stream; keep its variance as depth grows.
                depth = 2 * config.layers if name.endswith("out.weight") else 1
                nn.init.normal_(weight, std=0.02 / math.sqrt(depth))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits = linear(self.norm(x), self.token_embedding.weight)  # tied, as in GPT-2
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
