"""One throwaway compile, so that a standby has walked the compiler before it is needed.

Imported for its effect, last of all, by a standby that waits. It goes through dynamo and autograd
but stops before code is generated: that would run a C++ compiler for as long as a minute, and
whoever needs the standby meanwhile would wait for it. The RNG, dynamo's caches and counters are
left as they were.
"""


def rehearse() -> None:
    import torch

    state = torch.get_rng_state()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    try:
        torch.compile(model, backend="aot_eager")(torch.randn(4, 8)).sum().backward()
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.set_rng_state(state)


rehearse()
