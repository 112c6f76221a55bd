"""Object gathers in one go: each all_gather_object is two round trips, whatever its size."""

from typing import Any


def gather_objects_together(*objects: Any, group: Any = None) -> tuple[list[Any], ...]:
    """For each object, the list of what every rank gave in its place; one gather for all of them.

    names, sizes = ett.gather_objects_together(my_name, my_size)      # names[r] is rank r's

    Every rank of the group gives as many objects. Without a process group, or where this is the
    only rank, nothing is sent.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return tuple([one] for one in objects)
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, objects, group=group)
    counts = [len(given) for given in everyones]
    if len(set(counts)) != 1:
        raise ValueError(f"ranks gave different numbers of objects: {counts}, by rank")
    return tuple([given[i] for given in everyones] for i in range(len(objects)))
