"""The environment of a compile, as strings; jobs with equal environments share an archive.

The fields in MUST have to be equal, or no entry of an archive is usable. The fields in MAY can
differ: torch's own keys decide for each entry, and the nearest archive saves part of the work.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment. `workload` is the script's name, or ETT_COMPILE_WORKLOAD."""

    torch: str
    python: str
    triton: str
    cuda: str
    gpu: str
    machine: str
    isa: str
    threads: str
    settings: str
    workload: str

    def words(self) -> dict[str, str]:
        return asdict(self)

    @property
    def key(self) -> str:
        """The name of archives for exactly this environment."""
        return f"{self.family}-{_digest(self.words())}"

    @property
    def family(self) -> str:
        """The prefix of the names of all archives that could be usable here."""
        return _digest({name: self.words()[name] for name in MUST})


MUST = ("torch", "python", "triton", "cuda", "gpu", "machine")
MAY = {"workload": 8, "settings": 4, "threads": 2, "isa": 1}


def nearness(ours: Environment, theirs: Mapping[str, str]) -> int:
    """How near another environment is: −1 if it is not usable, 15 if it is equal."""
    words = ours.words()
    if any(words[name] != theirs.get(name) for name in MUST):
        return -1
    return sum(weight for name, weight in MAY.items() if words[name] == theirs.get(name))


def stale(ours: Environment, theirs: Mapping[str, str]) -> str | None:
    """Why an archive of that environment is not usable here; None if it may be."""
    words = ours.words()
    for name in MUST:
        if words[name] != theirs.get(name):
            return f"stale: made with {name} {theirs.get(name)!r}, this job has {words[name]!r}"
    return None


def here(workload: str | None = None) -> Environment:
    """The environment of this process."""
    import torch

    from torchett.levers.compile.adapter.caches import inductor_settings, triton_version

    settings = json.dumps(inductor_settings(), sort_keys=True, default=str)
    return Environment(
        torch=f"{torch.__version__} {torch.version.git_version[:12]}",
        python=f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
        triton=triton_version(),
        cuda=str(torch.version.cuda or torch.version.hip or ""),
        gpu=_gpu(),
        machine=platform.machine(),
        isa=torch.backends.cpu.get_cpu_capability(),
        threads=str(torch.get_num_threads()),
        settings=hashlib.sha256(settings.encode()).hexdigest()[:16],
        workload=workload or os.environ.get("ETT_COMPILE_WORKLOAD") or _script(),
    )


def _gpu() -> str:
    """The name and capability of this process's GPU; empty before CUDA is initialized."""
    import torch

    if not torch.cuda.is_initialized():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} sm{major}{minor}"


def _script() -> str:
    """The script with its folder, such as `gpt/train.py`; with `-m`, the module."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    path = os.path.abspath(getattr(main, "__file__", None) or sys.argv[0] or "python")
    return "/".join(path.split(os.sep)[-2:])


def _digest(words: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(words), sort_keys=True).encode()).hexdigest()[:16]
