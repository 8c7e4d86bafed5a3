"""How is the value of an option read? Each reader names the option that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gapless.errors import ParameterError, UsageError
from gapless.model.ticks import TICK_MAX

WHOLE_MAX = 2**64 - 1


def whole_number(option: str, low: int, high: int = WHOLE_MAX) -> Callable[[str], int]:
    """A reader of the values of an option, decimal or 0x.... Raises ParameterError naming the option.

    >>> whole_number("--limit", 1)("0x10")
    16
    """

    def read(text: str | int) -> int:
        try:
            # A default comes as it is.
            value = int(text, 0) if isinstance(text, str) else int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            bound = f"from {low} on" if high == WHOLE_MAX else f"from {low} to {high}"
            raise ParameterError("E150", f"{option} takes a whole number {bound}, got {text!r}")
        return value

    return read


def tick(text: str) -> int | None:
    """A tick as a person writes it; None for another text, such as one of more digits than any tick has.

    >>> tick("1769860800000000"), tick("-1"), tick("²"), tick("9" * 30)
    (1769860800000000, None, None, None)
    """
    is_tick = text.isascii() and text.isdigit() and len(text) <= len(str(TICK_MAX)) and int(text) < TICK_MAX
    return int(text) if is_tick else None


def seconds(option: str) -> Callable[[str], float]:
    """A reader of durations."""
    return number(option, 0.1, 3_600, "seconds")


def number(option: str, low: float, high: float, unit: str = "a number") -> Callable[[str], float]:
    """A reader of numbers. Raises ParameterError naming the option.

    >>> number("--rate", 0.001, 1e9)("2e3")
    2000.0
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ParameterError("E150", f"{option} takes {unit} from {low:g} to {high:g}, got {text!r}")
        return value

    return read


def one_of(option: str, *allowed: str) -> Callable[[str], str]:
    """A reader of words. Raises ParameterError naming the option.

    >>> one_of("--order", "publisher", "total")("total")
    'total'
    """

    def read(text: str) -> str:
        if text not in allowed:
            words = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise ParameterError("E150", f"{option} takes {words}, got {text!r}")
        return text

    return read


def file_text(path: Path) -> str:
    """The contents of a text file. Raises UsageError E156."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise UsageError("E156", f"{path}: cannot be read: {reason}") from error
