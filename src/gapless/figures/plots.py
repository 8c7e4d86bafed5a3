"""Can pictures be drawn here? Matplotlib is an extra that only commands which draw need."""

from __future__ import annotations

from importlib.util import find_spec

from gapless.errors import UsageError


def check_plots() -> None:
    """Raises UsageError E126, saying what to install, when matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UsageError("E126", "matplotlib is not installed: install gapless[plots]")
