"""The entry point of the script `poolgrad` and of ``python -m poolgrad``."""

from poolgrad.cli import main

if __name__ == "__main__":
    main()
