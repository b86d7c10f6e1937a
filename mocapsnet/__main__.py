"""`python -m mocapsnet` is the command `mocapsnet`."""

from mocapsnet.cli import main

if __name__ == "__main__":
    main()
