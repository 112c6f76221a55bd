"""Files in a folder or a bucket, written atomically. Leans on nothing."""

from torchett.store.atomic import write_whole
from torchett.store.folder import FolderStore
from torchett.store.lease import BusyError, lease
from torchett.store.open_store import Store, StoreError, open_store

__all__ = ["BusyError", "FolderStore", "Store", "StoreError", "lease", "open_store", "write_whole"]
