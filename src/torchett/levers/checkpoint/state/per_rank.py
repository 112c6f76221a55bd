"""State that each rank has its own of: random generators, positions in a stream of data.

DCP keeps one value for each name, so what differs from rank to rank is saved under the rank's
name: `loader.rank-3`. Loaders and `RandomState` are recognised; wrap anything else in `PerRank`.
"""

import io
import random
import sys
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from torchett.levers.checkpoint.errors import StateMismatch
from torchett.record.process.joined_threads import set_generators


class PerRank:
    """A Stateful whose state is each rank's own: `{"queue": ett.checkpoint.PerRank(queue)}`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.inner.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class RandomState:
    """The generators of python, numpy (if it is used) and torch: `{"rng": RandomState()}`."""

    def state_dict(self) -> dict[str, Any]:
        import torch

        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            state["numpy"] = sys.modules["numpy"].random.get_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_generators(partial(self._set, state))

    @staticmethod
    def _set(state: dict[str, Any]) -> None:
        import torch

        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            import numpy

            numpy.random.set_state(state["numpy"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])

    def load_state_dicts(self, states: list[dict[str, Any]], rank: int) -> None:
        """Of another number of ranks: a rank's own, or one drawn from rank 0's and its number."""
        self.load_state_dict(states[rank % len(states)])
        if rank >= len(states):
            seed = zlib.crc32(bytes(states[0]["torch"].tolist()[:64])) * 65537 + rank
            set_generators(partial(_seed, seed, "numpy" in states[0]))


def _seed(seed: int, numpy_too: bool) -> None:
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    if numpy_too:
        import numpy

        numpy.random.seed(seed % 2**32)


def is_per_rank(value: Any) -> bool:
    """Whether each rank has its own of this: a wrapper, generators, something to iterate over."""
    import torch

    if isinstance(value, PerRank | RandomState):
        return True
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer | Mapping):
        return False
    stateful = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return stateful and (hasattr(value, "__iter__") or hasattr(value, "load_state_dicts"))


def name(rank: int) -> str:
    return f"rank-{rank}"


def pack(value: Any) -> bytes:
    """A rank's state as one opaque leaf, whatever its keys are."""
    import torch

    buffer = io.BytesIO()
    torch.save(value.state_dict(), buffer)
    return buffer.getvalue()


def unpack(
    key: str,
    value: Any,
    packed: Mapping[str, bytes],
    rank: int,
    size: int,
    *,
    saved: int | None = None,
) -> None:
    """Load what the ranks packed into this rank's object; StateMismatch if it does not fit.

    `saved` is how many ranks packed, where `packed` holds this rank's alone.
    """
    import torch

    def load(data: bytes) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=False)
        return state

    saved = len(packed) if saved is None else saved
    inner = value.inner if isinstance(value, PerRank) else value
    if saved == size:
        value.load_state_dict(load(packed[name(rank)]))
    elif hasattr(inner, "load_state_dicts"):
        inner.load_state_dicts([load(packed[name(r)]) for r in range(saved)], rank)
    else:
        raise StateMismatch(
            f"the state of {key!r} ({type(inner).__name__}) was saved by {saved} ranks, and "
            f"this job has {size}: positions in {saved} streams do not say where {size} go on. "
            f"Run it with {saved} ranks, give {type(inner).__name__} a method "
            f"load_state_dicts(states, rank) that divides them anew, or begin its data anew "
            f"with restore(state, skip=[{key!r}])"
        )
