"""Text from peers cannot control the terminal, or hide in it."""

from __future__ import annotations

import json
import sys
import unicodedata

from gapless.cli.files.cells import row_text
from gapless.cli.output.terminal import CONTROLS, tame

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_every_control_and_format_character_is_escaped_and_nothing_else() -> None:
    for number in range(sys.maxunicode + 1):
        char = chr(number)
        category = unicodedata.category(char)
        # Python may know fewer characters than we do.
        if category != "Cn":
            assert bool(CONTROLS.fullmatch(char)) == (category in HIDDEN), hex(number)


def test_escaped_text_shows_what_was_there() -> None:
    assert tame("\ufeffa\u200bb\U000e0041") == "\\ufeffa\\u200bb\\U000e0041"
    assert tame("naïve 日本 ✓") == "naïve 日本 ✓"


def test_escaped_json_is_the_same_value() -> None:
    value = {"name": "a\ufeff\u202e\U000e0041\x9b\u2028"}
    text = row_text(value)
    assert json.loads(text) == value
    assert CONTROLS.search(text) is None
