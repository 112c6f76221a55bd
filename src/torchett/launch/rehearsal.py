"""One throwaway compile, so that a standby has walked the compiler before it is needed.

Imported for its effect, last of all, by a standby that waits. Nothing of it stays behind: the
RNG, dynamo's caches and counters are as they were.
"""


def rehearse() -> None:
    import torch

    state = torch.get_rng_state()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    try:
        torch.compile(model)(torch.randn(4, 8)).sum().backward()
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.set_rng_state(state)


rehearse()
