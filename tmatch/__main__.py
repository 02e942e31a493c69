"""`python -m tmatch`, which torchrun can start: `torchrun ... -m tmatch train ...`."""

from tmatch.app.cli import main

main()
