"""`python -m flows.cli` is the command `longtake`."""

from flows.cli.main import main

main()
