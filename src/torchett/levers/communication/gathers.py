"""Many object gathers as one: each all_gather_object needs two round trips at any size."""

from typing import Any


def gather_objects_together(*objects: Any, group: Any = None) -> tuple[list[Any], ...]:
    """Gather several objects at once; returns, for each of them, the list of all ranks' values.

    names, sizes = ett.gather_objects_together(my_name, my_size)      # names[r] is rank r's

    Every rank of the group must pass the same number of objects. Without a process group, or on a
    single rank, nothing is sent.
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
