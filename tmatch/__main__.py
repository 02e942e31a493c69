"""`python -m tmatch`, which torchrun can start: `torchrun ... -m tmatch train ...`."""

import sys


def main() -> None:
    """Run a command; Ctrl-C during the imports ends without a traceback."""
    try:
        from tmatch.app.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
