"""Files that must not be half-written, in a folder or in a bucket. Leans on nothing."""

from torchett.store.folder import FolderStore
from torchett.store.lease import BusyError, lease
from torchett.store.places import Store, StoreError, open_store
from torchett.store.whole import write_whole

__all__ = ["BusyError", "FolderStore", "Store", "StoreError", "lease", "open_store", "write_whole"]
