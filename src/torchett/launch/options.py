"""The options of `ett run`, parsed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchett.launch.restarts import MakePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `ett run`, its command, and the plugins of its processes."""

    command: tuple[str, ...]
    job: str | None = None
    resume: bool = False
    max_restarts: int = 0
    as_is: bool = False
    standby: bool = True
    standby_device: bool = False
    preload: str = ""  # modules for standbys, comma between
    hang_timeout_s: float = 60.0
    progress_s: float = 30.0
    node: int | None = None
    nodes: int | None = None
    spares: int = 0  # further nodes, which wait
    head: str | None = None
    plugins: tuple[str, ...] = ()  # modules to install in every process: see record/plugins.py
    labels: Mapping[str, str] = field(default_factory=dict)
    ship: str | None = None  # URL of the server that gets the run
    settings: Mapping[str, str] = field(default_factory=dict)  # what those read: ETT_NAME=value
    levers: tuple[str, ...] = ()  # the names of those that are on
    policy: MakePolicy | None = None  # of restarts
