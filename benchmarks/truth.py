"""Whether a second that the ledger calls effective was training: small loops with stopwatches.

    ./dev bench truth [--quick] [--json] [NAME…]

Each loop runs as a script that nobody changed, under hooks, in a process of its own. It knows which
of its seconds train, and takes their time itself: from when it has its batch to the end of the
update. What lies elsewhere (pauses, evaluation, logging, uploads) is not training. A row is true
if the ledger's effective seconds are within 3% + 0.1 s of the stopwatch, or if a note beside the
headline says how far they may be off. `--quick` runs the loops that the tests run, 20 s together.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _table import Column, Report, Row, Sheet, bar, options

WORK_S = 0.004  # of a step, besides what its tiny model takes
SHARE, SECONDS = 0.03, 0.1  # what the ledger may be off


class Stopwatch:
    """`with watch:` around what trains."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


watch = Stopwatch()
Loop = Callable[[], None]
LOOPS: dict[str, tuple[str, Loop]] = {}
QUICK: list[str] = []


def loop(says: str, quick: bool = False) -> Callable[[Loop], Loop]:
    """A loop of this benchmark, by the name of its function."""

    def kept(body: Loop) -> Loop:
        LOOPS[body.__name__] = says, body
        if quick:
            QUICK.append(body.__name__)
        return body

    return kept


# What loops are made of ------------------------------------------------------------------------


def model(out: int = 1) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, out))


def optimizer_of(net: Any) -> Any:
    import torch

    return torch.optim.SGD(net.parameters(), lr=0.01)


def data(rows: int = 120) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.randn(rows, 8), torch.randn(rows, 1))


def loader(rows: int = 120, batch: int = 4, **how: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(data(rows), batch_size=batch, **how)


def made(rows: int = 4) -> tuple[Any, Any]:
    import torch

    return torch.randn(rows, 8), torch.randn(rows, 1)


def loss_of(net: Any, batch: Any, work: float = WORK_S) -> Any:
    """The loss, on a device that takes so long."""
    x, y = batch
    loss = ((net(x) - y) ** 2).mean()
    time.sleep(work)
    return loss


def step(net: Any, optimizer: Any, batch: Any, work: float = WORK_S) -> None:
    with watch:
        optimizer.zero_grad()
        loss_of(net, batch, work).backward()
        optimizer.step()


Pause = Callable[[], None]


def rest(seconds: float = 0.3) -> Pause:
    return lambda: time.sleep(seconds)


def epochs(
    count: int = 5,
    before: Pause | None = None,
    fetched: Pause | None = None,
    after_each: Pause | None = None,
    after: Callable[[Any, Any], None] | None = None,
    batches: Any = None,
) -> None:
    """Epochs over a loader, with pauses where they are given: `fetched` at the third batch."""
    net = model()
    optimizer, source = optimizer_of(net), loader() if batches is None else batches
    for _ in range(count):
        if before:
            before()
        for i, batch in enumerate(source):
            if fetched and i == 2:
                fetched()
            step(net, optimizer, batch)
            if after_each:
                after_each()
        if after:
            after(net, optimizer)


def by_hand(count: int = 5, before: Pause | None = None, after: Pause | None = None) -> None:
    """The same without a loader."""
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(count):
        for i in range(30):
            batch = made()
            if before and i == 0:
                before()
            step(net, optimizer, batch)
        if after:
            after()


def busy(seconds: float) -> None:
    """Other work in Python."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        json.dumps(list(range(200)))


# Pauses at every place -------------------------------------------------------------------------


@loop("epochs without a pause")
def plain() -> None:
    epochs()


@loop("pause at the end of each epoch", quick=True)
def pause_at_the_end() -> None:
    epochs(after=lambda net, optimizer: time.sleep(0.5))


@loop("pause at the start of each epoch")
def pause_at_the_start() -> None:
    epochs(before=rest())


@loop("pause between a batch and its forward pass, once an epoch", quick=True)
def pause_before_a_forward() -> None:
    epochs(fetched=rest())


@loop("pause between a batch and its forward pass, at each step")
def pause_before_each_forward() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(2):
        for batch in loader():
            time.sleep(0.03)
            step(net, optimizer, batch)


@loop("pause after each step", quick=True)
def pause_after_each_step() -> None:
    epochs(2, after_each=rest(0.02))


@loop("pause of 1.5 s between a backward pass and its update")
def pause_before_an_update() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for i, batch in enumerate(loader(480)):
        with watch:
            optimizer.zero_grad()
            loss_of(net, batch).backward()
        if i == 60:
            time.sleep(1.5)
        with watch:
            optimizer.step()


@loop("pause of 1.5 s between a forward pass and its backward pass", quick=True)
def pause_before_a_backward() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for i, batch in enumerate(loader(480)):
        with watch:
            optimizer.zero_grad()
            loss = loss_of(net, batch)
        if i == 60:
            time.sleep(1.5)
        with watch:
            loss.backward()
            optimizer.step()


@loop("pause before the first loop, and before the second")
def pause_before_a_loop() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(2):
        time.sleep(1.0)
        for _ in range(40):
            step(net, optimizer, made())


@loop("a pause after zero_grad, which comes last in a step")
def zeroed_last() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(4):
        for batch in loader():
            with watch:
                loss_of(net, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        time.sleep(0.4)


@loop("no loader, pause at the end of each epoch", quick=True)
def no_loader_end() -> None:
    by_hand(after=rest(0.5))


@loop("no loader, pause before a forward pass", quick=True)
def no_loader_before() -> None:
    by_hand(before=rest(0.5))


@loop("no loader, a pause after each step")
def no_loader_each() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(60):
        step(net, optimizer, made())
        time.sleep(0.02)


@loop("no loader, other work in Python now and then")
def other_work() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for i in range(150):
        step(net, optimizer, made())
        if i % 40 == 39:
            busy(0.6)


# Kinds of steps --------------------------------------------------------------------------------


@loop("gradient accumulation, pauses", quick=True)
def accumulation() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(3):
        for i, batch in enumerate(loader(240)):
            with watch:
                (loss_of(net, batch) / 4).backward()
                if i % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
        time.sleep(0.4)


@loop("GAN of two optimizers, a sample after each epoch", quick=True)
def gan() -> None:
    import torch

    make, judge = model(8), model()
    opt_d, opt_g = (torch.optim.Adam(net.parameters()) for net in (judge, make))
    for _ in range(4):
        for real, _ in loader():
            with watch:
                opt_d.zero_grad()
                fake = make(torch.randn(4, 8))
                time.sleep(WORK_S)
                (judge(real).mean() - judge(fake.detach()).mean()).backward()
                opt_d.step()
                opt_g.zero_grad()
                judge(fake).mean().backward()
                opt_g.step()
        with torch.no_grad():
            make(torch.randn(64, 8))
            time.sleep(0.4)


@loop("a critic that is trained more often")
def critic() -> None:
    import torch

    make, judge = model(8), model()
    opt_d, opt_g = (torch.optim.Adam(net.parameters()) for net in (judge, make))
    for i, (real, _) in enumerate(loader(600)):
        with watch:
            opt_d.zero_grad()
            (judge(real) - judge(make(torch.randn(4, 8)).detach())).mean().backward()
            time.sleep(WORK_S)
            opt_d.step()
            if i % 5 == 4:
                opt_g.zero_grad()
                judge(make(torch.randn(4, 8))).mean().backward()
                opt_g.step()
        if i % 50 == 49:
            time.sleep(0.4)


@loop("mixed precision with a GradScaler", quick=True)
def amp() -> None:
    import torch

    net = model()
    optimizer = optimizer_of(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(4):
        for i, batch in enumerate(loader()):
            with watch:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(net, batch)
                scaler.scale(loss * float("inf") if i == 5 else loss).backward()
                scaler.step(optimizer)
                scaler.update()
        time.sleep(0.3)


@loop("clipping and a scheduler")
def scheduled() -> None:
    import torch

    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(4):
        for batch in loader():
            with watch:
                optimizer.zero_grad()
                loss_of(net, batch).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
            schedule.step()
        time.sleep(0.3)


@loop("LBFGS with a closure")
def lbfgs() -> None:
    import torch

    net, batch = model(), made(16)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        return loss

    for i in range(30):
        with watch:
            optimizer.step(closure)
        if i % 6 == 5:
            time.sleep(0.4)


@loop("SGD by hand on a module, no torch.optim")
def sgd_by_hand() -> None:
    net = model()
    for _ in range(4):
        for _ in range(40):
            batch = made()
            with watch:
                net.zero_grad()
                loss_of(net, batch).backward()
                for p in net.parameters():
                    p.data.add_(p.grad, alpha=-0.01)
        time.sleep(0.5)


@loop("SGD by hand on a module, no zero_grad either")
def sgd_without_zero() -> None:
    net = model()
    for _ in range(4):
        for _ in range(40):
            batch = made()
            with watch:
                loss_of(net, batch).backward()
                for p in net.parameters():
                    p.data.add_(p.grad, alpha=-0.01)
                    p.grad = None
        time.sleep(0.5)


@loop("SGD by hand on tensors, no module")
def tensors_by_hand() -> None:
    import torch

    w = torch.randn(8, 1, requires_grad=True)
    for _ in range(4):
        for _ in range(40):
            x, y = made()
            with watch:
                loss = ((x @ w - y) ** 2).mean()
                time.sleep(WORK_S)
                loss.backward()
                with torch.no_grad():
                    w -= 0.01 * w.grad
                    w.grad = None
        time.sleep(0.5)


@loop("a function of tensors under torch.optim, no module")
def functional() -> None:
    import torch

    w = torch.randn(8, 1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.01)
    for _ in range(4):
        for _ in range(40):
            x, y = made()
            with watch:
                optimizer.zero_grad()
                loss = ((x @ w - y) ** 2).mean()
                time.sleep(WORK_S)
                loss.backward()
                optimizer.step()
        time.sleep(0.5)


@loop("modules inside a model that itself is never called", quick=True)
def parts_alone() -> None:
    from torch import nn

    net = nn.ModuleDict({"encoder": model(8), "decoder": model()})
    optimizer = optimizer_of(net)
    for _ in range(4):
        for i in range(40):
            x, y = made()
            if i == 0:
                time.sleep(0.4)
            with watch:
                optimizer.zero_grad()
                z = net["encoder"](x)
                time.sleep(WORK_S)
                ((net["decoder"](z) - y) ** 2).mean().backward()
                optimizer.step()


@loop("a teacher without gradients in each step")
def distillation() -> None:
    import torch

    teacher, net = model().eval(), model()
    optimizer = optimizer_of(net)
    for _ in range(4):
        for x, _ in loader():
            with watch:
                optimizer.zero_grad()
                out = net(x)
                time.sleep(WORK_S)
                with torch.no_grad():
                    wanted = teacher(x)
                ((out - wanted) ** 2).mean().backward()
                optimizer.step()
        time.sleep(0.4)


@loop("steps of uneven length", quick=True)
def uneven() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(3):
        for i, batch in enumerate(loader()):
            step(net, optimizer, batch, WORK_S * (1 + i % 7))
        time.sleep(0.4)


@loop("torch.compile'd model")
def compiled_model() -> None:
    import torch

    net = model()
    fast = torch.compile(net, backend="eager")
    optimizer = optimizer_of(net)
    fast(made()[0])
    for _ in range(4):
        for batch in loader():
            step(fast, optimizer, batch)
        time.sleep(0.4)


@loop("torch.compile'd loss function, no loader")
def compiled_function() -> None:
    import torch

    net = model()
    optimizer = optimizer_of(net)

    @torch.compile(backend="eager")
    def loss_at(x: Any, y: Any) -> Any:
        return ((net(x) - y) ** 2).mean()

    loss_at(*made())
    for _ in range(4):
        for _ in range(40):
            batch = made()
            with watch:
                optimizer.zero_grad()
                loss = loss_at(*batch)
                time.sleep(WORK_S)
                loss.backward()
                optimizer.step()
        time.sleep(0.4)


# Data ------------------------------------------------------------------------------------------


@loop("a loader that is filled lazily")
def lazy_loader() -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Lazy(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            time.sleep(0.5)
            for i in range(30):
                if i % 10 == 9:
                    time.sleep(0.1)
                yield tuple(part[0] for part in made(1))

    epochs(4, batches=DataLoader(Lazy(), batch_size=1))


@loop("a slow loader with workers")
def workers() -> None:
    epochs(3, batches=loader(num_workers=1), after=lambda net, optimizer: time.sleep(0.3))


@loop("batches fetched two ahead, pauses", quick=True)
def fetched_ahead() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(4):
        batches = iter(loader())
        queue = [next(batches), next(batches)]
        while queue:
            step(net, optimizer, queue.pop(0))
            more = next(batches, None)
            queue += [] if more is None else [more]
        time.sleep(0.4)


@loop("a batch from each of two loaders in a step")
def two_loaders() -> None:
    net = model()
    optimizer = optimizer_of(net)
    for _ in range(4):
        for one, other in zip(loader(), loader(), strict=True):
            with watch:
                optimizer.zero_grad()
                (loss_of(net, one) + loss_of(net, other, 0)).backward()
                optimizer.step()
        time.sleep(0.4)


@loop("two loaders, in turn")
def loaders_in_turn() -> None:
    net = model()
    optimizer, sources = optimizer_of(net), [loader(), loader()]
    for _ in range(2):
        for source in sources:
            for batch in source:
                step(net, optimizer, batch)
            time.sleep(0.4)


# What lies between -----------------------------------------------------------------------------


@loop("evaluation in eval mode without gradients", quick=True)
def evaluated() -> None:
    import torch

    held_out = loader(40)

    def check(net: Any, optimizer: Any) -> None:
        net.eval()
        with torch.no_grad():
            for batch in held_out:
                loss_of(net, batch, 0.03)
        net.train()

    epochs(4, after=check)


@loop("evaluation without gradients, in training mode")
def evaluated_in_training_mode() -> None:
    import torch

    held_out = loader(40)

    def check(net: Any, optimizer: Any) -> None:
        with torch.no_grad():
            for batch in held_out:
                loss_of(net, batch, 0.03)

    epochs(4, after=check)


@loop("evaluation in eval mode with gradients on", quick=True)
def evaluated_with_gradients() -> None:
    held_out = loader(40)

    def check(net: Any, optimizer: Any) -> None:
        net.eval()
        for batch in held_out:
            loss_of(net, batch, 0.03)
        net.train()

    epochs(4, after=check)


@loop("evaluation with gradients on, in training mode")
def evaluated_like_training() -> None:
    held_out = loader(40)

    def check(net: Any, optimizer: Any) -> None:
        for batch in held_out:
            loss_of(net, batch, 0.03)

    epochs(4, after=check)


@loop("evaluation of batches made by hand, gradients on")
def evaluated_by_hand() -> None:
    def check(net: Any, optimizer: Any) -> None:
        for _ in range(10):
            loss_of(net, made(), 0.03)

    epochs(4, after=check)


@loop("a sample from the model after each epoch", quick=True)
def sampled() -> None:
    import torch

    def sample(net: Any, optimizer: Any) -> None:
        with torch.no_grad():
            for _ in range(10):
                net(made()[0])
                time.sleep(0.04)

    epochs(5, after=sample)


@loop("logging after each epoch")
def logged() -> None:
    epochs(after=lambda net, optimizer: busy(0.4))


@loop("a save and an upload after each epoch", quick=True)
def uploaded() -> None:
    import torch

    folder = tempfile.mkdtemp(prefix="ett-truth-")

    def save(net: Any, optimizer: Any) -> None:
        torch.save({"net": net.state_dict(), "opt": optimizer.state_dict()}, f"{folder}/c.pt")
        time.sleep(0.4)

    epochs(after=save)


@loop("rollouts without gradients, then several updates", quick=True)
def rollouts() -> None:
    import torch

    policy = model(2)
    optimizer = optimizer_of(policy)
    for _ in range(6):
        seen = []
        with torch.no_grad():
            for _ in range(20):
                x, _ = made(1)
                seen.append((x, torch.distributions.Categorical(logits=policy(x)).sample()))
                time.sleep(0.01)  # the environment
        for _ in range(8):
            with watch:
                x, action = (torch.cat(part) for part in zip(*seen, strict=True))
                odds = torch.distributions.Categorical(logits=policy(x))
                time.sleep(WORK_S)
                optimizer.zero_grad()
                (-odds.log_prob(action).mean()).backward()
                optimizer.step()


@loop("rollouts by a copy of the policy")
def rollouts_by_a_copy() -> None:
    import copy

    import torch

    policy = model(2)
    actor = copy.deepcopy(policy)
    optimizer = optimizer_of(policy)
    for _ in range(6):
        seen = []
        for _ in range(20):
            x, _ = made(1)
            seen.append((x, actor(x).argmax(1)))
            time.sleep(0.01)
        for _ in range(8):
            with watch:
                x, action = (torch.cat(part) for part in zip(*seen, strict=True))
                odds = torch.distributions.Categorical(logits=policy(x))
                time.sleep(WORK_S)
                optimizer.zero_grad()
                (-odds.log_prob(action).mean()).backward()
                optimizer.step()
        actor.load_state_dict(policy.state_dict())


@loop("two phases with optimizers of their own")
def two_phases() -> None:
    net = model()
    for _ in range(2):
        optimizer = optimizer_of(net)
        time.sleep(0.5)
        for _ in range(2):
            for batch in loader():
                step(net, optimizer, batch)


# The script's own words, and frameworks --------------------------------------------------------


@loop("epochs of ett.steps, pauses between them", quick=True)
def own_steps() -> None:
    import torchett as ett

    net = model()
    optimizer, source = optimizer_of(net), loader()
    for _ in range(4):
        for batch in ett.steps(source):
            step(net, optimizer, batch)
        time.sleep(0.4)


@loop("ett.step around each update")
def own_step() -> None:
    import torchett as ett

    net = model()
    optimizer = optimizer_of(net)
    for i in range(120):
        batch = made()
        with ett.step(i):
            step(net, optimizer, batch)
        time.sleep(0.01)


@loop("Accelerate")
def accelerate() -> None:
    from accelerate import Accelerator

    accelerator, net = Accelerator(cpu=True), model()
    net, optimizer, source = accelerator.prepare(net, optimizer_of(net), loader())
    for _ in range(4):
        for batch in source:
            with watch:
                optimizer.zero_grad()
                accelerator.backward(loss_of(net, batch))
                optimizer.step()
        time.sleep(0.4)


@loop("Lightning's Trainer")
def lightning() -> None:
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, index: int) -> Any:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return optimizer_of(self)

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            watch.__enter__()

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            watch.__exit__()

        def on_train_epoch_end(self) -> None:
            time.sleep(0.4)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        max_epochs=4, accelerator="cpu", devices=1, enable_model_summary=False, **quiet
    )
    trainer.fit(Net(), loader())


@loop("Hugging Face's Trainer")
def transformers() -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: Any = None, y: Any = None) -> Any:
            return {"loss": loss_of(self.net, (x, y))}

    class Watch(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.__exit__()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            time.sleep(0.4)

    rows = [dict(zip("xy", row, strict=True)) for row in data()]
    given = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="ett-truth-"), num_train_epochs=4, report_to=[],
        per_device_train_batch_size=4, save_strategy="no", use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, logging_strategy="no",
    )  # fmt: skip
    Trainer(model=Net(), args=given, train_dataset=rows, callbacks=[Watch()]).train()


# Beside the ledger -----------------------------------------------------------------------------


def timed(name: str, folder: Path) -> Row:
    """What the stopwatch of a loop says, which is run in a forked child under hooks."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(ETT_RUN=str(folder / name), ETT_JOB=name, ETT_ATTEMPT="0")
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        watch.seconds = 0.0
        try:
            LOOPS[name][1]()
            told: Row = {"stopwatch_s": watch.seconds}
        except ModuleNotFoundError as error:
            told = {"error": f"{error.name} is not installed"}
        os.write(write, json.dumps(told).encode())
        sys.exit()
    os.close(write)
    with open(read) as pipe:
        told = json.loads(pipe.read() or '{"error": "did not finish"}')
    os.waitpid(child, 0)
    return told


def compared(name: str, folder: Path) -> Row:
    """A row: the stopwatch, the ledger, and the note that says how far it may be off."""
    from torchett.report.sections.long_steps import long_steps_line
    from torchett.runs.reader import RunReader

    row: Row = {"name": name, "loop": LOOPS[name][0], **timed(name, folder)}
    if "error" in row:
        return row
    reader = RunReader(folder / name).poll()
    ledger = reader.ledger()
    line = long_steps_line(ledger, reader.history().rows)
    notes = [*([] if line is None else [line]), *(n for n in reader.notes if "if " in n)]
    truth, effective = row["stopwatch_s"], ledger.accounts.get("effective", 0) / 1e9
    off = effective - truth
    row |= {"effective_s": effective, "off_s": off, "note": notes[0] if notes else None}
    row["within"] = abs(off) <= SHARE * truth + SECONDS
    row["true"] = row["within"] or bool(notes)
    others = sorted(ledger.accounts.items(), key=lambda item: -item[1])
    row["accounts"] = {account: ns / 1e9 for account, ns in others}
    return row


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of loops: these alone")
    given = parser.parse_args()
    unknown = set(given.names) - set(LOOPS)
    if unknown:
        parser.error(f"no loop {sorted(unknown)[0]!r}: expected one of {', '.join(LOOPS)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch._dynamo
    import torch.utils.data

    from torchett.record.hooks import install_plugin

    torch.set_num_threads(1)
    for name in ("record.flight", "levers.compile.observe.watch", "levers.compile.tuning.pins"):
        importlib.import_module(f"torchett.{name}")  # comes with the record: not as a watch runs
    plain()  # nor what torch imports at a first step
    install_plugin()
    names = given.names or (QUICK if given.quick else list(LOOPS))
    folder = Path(tempfile.mkdtemp(prefix="ett-truth-"))  # not `with`: a child leaves by here, too
    rows = [compared(name, folder) for name in names]
    shutil.rmtree(folder)

    def number(value: float) -> str:
        return f"{value:.2f}"

    columns = [
        Column("loop", "loop"),
        Column("stopwatch_s", "stopwatch, s", number),
        Column("effective_s", "effective, s", number),
        Column("off_s", "off, s", lambda value: f"{value:+.2f}"),
        Column("true", "true", lambda value: "yes" if value else "NO"),
        Column("note", "note"),
    ]
    report = Report("truth")
    report.sheets.append(Sheet("Effective seconds", columns, rows))
    ran = [row for row in rows if "true" in row]
    wrong = len([row for row in ran if not row["true"]])
    report.bars.append(bar(f"rows of {len(ran)} that are not true", "none", wrong, wrong == 0, ""))
    report.show(given.json)


if __name__ == "__main__":
    main()
