"""The DLRM with its tables sharded over the ranks by TorchRec (`--sharded`).

    rank 0   ids of its batch ─┐        ┌─ bags of its batch ── interact, DDP
             table 0, half ────┤        │
                               all to all
             table 1, half ────┤        │
    rank 1   ids of its batch ─┘        └─ bags of its batch ── interact, DDP

Tables are updated in backward by the optimizer that TorchRec fuses into their kernel; the rest by
an ordinary one. Only what lies between the collectives is compiled.
"""

from argparse import Namespace
from functools import partial

import torch
import torch.distributed as dist
from dlrm.model import DLRM, DLRMConfig
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_in_backward
from torch.optim import Adagrad
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel, ShardingEnv
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad


class ShardedDLRM(DLRM):
    """A DLRM whose tables are one collection, which TorchRec can shard."""

    def __init__(self, config: DLRMConfig) -> None:
        super().__init__(config)
        self.names = [f"table_{t}" for t in range(len(config.rows))]
        self.tables = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    feature_names=[name],
                    num_embeddings=rows,
                    embedding_dim=config.width,
                    init_fn=partial(nn.init.uniform_, a=-(rows**-0.5), b=rows**-0.5),
                )
                for name, rows in zip(self.names, config.rows, strict=True)
            ],
        )

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        """As a DLRM's."""
        ends = torch.full_like(offsets[:, :1], ids.shape[1])
        lengths = torch.diff(offsets, append=ends, dim=1)
        looked_up = KeyedJaggedTensor(self.names, ids.flatten(), lengths=lengths.flatten())
        bags = self.tables(looked_up).to_dict()  # waits for the other ranks
        return self.interact(dense, [bags[name] for name in self.names])


def sharded(
    args: Namespace, config: DLRMConfig, device: torch.device
) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model on this rank, and the optimizer of what is on it; on every rank at once."""
    model = ShardedDLRM(config)
    if args.compile:
        model.interact = torch.compile(model.interact)
    apply_in_backward(RowWiseAdagrad, model.tables.parameters(), {"lr": args.lr})
    sharders = [EmbeddingBagCollectionSharder()]
    topology = Topology(world_size=dist.get_world_size(), compute_device=device.type)
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(model, sharders)
    env = ShardingEnv(dist.get_world_size(), dist.get_rank(), dist.group.WORLD, output_dtensor=True)
    parallel = DistributedModelParallel(model, env, device, plan, sharders)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())),
        lambda parameters: Adagrad(parameters, lr=args.lr),
    )
    optimizer = CombinedOptimizer([("tables", parallel.fused_optimizer), ("dense", dense)])
    return parallel, optimizer
