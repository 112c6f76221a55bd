"""Imported by every Python process of a job at its start: see torchett.record.plugins."""

import sys

try:
    from torchett.record.plugins import install_asked, next_sitecustomize
except ImportError:  # an interpreter that has no torchett
    pass
else:
    next_sitecustomize(__file__)
    if not any(word.startswith("torchett.launch.") for word in sys.orig_argv[1:4]):
        install_asked()  # a standby does when it knows which rank it is
