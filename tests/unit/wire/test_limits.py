"""The limits and kinds that docs/wire.md writes down are those of the code."""

import re
from pathlib import Path

from gapless.content import language
from gapless.model import bounds, budget
from gapless.protocol.sessions import messages
from gapless.wire import broker_codec, client_codec, codec, delivery, frames, rows
from gapless.wire.frames import Kind

TEXT = (Path(__file__).parents[3] / "docs" / "wire.md").read_text(encoding="utf-8")


def test_the_limits_are_documented() -> None:
    named = {
        name: value
        for module in (
            bounds,
            budget,
            language,
            messages,
            broker_codec,
            client_codec,
            codec,
            delivery,
            frames,
            rows,
        )
        for name, value in vars(module).items()
    }
    listed = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", TEXT, re.MULTILINE)
    assert len(listed) > 10
    assert {name: int(value) for name, value in listed} == {name: named[name] for name, _ in listed}


def test_every_kind_is_documented_once() -> None:
    listed = re.findall(r"^\| `([0-9a-f]{2})` \| (\w+) \|", TEXT, re.MULTILINE)
    assert [int(number, 16) for number, _ in listed] == [int(kind) for kind in Kind]
    assert [name.upper() for _, name in listed] == [kind.name.replace("_", "") for kind in Kind]
