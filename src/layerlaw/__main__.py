"""`python -m layerlaw`: the command line."""

from layerlaw.cli import main

main()
