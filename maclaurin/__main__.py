"""`python -m maclaurin` is `maclaurin`."""

from maclaurin.cli import main

if __name__ == "__main__":
    main()
