"""Why attempts end: known causes, each with the domain that is responsible for it."""

from typing import Final, Literal

Domain = Literal["infra", "scheduler", "user"]
Outcome = Literal["success", "failed", "preempted"]

DOMAINS: Final[tuple[Domain, ...]] = ("infra", "scheduler", "user")
OUTCOMES: Final[tuple[Outcome, ...]] = ("success", "failed", "preempted")

_BY_DOMAIN: Final[dict[Domain, str]] = {
    "infra": """
        gpu_ecc gpu_nvlink gpu_fell_off_bus gpu_driver_fault gpu_unavailable ib_network
        nccl_timeout nccl_remote_peer rendezvous_store host_oom_kill dataloader_shm node_failure
        k8s_eviction storage_full storage_io remote_storage_timeout checkpoint_corrupt""",
    "scheduler": "preemption requeue time_limit external_sigterm",
    "user": """
        user_cancel cuda_oom cuda_illegal_access cuda_device_assert nan_loss import_error
        user_code_exception permission_denied checkpoint_incompatible port_in_use""",
}
CAUSES: Final[dict[str, Domain]] = {
    cause: domain for domain, causes in _BY_DOMAIN.items() for cause in causes.split()
}


def domain_of(outcome: Outcome | None, cause: str | None, given: Domain | None) -> Domain:
    """The domain of a failure: the given one, else by its cause, else by its outcome."""
    if given is not None:
        return given
    if cause in CAUSES:
        return CAUSES[cause]
    return "scheduler" if outcome == "preempted" else "infra"
