"""Four ranks that write one sharded checkpoint: python four_ranks_save.py FOLDER SEED STEP

Tables lie row-wise or column-wise over the ranks, the rest is replicated.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import torch
import torch.distributed as dist
from dlrm.model import DLRM, PRESETS
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

import torchett as ett


def plain(seed: int) -> DLRM:
    torch.manual_seed(seed)
    return DLRM(PRESETS["tiny"])


def save(rank: int, ranks: int, where: str, seed: int, step: int, meet: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    model = plain(seed)
    mesh = DeviceMesh("cpu", list(range(ranks)))
    for number, table in enumerate(model.tables):
        sharded = distribute_tensor(table.weight.data, mesh, [Shard(number % 2)])
        table.weight = torch.nn.Parameter(sharded)
    checkpoints = ett.Checkpointer(where, every=1000, upload="thread")
    checkpoints.save(step, {"model": model}, wait=True)
    checkpoints.close(final=False)
    dist.destroy_process_group()


def main(where: str, seed: int, step: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    save(rank, 4, where, seed, step, f"{folder}/meet")
                    os._exit(0)
                except BaseException as error:
                    print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
                    os._exit(1)
            ranks.append(pid)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
