"""The table of levers, in the order in which their effects are applied."""

from typing import Final

from torchett.advise.levers import failing, loop, saves, start
from torchett.advise.prediction import Lever

# Levers that shorten a stage come before levers that hide one stage behind another.
LEVERS: Final = (
    Lever(name="restart-policy", title="restarts in the allocation", look=failing.restart_policy),
    Lever(name="standby", title="standbys", look=start.standby),
    Lever(name="pins", title="stored tuning", look=start.pins),
    Lever(name="compile-cache", title="compile cache", look=start.compile_cache),
    Lever(name="warm-up", title="compile before the first batch", look=start.warm_up),
    Lever(name="startup-plan", title="start-up plan", look=start.startup_plan),
    Lever(name="loader-workers", title="loader workers", look=loop.loader_workers),
    Lever(name="light-batches", title="light batches", look=loop.light_batches),
    Lever(name="dynamic-sources", title="dynamic sources", look=loop.dynamic_sources),
    Lever(name="async-saves", title="saves that do not block", look=saves.async_saves),
    Lever(
        name="interval",
        title="interval by failures",
        look=saves.interval,
        needs=frozenset({"async-saves"}),
    ),
    Lever(
        name="snapshots",
        title="snapshots in memory",
        look=saves.snapshots,
        needs=frozenset({"async-saves"}),
    ),
    Lever(name="publish", title="publish off the GPUs", look=failing.publish_elsewhere),
)
BY_NAME: Final = {lever.name: lever for lever in LEVERS}
