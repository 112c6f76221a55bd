"""Local shard metadata against what stock TorchRec gathers, on real gloo ranks."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FRESH = "torchett.launch.standby.rank_process"  # ends without a teardown


pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchrec") is None, reason="needs TorchRec"
)

RANKS = 2
SCRIPT = """
import copy, json, sys
import torch, torch.distributed as dist
from torchrec import EmbeddingCollection, EmbeddingConfig
from torchrec.distributed import DistributedModelParallel, ShardingEnv
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.tensor_pool import TensorPoolSharder
from torchrec.distributed.types import ObjectPoolShardingPlan, ObjectPoolShardingType, ShardingPlan
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule,
)
from torchrec.modules.tensor_pool import TensorPool

from torchett.levers.communication.sharding_plans import cached_sharding_plans
from torchett.levers.communication.torchrec import _canonical, local_shard_metadata

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, out = dist.get_rank(), {}
cpu = torch.device("cpu")


def tables(n=5):
    return [
        EmbeddingConfig(
            name=f"t{i}", embedding_dim=8, num_embeddings=50 + i, feature_names=[f"f{i}"]
        )
        for i in range(n)
    ]


def described(model):
    state = model.state_dict()
    return [
        f"{name} {_canonical(one.metadata())} {[s.metadata for s in one.local_shards()]}"
        for name, one in sorted(state.items()) if hasattr(one, "local_shards")
    ]


def plan_of(module, sharders, kind):
    constraints = {f"t{i}": ParameterConstraints(sharding_types=[kind]) for i in range(5)}
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints)
    return planner.collective_plan(module, sharders, dist.group.WORLD)


def sharded(module, plan, sharders):
    return DistributedModelParallel(copy.deepcopy(module), device=cpu, plan=plan, sharders=sharders)


def compare(name, make, plan=None, **options):
    theirs = described(make())
    with local_shard_metadata(**options) as saved:
        ours = described(make())
    out[name] = {
        "equal": theirs == ours, "tensors": saved.tensors, "from_plan": saved.from_plan,
        "gathers": saved.gathers, "found": len(theirs),
    }


sharders = [EmbeddingCollectionSharder()]
plain = EmbeddingCollection(tables=tables(), device=torch.device("meta"))
for kind, kernel in [
    ("row_wise", None), ("table_wise", None), ("column_wise", None), ("table_wise", "dense"),
]:
    plan = plan_of(plain, sharders, kind)
    for one in plan.plan[""].values():
        one.compute_kernel = kernel or one.compute_kernel
    compare(f"{kind} {kernel}", lambda: sharded(plain, plan, sharders))
plan = plan_of(plain, sharders, "row_wise")
compare("unverified", lambda: sharded(plain, plan, sharders), verify=False)

ett_torchrec = sys.modules["torchett.levers.communication.torchrec"]
known = ett_torchrec._from_sharding_plan


def doubtful(module, one):
    raise ValueError("rank 1 does not believe it")


def mistaken(module, one):          # of the other rank's shards: no rank can see that by itself
    metadata = known(module, one)
    theirs = metadata.shards_metadata[0]
    theirs.placement = type(theirs.placement)("rank:0/meta")
    return metadata


for said in (doubtful, mistaken):
    ett_torchrec._from_sharding_plan = said if rank == 1 else known
    compare(said.__name__, lambda: sharded(plain, plan, sharders))
ett_torchrec._from_sharding_plan = known


def collisions():
    modules = {
        f"t{i}": MCHManagedCollisionModule(
            zch_size=50 + i, device=cpu, input_hash_size=4000, eviction_interval=100,
            eviction_policy=DistanceLFU_EvictionPolicy(),
        )
        for i in range(3)
    }
    configs = tables(3)
    collection = ManagedCollisionCollection(modules, configs)
    embeddings = EmbeddingCollection(tables=configs, device=torch.device("meta"))
    return ManagedCollisionEmbeddingCollection(embeddings, collection)


managed = collisions()
mc_sharders = [ManagedCollisionEmbeddingCollectionSharder()]
mc_plan = ShardingPlan(
    plan={
        "": construct_module_sharding_plan(
            managed, per_param_sharding={f"t{i}": row_wise() for i in range(3)},
            sharder=mc_sharders[0], local_size=2, world_size=2, device_type="cpu",
        )
    }
)
compare("managed collisions", lambda: sharded(managed, mc_plan, mc_sharders))


def pool():
    return TensorPoolSharder().shard(
        TensorPool(pool_size=11, dim=4, dtype=torch.float32, device=cpu),
        ObjectPoolShardingPlan(ObjectPoolShardingType.ROW_WISE),
        device=cpu, env=ShardingEnv.from_process_group(dist.group.WORLD),
    )


compare("tensor pool", pool)

with cached_sharding_plans(sys.argv[2]) as found:
    first = plan_of(plain, sharders, "row_wise")
    again = plan_of(plain, sharders, "row_wise")
    other = plan_of(plain, sharders, "table_wise")
out["plans"] = {
    "same": str(first) == str(again) == str(plan), "other": str(other) != str(first),
    "hits": found.hits, "misses": found.misses, "unnamed": found.unnamed,
}
open(f"{sys.argv[1]}/{rank}.json", "w").write(json.dumps(out))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torchrec")
    (folder / "compare.py").write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    quiet = {"OMP_NUM_THREADS": "1", "ETT_DISABLE": "1"}
    command = [sys.executable, "-m", FRESH, "compare.py", str(folder), str(folder / "plans")]
    ranks = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **world, **quiet, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said[0][-3000:] + said[1][-3000:]
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    "kind", ["row_wise None", "table_wise None", "column_wise None", "table_wise dense"]
)
def test_a_plan_has_the_shards_of_all_ranks(compared: list[dict[str, Any]], kind: str) -> None:
    for found in compared:
        assert found[kind] == {
            "equal": True, "tensors": 5, "from_plan": 5, "gathers": 1, "found": 5,
        }  # fmt: skip


def test_unverified_nothing_is_gathered(compared: list[dict[str, Any]]) -> None:
    for found in compared:
        assert (found["unverified"]["equal"], found["unverified"]["gathers"]) == (True, 0)


def test_if_ranks_disagree_all_of_them_gather(compared: list[dict[str, Any]]) -> None:
    for found in compared:
        for case in (found["doubtful"], found["mistaken"]):
            assert (case["equal"], case["from_plan"], case["gathers"]) == (True, 0, 2)


def test_metadata_without_a_plan_is_gathered_together(compared: list[dict[str, Any]]) -> None:
    for found in compared:
        managed, pool = found["managed collisions"], found["tensor pool"]
        assert managed["equal"]
        assert managed["tensors"] > 6
        assert managed["gathers"] == 2  # the embeddings' digests, the collision modules' buffers
        assert (pool["equal"], pool["tensors"], pool["gathers"]) == (True, 1, 1)


def test_a_plan_is_found_by_its_inputs(compared: list[dict[str, Any]]) -> None:
    planner, other = (found["plans"] for found in compared)
    assert planner == {"same": True, "other": True, "hits": 1, "misses": 2, "unnamed": 0}
    assert (other["same"], other["hits"], other["misses"]) == (True, 0, 0)
