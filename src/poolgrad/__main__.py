"""The entry point of the script `poolgrad` and of ``python -m poolgrad``.

`poolgrad info` and `poolgrad check` need NumPy alone; every other command needs the `lab` extra.
"""

import sys


def _failed(error: Exception) -> int:
    print(f"poolgrad: {error}", file=sys.stderr)
    return 2


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["info"]:
        from poolgrad.environment import report

        print(report())
        return
    if sys.argv[1:] == ["check"]:
        from poolgrad.check import report as checks

        sys.exit(checks.run())
    if sys.argv[1:3] == ["info", "--plan"] and len(sys.argv) == 4:
        from poolgrad import algorithms

        try:
            print(algorithms.report(sys.argv[3]))
        except (RuntimeError, TypeError, ValueError) as error:
            sys.exit(_failed(error))
        return
    from poolgrad.cli import app

    app()


if __name__ == "__main__":
    main()
