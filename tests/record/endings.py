"""Scripts that end in every way, and hooks that break; each in a forked child.

python endings.py FOLDER NAME…     prints, for each, its wait status, what it said and its weights
"""

import json
import os
import signal
import sys

import torch
import torch._dynamo  # once, for all children
from torch.utils.data import DataLoader, TensorDataset


def train(steps, after=lambda: None):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    data = TensorDataset(torch.randn(40, 8), torch.randn(40, 1))
    done = 0
    while True:
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()
            after()
            done += 1
            if done == steps:
                return net


def exception():
    train(3)
    raise ValueError("no luck")


def leaves():
    train(3)
    raise SystemExit(7)


def leaves_with_a_message():
    train(3)
    raise SystemExit("that was all")


def interrupted():
    train(3)
    os.kill(os.getpid(), signal.SIGINT)


def terminated():
    train(3)
    os.kill(os.getpid(), signal.SIGTERM)


def killed():
    train(3)
    os.kill(os.getpid(), signal.SIGKILL)


def loader_fails():
    train(3)
    next(iter(DataLoader([1, None], batch_size=2)))


def backward_fails():
    train(3)
    torch.zeros(2, requires_grad=True).backward()


def update_fails_and_is_left_behind():
    net = train(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        optimizer.step(closure=lambda: 1 / 0)
    except ZeroDivisionError:
        pass


def weights():
    net = train(30)
    print([p.tolist() for p in net.parameters()])


def breaks(path):
    """A hook that fails, simulated; the script saves after every step."""

    def fail(*args, **kwargs):
        raise RuntimeError("a hook broke")

    if "torchett.record.hooks.watcher" in sys.modules:
        owner, *names = sys.modules["torchett.record.hooks.watcher"].watcher, *path.split(".")
        for name in names[:-1]:
            owner = getattr(owner, name)
        setattr(owner, names[-1], fail)
    net = torch.nn.Linear(2, 2)
    train(12, lambda: torch.save(net.state_dict(), "/dev/null"))
    print("trained")


def main(folder, names):
    told = {}
    for name in names:
        pipes = [os.pipe() for _ in range(2)]
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for (_, write), fd in zip(pipes, (1, 2), strict=True):
                os.dup2(write, fd)
            os.environ.update(ETT_RUN=f"{folder}/{name}", ETT_JOB=name, ETT_ATTEMPT="0")
            body, _, argument = name.partition(":")
            globals()[body](*([argument] if argument else []))
            return
        said = []
        for read, write in pipes:
            os.close(write)
            with open(read) as pipe:
                said.append(pipe.read())
        told[name] = {"status": os.waitpid(child, 0)[1], "out": said[0], "err": said[1]}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
