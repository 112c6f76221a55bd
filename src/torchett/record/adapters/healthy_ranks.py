"""Libraries whose healthy ranks go on after a failure: each gets its adapter when it is imported.

    torchft.manager                         adapters/torchft.py
    nvidia_resiliency_ext.inprocess.wrap    adapters/in_process.py
    horovod.torch.elastic                   none: the report says that the headline may be wrong

The report says so as well where an adapter is switched off or does not fit the library's version.
"""

from types import ModuleType

from torchett.record import api
from torchett.record.plugins import when_imported


def install_plugin() -> None:
    """Wait for each of these libraries."""
    when_imported("torchft.manager", _torchft)
    when_imported("torchft.optim", _torchft_optimizer)
    when_imported("torchft.local_sgd", _torchft_local_sgd)
    when_imported("nvidia_resiliency_ext.inprocess.wrap", _in_process)
    when_imported("horovod.torch.elastic", _horovod)


def not_recorded(library: str) -> None:
    """Note that the library is used, and that nothing records what it does."""
    api.note("unseen_restarts", {"library": library})


def _torchft(_: ModuleType) -> None:
    from torchett.record.adapters import torchft

    if not torchft.install_manager():
        not_recorded("torchft")


def _torchft_optimizer(_: ModuleType) -> None:
    from torchett.record.adapters import torchft

    torchft.install_optimizer()


def _torchft_local_sgd(_: ModuleType) -> None:
    from torchett.record.adapters import torchft

    torchft.install_local_sgd()


def _in_process(_: ModuleType) -> None:
    from torchett.record.adapters import in_process

    if not in_process.install_wrapper():
        not_recorded("nvidia-resiliency-ext (inprocess.Wrapper)")


def _horovod(_: ModuleType) -> None:
    not_recorded("horovod.torch.elastic")
