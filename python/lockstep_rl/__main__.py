"""`python -m lockstep_rl …` runs the program `lockstep`. With TRL's arguments, `grpo`, `sft`, … train as TRL's command
line does."""

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
    # The program handles Ctrl-C itself; Python's handler would raise KeyboardInterrupt after the program has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["lockstep", *arguments])


if __name__ == "__main__":
    sys.exit(main())
