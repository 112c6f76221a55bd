"""The public names as a user writes them: mypy --strict checks this file, nothing runs it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, assert_type

import torchett as ett


def train(loader: Iterable[int], model: Any, optimizer: Any) -> None:
    assert_type(ett.init(job="gpt", rank=0, ranks=8), Path | None)
    with ett.stage("train_module_creation"):
        model = ett.compile(model, cache="/shared/compiled", mode="max-autotune")
    with ett.span("x-sampling", background=True), ett.blocked("evaluation"):
        pass
    state = {"model": model, "optimizer": optimizer, "rng": ett.RandomState()}
    checkpoints = ett.Checkpointer("checkpoints/run-7", every="auto", keep=ett.Keep(last=2))
    first = checkpoints.restore(state)
    assert_type(first, int)
    for batch in ett.steps(loader, start=first):
        assert_type(batch, int)
        with ett.step(3):
            ett.checkpoint_durable(3)


def read() -> None:
    try:
        run = ett.load("gpt")
    except (ett.RunError, ett.InputError) as error:
        raise SystemExit(f"{error}") from error
    assert_type(run.ledger.ett_percent, float)
    run.steps().to_pandas()
    names: list[str] = [account.name for account in ett.ACCOUNTS]
    assert issubclass(ett.CheckpointError, ett.EttError), names
