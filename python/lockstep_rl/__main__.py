"""`python -m lockstep_rl …` is the program `lockstep`."""

import signal
import sys

from . import _native


def main() -> int:
    # The program has handlers of its own; Python's would raise KeyboardInterrupt after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["lockstep", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
