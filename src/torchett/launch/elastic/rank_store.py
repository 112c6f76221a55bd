"""The store at MASTER_ADDR:MASTER_PORT, served by the agent, new for each start of the ranks.

    torch, shared      one store for all starts: ranks read the addresses of dead ones
    torch, not shared  agent ─ picks a free port ── rank 0: imports … ─ listens ✗ taken meanwhile
    here               agent ─ listens ─┬─ rank 0: imports … ─ connects
                                        └─ rank 1 connects when it likes, torchft's manager as well

TORCH_DISABLE_SHARE_RDZV_TCP_STORE set by the user leaves torch to do as it says.
"""

from collections.abc import MutableMapping
from typing import Any

_NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def claim(env: MutableMapping[str, str]) -> bool:
    """Set that torch does not share the agents' store with ranks; False if the user set it."""
    if _NOT_SHARED in env:
        return False
    env[_NOT_SHARED] = "1"
    return True


def unclaim(env: MutableMapping[str, str]) -> None:
    """Leave the store to torch again."""
    env.pop(_NOT_SHARED, None)


def serve(group: Any) -> Any | None:
    """A store for the ranks of this worker group, in this process; None where another serves it."""
    handler = group.spec.rdzv_handler
    if handler.use_agent_store or handler.get_backend() == "static" or group.group_rank != 0:
        return None
    from torch.distributed import TCPStore

    alone = group.group_world_size == 1
    # Several nodes have agreed on the port that torch found free a moment ago.
    port = 0 if alone else group.master_port
    try:
        store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except RuntimeError:
        return None  # another program took the port meanwhile: rank 0 will say so
    if alone:
        group.master_port = store.port
    return store


def environment(store: Any | None) -> dict[str, str]:
    """What tells rank 0 that the store is there, and it need not serve one."""
    return {} if store is None else {"TORCHELASTIC_USE_AGENT_STORE": str(True)}
