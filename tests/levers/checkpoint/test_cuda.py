"""On a GPU: copies run beside the computation and are whole, also if weights change at once."""

from pathlib import Path

import pytest
import torch
from trainer import Training  # noqa: F401  (nothing is recorded of these tests)

from torchett.levers.checkpoint import Checkpointer
from torchett.levers.checkpoint.staging.live_sum import weighted_sum
from torchett.levers.checkpoint.staging.staging import Copier, stage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_what_is_saved_is_what_was_there_when_the_call_was_made(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    state = {"model": model, "optimizer": optimizer}

    def step() -> None:
        model(torch.ones(64, 2048, device="cuda")).square().mean().backward()
        optimizer.step()

    def tensors() -> list[torch.Tensor]:
        found = [p.detach().clone() for p in model.parameters()]
        for one in optimizer.state.values():
            found += [one[name].clone() for name in sorted(one)]
        return found

    ckpt = Checkpointer(tmp_path, every=1000)
    step()
    ckpt.step(0, state)
    for number in range(1, 6):
        step()  # its kernels still run when the call is made
        truth = tensors()
        ckpt.save(number, state)
        optimizer.step()  # and the weights change as soon as it returns
        assert ckpt.wait(60)
        assert ckpt.durable == {"local": number}, ckpt.errors
        again = Checkpointer(tmp_path, every=1000)
        assert again.restore(state) == number + 1
        again.close(final=False)
        assert all(a.equal(b) for a, b in zip(tensors(), truth, strict=True))
    ckpt.close(final=False)


def test_what_another_rank_copies_is_summed_on_the_gpu(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ckpt = Checkpointer(tmp_path, every=1000)  # so that steps are heard of
    model(torch.ones(64, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    weights = dict(enumerate(p.detach() for p in model.parameters()))
    weights[99] = torch.randn(300_000, device="cuda", dtype=torch.bfloat16)  # owned by none
    truth = {key: int(weighted_sum(tensor.cpu())) for key, tensor in weights.items()}
    staged = stage([], [], Copier(), weights)
    weights[99].zero_()
    optimizer.step()
    staged.wait()
    assert staged.sums == truth
    ckpt.close(final=False)
