"""python -m rljax: the command line."""

from rljax.cli import main

main()
