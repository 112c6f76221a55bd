"""Start-up that overlaps: a plan of stages, the compile on a fast batch, imports on the side."""

from torchett.startup.fast_batch import WarmUp, warm_up
from torchett.startup.gathers import gather_objects_together
from torchett.startup.groups import lazy_groups
from torchett.startup.imports import background_imports
from torchett.startup.plan import Plan, Ready
from torchett.startup.plan_run import PlanRun
from torchett.startup.shapes import remember_shapes, synthetic_like

__all__ = [
    "Plan",
    "PlanRun",
    "Ready",
    "WarmUp",
    "background_imports",
    "gather_objects_together",
    "lazy_groups",
    "remember_shapes",
    "synthetic_like",
    "warm_up",
]
