"""`python -m gapless` is the same as `gapless`."""

from gapless.cli.main import main

if __name__ == "__main__":
    main()
