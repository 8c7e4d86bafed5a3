"""`python -m gapless` is the same as `gapless`."""

import signal
import sys

#: The exit status after Ctrl-C, as in shells: 128 and the number of the signal.
INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly, also while modules are being loaded.

    SIGHUP must not end a node. Loading its modules takes a second, so it is ignored from here until the node
    can read its tokens again.
    """
    if sys.argv[1:2] == ["up"] and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from gapless.cli.main import program  # noqa: PLC0415

        program()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
