"""torchtitan's own Trainer, whole, on a CPU; one layer of its Llama.

python titan_whole.py FOLDER [END_BEFORE]   it prints where it began, and the digest of the end

What it takes from CUDA is stood in for: properties of a device, attention (flex attention has no
backward on a CPU), the time-out of process groups (torch 2.13 has no `set_timeout`), text.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torchtitan.tools.utils

cpu: Any = SimpleNamespace(**{name: getattr(torch.cpu, name) for name in torch.cpu.__all__})
cpu.get_device_name = lambda *_: "cpu"
cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=2**34)
cpu.memory_stats = lambda *_: {}
cpu.set_device = cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None
cpu.current_device = lambda: 0
torchtitan.tools.utils.device_type = "cpu"
torchtitan.tools.utils.device_module = cpu

import torchtitan.trainer as titan  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

from torchett.levers.checkpoint.frameworks.torchtitan import CheckpointManager  # noqa: E402

STEPS, LENGTH = 8, 16


def attention(q: Any, k: Any, v: Any, *, scale: Any, enable_gqa: bool, **_: Any) -> Any:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa), None


FlexAttention.compiled_flex_attn = staticmethod(attention)
titan.dist_utils.set_pg_timeouts = lambda **_: None


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return 2048


class Tokens(torch.utils.data.IterableDataset[Any]):
    """A stream that knows where it is."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.position += 1
            generator = torch.Generator().manual_seed(self.position)
            tokens = torch.randint(0, 2048, (LENGTH + 1,), generator=generator)
            yield {"input": tokens[:-1], "positions": torch.arange(LENGTH)}, tokens[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Loader(ParallelAwareDataloader):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
        super().__init__(Tokens(), dp_rank=dp_rank, dp_world_size=dp_world_size, batch_size=2)


def made(folder: str) -> Any:
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    config.loss = CrossEntropyLoss.Config(global_vocab_size=2048)
    config.tokenizer, config.dataloader = NoTokenizer.Config(), Loader.Config()
    config.training.local_batch_size, config.training.seq_len = 2, LENGTH
    config.training.steps, config.training.disable_cuda_graphs = STEPS, True
    config.validator.enable, config.debug.seed, config.dump_folder = False, 1, folder
    config.checkpoint = CheckpointManager.Config(
        enable=True, every="1", snapshot_every="", keep_latest_k=20
    )
    return config.build()


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer, end = made(sys.argv[1]), int("".join(sys.argv[2:3]) or -1)
    train_step, steps = trainer.train_step, []

    def step(batches: Any) -> None:
        steps.append(trainer.step)
        trainer.checkpointer.checkpointer.wait()  # each save is durable before the next step
        if trainer.step == end:
            os._exit(0)
        train_step(batches)

    trainer.train_step = step
    trainer.train()
    trainer.close()
    sha = hashlib.sha256()
    for state in (trainer.model_parts[0].state_dict(), trainer.optimizers.state_dict()):
        for name in sorted(state):
            value = state[name]
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            known = value.numpy().tobytes() if torch.is_tensor(value) else repr(value).encode()
            sha.update(name.encode() + known)
    print("began with", steps[0], "digest", sha.hexdigest(), flush=True)
