"""`python -m unified_prof` and the `uprof` command."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> None:
    """Run the command line and exit; the entry point of `uprof`."""
    try:
        from unified_prof.base.signals import send_ignored_again

        sys.unraisablehook = send_ignored_again
        from unified_prof.base.process_tuning import skip_exit_collection
        from unified_prof.cli.app import main as run
    except ImportError as err:
        # A broken installation; 1 would mean a regression to a gate.
        from unified_prof.errors import BUG_EXIT_CODE, tag

        _end(BUG_EXIT_CODE, f"the installation is broken: {err} {tag('broken-installation')}")
    except MemoryError:
        _end(71, "out of memory [uprof:system-limit]")
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # Ctrl-C during the import
    try:
        run()
    except MemoryError:  # while another error was reported
        _end(71, "out of memory [uprof:system-limit]")
    finally:
        skip_exit_collection()


def _end(code: int, text: str) -> NoReturn:
    """Exit with a message, without any other module of uprof."""
    if sys.stderr is not None:
        print(f"uprof: error: {text}", file=sys.stderr)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()
