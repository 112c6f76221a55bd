"""The words of a verdict: category, role, strength and outlook, all closed sets.

Categories and their domains are the ledger's causes (`model/causes.py`), so a verdict can be
written as the cause of an attempt without translation. `unknown` is a category of its own.
"""

from enum import Enum
from typing import Final, Literal

from torchett.model.causes import CAUSES, Domain
from torchett.model.restarts import Outlook as Outlook

UNKNOWN: Final[Literal["unknown"]] = "unknown"


class Role(Enum):
    """What a line, or a rank, has to do with a failure."""

    INITIATING = "initiating"  # it happened by itself
    CASCADE = "cascade"  # it follows from a failure elsewhere
    TEARDOWN = "teardown"  # it follows from ending the job


class Strength(Enum):
    """How closely a rule's pattern names its category."""

    DECISIVE = "decisive"  # the system that ended the job says why
    SPECIFIC = "specific"  # this message has one cause
    GENERIC = "generic"  # this message is also printed for other causes
    FALLBACK = "fallback"  # this message says that something failed, and little more


_BY_OUTLOOK: Final[dict[Outlook, str]] = {
    Outlook.RESTART_NOW: """
        nccl_timeout nccl_remote_peer host_oom_kill preemption requeue time_limit external_sigterm
        cuda_illegal_access checkpoint_corrupt""",
    Outlook.BACK_OFF: """
        ib_network rendezvous_store k8s_eviction storage_io remote_storage_timeout port_in_use
        unknown""",
    Outlook.REPLACE_NODE: """
        gpu_ecc gpu_nvlink gpu_fell_off_bus gpu_driver_fault gpu_unavailable node_failure""",
    Outlook.STOP: """
        dataloader_shm storage_full user_cancel cuda_oom cuda_device_assert nan_loss import_error
        user_code_exception permission_denied checkpoint_incompatible""",
}
OUTLOOKS: Final[dict[str, Outlook]] = {
    category: outlook
    for outlook, categories in _BY_OUTLOOK.items()
    for category in categories.split()
}

VerdictDomain = Domain | Literal["unknown"]


def domain_of_category(category: str) -> VerdictDomain:
    """The domain that answers for a category; `unknown` for the category `unknown`."""
    return CAUSES.get(category, "unknown")
