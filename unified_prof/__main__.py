"""`python -m unified_prof` and the `uprof` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit; the entry point of `uprof`."""
    try:
        from unified_prof.cli.app import main as run
        from unified_prof.cli.command import skip_exit_collection
    except ImportError as err:
        # A broken installation; 1 would mean a regression to a gate.
        import sys

        from unified_prof.errors import BUG_EXIT_CODE, tag

        if sys.stderr is not None:
            what = f"the installation is broken: {err} {tag('broken-installation')}"
            print(f"uprof: error: {what}", file=sys.stderr)
        sys.exit(BUG_EXIT_CODE)
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # Ctrl-C during the import
    try:
        run()
    finally:
        skip_exit_collection()


if __name__ == "__main__":
    main()
