"""The private names of torch that our elastic agent relies on, probed in one place.

If one is missing, or its parameters are others, `ett run -- torchrun …` runs torch's own agent:
without standbys, with one line that says so.
"""

import importlib
import inspect
from typing import Any

_ELASTIC = "torch.distributed.elastic"
_AGENT = f"{_ELASTIC}.agent.server.local_elastic_agent"
_PROCESSES = f"{_ELASTIC}.multiprocessing.api"
# What we override or call, with the parameters that we name.
NAMES: dict[str, tuple[str, ...]] = {
    "torch.distributed.run:elastic_launch": ("config", "entrypoint"),
    "torch.distributed.launcher.api:_get_addr_and_port": (),
    f"{_ELASTIC}.rendezvous.registry:get_rendezvous_handler": (),
    f"{_AGENT}:start_processes": ("entrypoint", "envs"),
    f"{_AGENT}:LocalElasticAgent._rendezvous": ("worker_group",),
    f"{_AGENT}:LocalElasticAgent._restart_workers": ("worker_group",),
    f"{_AGENT}:LocalElasticAgent._start_workers": ("worker_group",),
    f"{_AGENT}:LocalElasticAgent._monitor_workers": ("worker_group",),
    f"{_PROCESSES}:SubprocessContext._start": (),
    f"{_PROCESSES}:SubprocessContext._close": ("death_sig", "timeout"),
    f"{_PROCESSES}:SubprocessHandler": (
        *("entrypoint", "args", "env", "stdout", "stderr", "local_rank_id"),
    ),
    f"{_PROCESSES}:SubprocessHandler._popen": ("args", "env"),
    f"{_PROCESSES}:SubprocessHandler.close": ("death_sig",),
}


def missing() -> str | None:
    """The first name that this torch does not have as we know it, None if all are there."""
    for target, parameters in NAMES.items():
        try:
            found = _find(target)
            known = inspect.signature(found).parameters
        except (ImportError, AttributeError, ValueError, TypeError):
            return target.replace(":", ".")
        if getattr(found, "__isabstractmethod__", False):  # its base class has it, unimplemented
            return target.replace(":", ".")
        for name in parameters:
            if name not in known:
                return f"{target.replace(':', '.')}({name})"
    return None


def _find(target: str) -> Any:
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found
