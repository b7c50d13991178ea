"""The entry point of the script `poolgrad` and of ``python -m poolgrad``.

`poolgrad info` needs NumPy alone; every other command needs the `lab` extra.
"""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["info"]:
        from poolgrad.environment import report

        print(report())
        return
    from poolgrad.cli import app

    app()


if __name__ == "__main__":
    main()
