"""A rank in an interpreter of its own, that ends as a standby does: without a teardown.

    python     script ─ exit handlers ─ streams ─ teardown ✗ SIGABRT, now and then
    gloo       ────── lets go of the last all-reduce, and what that holds of Python's

A standby that has the wrong modules begins anew as one of these (`standby.py`).
"""

import sys

from torchett.launch.standby import be_script, shorten_imports

if __name__ == "__main__":
    shorten_imports()
    be_script(sys.argv[1:])
