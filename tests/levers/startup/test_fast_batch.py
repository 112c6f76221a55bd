"""The compile on a fast batch: the first step compiles nothing, and nothing else has changed."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import eval_frame

from torchett.levers.checkpoint.state.per_rank import RandomState
from torchett.levers.startup.first_compile.fast_batch import warm_up
from torchett.levers.startup.first_compile.shapes import remember_shapes, synthetic_like
from torchett.record import api
from torchett.record.recorder import Silent

FRESH = "torchett.launch.standby.rank_process"  # ends without a teardown

THREAD = "ett-warm-up"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The thread names of all compiles, forward and backward, beginning with an empty cache."""
    monkeypatch.setattr(api, "_recorder", Silent())
    torch._dynamo.reset()
    found: list[str] = []
    torch._dynamo.callback.on_compile_start(lambda _: found.append(threading.current_thread().name))
    yield found
    torch._dynamo.reset()


class Net(nn.Module):
    """Weights, running statistics and, if asked, dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.drop(torch.relu(self.norm(self.first(x))))
        out: Tensor = self.last(hidden)
        return out


def loss(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    return model(batch).float().square().mean()


def autocast_loss(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss(model, batch)


def batch(rows: int = 8) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows))


def wrapped(net: Net) -> nn.Module:
    return torch.compile(net, backend="aot_eager")  # type: ignore[return-value]


def slow(graph: Any, inputs: Any) -> Any:
    """A backend that waits a while, as inductor waits for g++."""
    from torch._dynamo.backends.registry import lookup_backend

    time.sleep(1.0)
    return lookup_backend("aot_eager")(graph, inputs)


def in_place(net: Net) -> nn.Module:
    net.compile(backend="aot_eager")
    return net


def by_block(net: Net) -> nn.Module:
    net.first = torch.compile(net.first, backend="aot_eager")  # type: ignore[assignment]
    net.last.compile(backend="aot_eager")
    return net


def whole(net: Net) -> nn.Module:
    return torch.compile(net, backend="aot_eager", fullgraph=True)  # type: ignore[return-value]


# Nothing is left to compile ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiled", "computes"),
    [
        (wrapped, loss),
        (wrapped, autocast_loss),
        (in_place, loss),
        (by_block, autocast_loss),
        (whole, loss),
    ],
)
def test_the_first_real_step_compiles_nothing(
    compiles: list[str], compiled: Callable[[Net], nn.Module], computes: Any
) -> None:
    model = compiled(Net())
    warm = warm_up(model, computes, fast_batch=batch)
    warm.join()
    assert warm.error is None
    assert set(compiles) == {THREAD}
    compiles.clear()
    for _ in range(2):
        computes(model, batch()).backward()
    assert compiles == []


def test_a_compiled_step_function_is_warmed_too(compiles: list[str]) -> None:
    step = torch.compile(loss, backend="aot_eager")
    net = Net()
    warm_up(net, step, fast_batch=batch()).join()
    assert set(compiles) == {THREAD}
    compiles.clear()
    step(net, batch()).backward()
    assert compiles == []


def test_the_callers_autocast_and_default_device_hold_on_the_thread(compiles: list[str]) -> None:
    model = wrapped(Net())
    torch.set_default_device("cpu")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            warm_up(model, loss, fast_batch=batch()).join()
            assert compiles
            compiles.clear()
            loss(model, batch()).backward()
    finally:
        torch.set_default_device(None)
    assert compiles == []


def test_a_loader_that_pins_memory_does_not_void_the_compile(compiles: list[str]) -> None:
    """The loader's thread sets the number of threads to 1: for itself and for all new threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    pinning = threading.Thread(target=torch.set_num_threads, args=(1,))
    pinning.start()
    pinning.join()
    assert torch.get_num_threads() == 2, "the main thread's own number stays"
    try:
        model = wrapped(Net())
        warm_up(model, loss, fast_batch=batch()).join()
        assert compiles
        compiles.clear()
        loss(model, batch()).backward()
    finally:
        torch.set_num_threads(before)
    assert compiles == []


def test_a_dimension_marked_as_dynamic_may_differ(compiles: list[str]) -> None:
    model, fast = wrapped(Net()), batch(8)
    warm_up(model, loss, fast_batch=fast, dynamic={0}).join()
    assert compiles
    compiles.clear()
    for rows in (12, 20, 8):
        loss(model, batch(rows)).backward()
    assert compiles == []
    assert "dynamo" not in " ".join(vars(fast))  # the caller's own tensor is not marked


DDP = """
import os, sys, threading, torch, torch.distributed as dist, torch._dynamo
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from test_fast_batch import Net, autocast_loss, batch
from torchett.levers.startup.first_compile.fast_batch import warm_up
rank = int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
compiles = []
def trained(kind, warm):
    torch._dynamo.reset()
    torch._dynamo.callback.on_compile_start(
        lambda _: compiles.append(threading.current_thread().name)
    )
    torch.manual_seed(0)
    net = Net()
    if kind == "outer":
        model = torch.compile(DistributedDataParallel(net), backend="aot_eager")
    else:
        model = DistributedDataParallel(torch.compile(net, backend="aot_eager"))
    if warm:
        handle = warm_up(model, autocast_loss, fast_batch=batch())
        dist.all_reduce(torch.ones(1))  # the script's own collectives go on meanwhile
        handle.join()
        assert handle.error is None, handle.error
        assert set(compiles) == {"ett-warm-up"}, compiles
        assert all(weight.grad is None for weight in net.parameters())
    compiles.clear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        autocast_loss(model, batch(8) + rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not warm or compiles == [], compiles
    compiles.clear()
    return net.state_dict()
trained("inner", True)
plain, warm = trained("outer", False), trained("outer", True)
assert all(torch.equal(plain[name], warm[name]) for name in plain)
dist.destroy_process_group()
print("same")
"""


def test_ranks_of_a_compiled_ddp_model_compile_nothing_more(tmp_path: Path) -> None:
    """torch.compile(DDP(net)) and DDP(torch.compile(net)) on two ranks, with equal weights."""
    (tmp_path / "ddp.py").write_text(DDP)
    script = [sys.executable, "-m", FRESH, str(tmp_path / "ddp.py")]
    ranks = []
    for rank in range(2):
        env = {"ETT_DISABLE": "", "ETT_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}
        argv = [*script, __file__, str(tmp_path / "meet"), str(rank)]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ranks.append(subprocess.Popen(argv, env=os.environ | env, text=True, **pipe))  # type: ignore[call-overload]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)


# Nothing else has changed --------------------------------------------------------------------


def trained(dropout: float, *, warm: bool) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Weights and buffers after three steps, what the script draws later, and the generator."""
    torch.manual_seed(0)
    random.seed(0)
    model = torch.compile(Net(dropout), backend=slow)
    handle = warm_up(model, loss, fast_batch=batch()) if warm else None
    if handle:
        handle.join()
        assert (handle.error is None) is (dropout == 0.0)
    assert all(weight.grad is None for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss(model, batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    drawn = torch.cat([torch.rand(3), torch.tensor([random.random()])])
    return model.state_dict(), drawn, torch.get_rng_state()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_weights_buffers_and_random_numbers_are_as_without(
    compiles: list[str], caplog: pytest.LogCaptureFixture, dropout: float
) -> None:
    """Dropout draws from the CPU's generator: then the first step compiles, as usual."""
    weights, drawn, generator = trained(dropout, warm=True)
    assert set(compiles) == ({"MainThread"} if dropout else {THREAD})
    said = [line for line in caplog.messages if "draws from the CPU's generator" in line]
    assert len(said) == (1 if dropout else 0)
    torch._dynamo.reset()
    plain_weights, plain_drawn, plain_generator = trained(dropout, warm=False)
    assert weights.keys() == plain_weights.keys()
    assert all(torch.equal(weights[name], plain_weights[name]) for name in weights)
    assert torch.equal(drawn, plain_drawn)
    assert torch.equal(generator, plain_generator)


@pytest.mark.parametrize("draw", [lambda: random.uniform(0, 1), lambda: numpy.random.rand()])
def test_a_loss_that_draws_from_python_or_numpy_is_not_compiled(
    compiles: list[str], caplog: pytest.LogCaptureFixture, draw: Callable[[], float]
) -> None:
    """Stochastic depth does so."""
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    warm_up(wrapped(Net()), lambda m, b: loss(m, b) * draw(), fast_batch=batch()).join()
    assert "draws from a generator of Python or numpy" in caplog.text
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert compiles == []


def test_states_that_a_checkpointer_restores_meanwhile_hold(compiles: list[str]) -> None:
    """torch.compile restores the generators to their states at its begin."""
    torch.manual_seed(7)
    wanted = RandomState().state_dict()
    torch.manual_seed(0)
    begun = threading.Event()

    def begins(graph: Any, inputs: Any) -> Any:
        begun.set()
        return slow(graph, inputs)

    warm = warm_up(torch.compile(Net(), backend=begins), loss, fast_batch=batch())
    assert begun.wait(60)
    RandomState().load_state_dict(wanted)
    warm.join()
    assert warm.error is None
    assert set(compiles) == {THREAD}
    assert torch.equal(torch.get_rng_state(), wanted["torch"])


def test_two_models_are_compiled_in_turn(compiles: list[str]) -> None:
    """A dry run switches compiling off for all threads; two at once could leave it off."""
    first_is_in, second_is_over = threading.Event(), threading.Event()

    def slow_loss(model: Any, batch: Tensor) -> Tensor:
        first_is_in.set()
        second_is_over.wait(0.5)
        return loss(model, batch)

    def quick_loss(model: Any, batch: Tensor) -> Tensor:
        first_is_in.wait(0.5)
        return loss(model, batch)

    models = [wrapped(Net()), wrapped(Net())]
    one = warm_up(models[0], quick_loss, fast_batch=batch())
    other = warm_up(models[1], slow_loss, fast_batch=batch(12))
    one.join()
    second_is_over.set()
    other.join()
    assert eval_frame._stance.stance == "default"
    assert set(compiles) == {THREAD}


def test_gradients_that_exist_stay_as_they_are(compiles: list[str]) -> None:
    net = Net()
    model = wrapped(net)
    for weight in net.parameters():
        weight.grad = torch.full_like(weight, 7.0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    warm_up(model, loss, fast_batch=batch()).join()
    assert compiles
    assert all(bool((weight.grad == 7.0).all()) for weight in net.parameters())  # type: ignore[union-attr]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


class Renormed(Net):
    """Looks up rows that are scaled down in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, max_norm=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.table(x[:, 0].abs().long().clamp(max=7))


class Averaging(Net):
    """Keeps an average in a weight that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return super().forward(x - self.mean)


class Writing(Net):
    """Writes only to its own tensors: a buffer, a tensor in a list, the batch, new tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(16)]
        self.own = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        self.kept[0].add_(x.mean(0))
        x.mul_(2.0)
        noise = torch.zeros(16).uniform_(generator=self.own)
        return super().forward((x + noise).relu_())


CRITIC = Net()
SEEN = torch.zeros(())
GENERATOR = torch.Generator()


def critics_loss(model: Any, batch: Tensor) -> Tensor:
    return loss(CRITIC, model(batch).repeat(1, 4))


def counting_loss(model: Any, batch: Tensor) -> Tensor:
    SEEN.add_(1)
    return loss(model, batch)


def noisy_loss(model: Any, batch: Tensor) -> Tensor:
    return loss(model, batch + torch.rand(16, generator=GENERATOR))


def meeting_loss(model: Any, batch: Tensor) -> Tensor:
    found = loss(model, batch)
    dist.all_reduce(found.detach().clone())
    return found


@pytest.mark.parametrize(
    ("kind", "computes", "why"),
    [
        (Renormed, loss, "writes to weights"),
        (Averaging, loss, "writes to weights"),
        (Net, counting_loss, "outside the model"),
        (Net, critics_loss, "weights that are not the model's"),
        (Net, noisy_loss, "a generator that is not the model's"),
        (Net, meeting_loss, "communicates with other ranks"),
    ],
)
def test_a_loss_with_side_effects_is_not_run(
    compiles: list[str], caplog: pytest.LogCaptureFixture, kind: Any, computes: Any, why: str
) -> None:
    model = wrapped(kind())
    everything = [*model.state_dict().values(), *CRITIC.state_dict().values(), SEEN]
    before = [value.clone() for value in everything]
    generators = [torch.get_rng_state(), GENERATOR.get_state()]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        warm_up(model, computes, fast_batch=batch).join()
    finally:
        dist.destroy_process_group()
    assert all(map(torch.equal, everything, before))
    assert all(map(torch.equal, [torch.get_rng_state(), GENERATOR.get_state()], generators))
    assert all(weight.grad is None for weight in [*model.parameters(), *CRITIC.parameters()])
    assert why in caplog.text
    assert compiles == []


def test_a_model_that_writes_to_its_own_tensors_is_compiled(compiles: list[str]) -> None:
    net = Writing()
    warm = warm_up(wrapped(net), loss, fast_batch=batch)
    warm.join()
    assert warm.error is None
    assert set(compiles) == {THREAD}
    assert not net.kept[0].any()
    assert torch.equal(net.own.get_state(), torch.Generator().manual_seed(5).get_state())


def noting(net: Net, noted: list[Any]) -> None:
    net.first.register_forward_hook(lambda module, args, result: noted.append(result.mean()))


def noting_gradients(net: Net, noted: list[Any]) -> None:
    net.first.register_full_backward_hook(lambda module, ins, outs: noted.append(1))


def wrapping_forward(net: Net, noted: list[Any]) -> None:
    """A patch of some libraries: the function holds the module itself, not its copy."""
    forward = net.norm.forward
    net.norm.forward = lambda x: forward(x) * 2  # type: ignore[method-assign]


@pytest.mark.parametrize("hooked", [noting, noting_gradients, wrapping_forward])
def test_a_model_with_functions_that_have_state_is_not_compiled_ahead(
    compiles: list[str], caplog: pytest.LogCaptureFixture, hooked: Any
) -> None:
    net, noted = Net(), list[Any]()
    hooked(net, noted)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    warm_up(wrapped(net), loss, fast_batch=batch).join()
    assert "would share its function" in caplog.text
    assert noted == []
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


class Scaled:
    """A hook with state in itself: a copy of the hook has separate state."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def __call__(self, module: Any, args: Any, result: Tensor) -> Tensor:
        self.noted.append(1)
        return result * 2


def test_a_model_whose_hooks_are_copied_with_it_is_compiled(compiles: list[str]) -> None:
    net, hook = Net(), Scaled()
    net.register_forward_hook(hook)
    net.register_forward_pre_hook(lambda module, args: (torch.relu(args[0]),))
    warm = warm_up(wrapped(net), loss, fast_batch=batch)
    warm.join()
    assert warm.error is None
    assert hook.noted == []


def test_weights_may_be_restored_while_it_compiles(compiles: list[str]) -> None:
    net = Net()
    warm = warm_up(wrapped(net), loss, fast_batch=batch())
    restored = {name: torch.full_like(value, 2) for name, value in net.state_dict().items()}
    while warm._thread is not None and warm._thread.is_alive():
        net.load_state_dict(restored)
    warm.join()
    assert warm.error is None
    assert all(torch.equal(restored[name], value) for name, value in net.state_dict().items())


def test_an_error_is_stored_and_not_raised(
    compiles: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fetch() -> Tensor:
        raise OSError("the fast store is down")

    model = wrapped(Net())
    with warm_up(model, loss, fast_batch=fetch) as warm:
        pass
    assert isinstance(warm.error, OSError)
    assert "the first step compiles: OSError('the fast store is down')" in caplog.text
    net = Net()
    net.lock = threading.Lock()  # type: ignore[assignment]
    assert isinstance(warm_up(net, loss, fast_batch=batch()).error, TypeError)
    loss(model, batch()).backward()
    assert compiles


def test_an_error_in_the_body_is_raised_at_once(compiles: list[str]) -> None:
    held = threading.Event()
    with pytest.raises(KeyError), warm_up(wrapped(Net()), loss, fast_batch=held.wait) as warm:
        raise KeyError
    assert warm._thread is not None
    assert warm._thread.is_alive()
    held.set()


def test_switched_off_it_does_nothing(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_DISABLE", "1")
    warm_up(wrapped(Net()), loss, fast_batch=batch()).join()
    assert compiles == []


# What it wins --------------------------------------------------------------------------------


class Watched(Silent):
    """The recorded spans, with their lengths."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, bool, float]] = []

    def span(self, account: str, background: bool = False) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def timed() -> Iterator[None]:
            begin = time.monotonic()
            yield
            self.spans.append((account, background, time.monotonic() - begin))

        return timed()


def test_the_first_step_comes_at_the_longer_of_fetch_and_compile_not_at_their_sum(
    compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    loader    │ first batch ┄┄┄┄┄┄┄ │ step 0
    thread    │ compile ─────── │
    """
    watched = Watched()
    monkeypatch.setattr(api, "_recorder", watched)
    model = torch.compile(Net(), backend=slow)
    fetch_s = 1.5

    def loader() -> Iterator[Tensor]:
        time.sleep(fetch_s)
        yield batch()

    began = time.monotonic()
    warm = warm_up(model, loss, fast_batch=batch())
    for first in warm.then(loader()):
        waited = time.monotonic() - began
        compiled_on = set(compiles)
        compiles.clear()
        loss(model, first).backward()
    assert (compiled_on, compiles) == ({THREAD}, [])
    spans = {background: took for account, background, took in watched.spans}
    assert {account for account, _, _ in watched.spans} == {"pt2_compile"}
    compile_s, joined_s = spans[True], spans[False]
    slack_s = 0.5 * min(fetch_s, compile_s)
    assert compile_s > 1.0
    assert waited < max(fetch_s, compile_s) + slack_s
    assert joined_s < max(0.0, compile_s - fetch_s) + slack_s


# Shapes --------------------------------------------------------------------------------------


@dataclass
class Sample:
    tokens: Tensor
    weights: Tensor
    name: str


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_a_synthetic_batch_has_the_stored_shapes() -> None:
    real = {
        "sample": Sample(torch.randint(3, 50, (4, 6)), torch.rand(6, 4).t(), "a"),
        "pair": Pair(torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([True, False])),
        "more": [torch.zeros(0, 3), (torch.rand(3, 1).expand(3, 5), 0.5, None)],
        7: torch.full((3, 2), -100),
    }
    generator = torch.get_rng_state()
    made = synthetic_like(json.loads(json.dumps(remember_shapes(real))))
    assert torch.equal(torch.get_rng_state(), generator)
    assert isinstance(made["sample"], Sample)
    assert isinstance(made["pair"], Pair)
    assert made["sample"].name == "a"
    assert made["more"][1][1:] == (0.5, None)
    for ours, theirs in zip(tensors(made), tensors(real), strict=True):
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
    assert int(made["sample"].tokens.min()) >= 0
    assert int(made["sample"].tokens.max()) <= int(real["sample"].tokens.max())  # type: ignore[union-attr]


def tensors(batch: Any) -> list[Tensor]:
    sample, pair, more = batch["sample"], batch["pair"], batch["more"]
    return [sample.tokens, sample.weights, *pair, more[0], more[1][0], batch[7]]


def test_a_bag_of_embeddings_takes_the_offsets() -> None:
    bag = nn.EmbeddingBag(100, 4)
    offsets = torch.tensor([0, 0, 5, 9])
    ids, made = synthetic_like(remember_shapes((torch.randint(0, 100, (12,)), offsets)))
    assert torch.equal(made, offsets)
    assert bag(ids, made).shape == (4, 4)


def test_a_batch_that_cannot_be_stored_is_refused_with_one_line() -> None:
    with pytest.raises(ValueError, match="a batch holds a Event: expected tensors and numbers"):
        remember_shapes([threading.Event()])
    with pytest.raises(ValueError, match=r"layout torch.sparse_coo: expected a dense one"):
        remember_shapes(torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="the batch was a os:system: import its module first"):
        synthetic_like({"type": "os:system", "fields": {}})
    with pytest.raises(ValueError, match="expected a batch's shapes, found 'shape'"):
        synthetic_like({"shape": [1]})


class Loader:
    """Looks like a DataLoader with workers, but forks none."""

    num_workers = 1

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def test_a_loader_that_would_fork_during_the_compile_gets_a_warning(
    compiles: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for batches, told in ((iter(Loader()), False), (Loader(), True)):
        torch._dynamo.reset()
        warm = warm_up(torch.compile(Net(), backend=slow), loss, fast_batch=batch())
        assert next(warm.then(batches)) == 1
        assert ("call iter(loader) before the warm-up" in caplog.text) is told
