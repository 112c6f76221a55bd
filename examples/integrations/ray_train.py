"""Ray Train: two workers, of which one dies once; the next worker group takes up the checkpoint."""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train(config: dict[str, int]) -> None:
    import torchett as ett

    context = ray.train.get_context()
    before = ray.train.get_checkpoint()
    start = 0
    if before is not None:
        with before.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["next"]
    for index, _ in enumerate(ett.steps(range(start, config["steps"]), start=start), start):
        time.sleep(0.02)
        if before is None and index == 7 and context.get_world_rank() == 1:
            raise RuntimeError("a worker dies")
        if index % 5 == 4:
            with ett.blocked("checkpoint_blocked"), tempfile.TemporaryDirectory() as folder:
                Path(folder, "state.json").write_text(json.dumps({"next": index + 1}))
                saved = Checkpoint.from_directory(folder)
                ray.train.report({}, checkpoint=saved if context.get_world_rank() == 0 else None)
            ett.checkpoint_durable(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="/tmp/ray-example")
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    os.environ.setdefault("RAY_TRAIN_CALLBACKS", "torchett.record.adapters.ray.EttCallback")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"steps": options.steps},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="ray-example",
            storage_path=options.folder,
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
