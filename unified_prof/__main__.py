"""`python -m unified_prof` and the `uprof` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from unified_prof.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
