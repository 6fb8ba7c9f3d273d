"""`python -m broker` is the command `broker`."""

from broker.cli import main

if __name__ == "__main__":
    main()
