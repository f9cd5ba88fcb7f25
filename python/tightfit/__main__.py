"""`python -m tightfit`: the program. Invariant: the same as the command `tightfit`."""

import sys

from .program import main

if __name__ == "__main__":
    sys.exit(main())
