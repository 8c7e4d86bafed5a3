"""`python -m gapless` is the same as `gapless`."""

from gapless.cli.main import program

if __name__ == "__main__":
    program()
