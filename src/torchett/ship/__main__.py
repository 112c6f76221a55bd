"""`python -m torchett.ship RUN URL NODE`: see process.py."""

import sys

from torchett.ship.process import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
