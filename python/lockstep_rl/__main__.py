"""`python -m lockstep_rl …` is the program `lockstep`; with TRL's arguments it trains as TRL's command line does."""

import signal
import sys

from . import _native


def main() -> int:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("grpo", "rloo", "sft", "dpo", "reward"):
        from . import _cli

        if _cli.takes(arguments):
            return _cli.main(arguments)
    if arguments and arguments[0] in ("train", "worker"):
        from . import _setup

        if _setup.takes(arguments):
            return _setup.main(arguments)
    # The program has handlers of its own; Python's would raise KeyboardInterrupt after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["lockstep", *arguments])


if __name__ == "__main__":
    sys.exit(main())
