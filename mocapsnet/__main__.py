"""`python -m mocapsnet` is the command `mocapsnet`."""

from mocapsnet.cli import main

main()
