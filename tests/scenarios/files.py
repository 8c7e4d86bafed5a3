"""What does a scenario file look like? Blocks of commands with the output that is expected of them.

A block is some command lines, a line `----`, and the expected output up to the next blank line. Lines that
begin with `#` tell the story. README.md beside this file says it for people who write scenarios.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"
#: A comment on top of a story that is told as it should be, and does not happen that way yet.
NOT_YET = "# Not yet: "


class ScenarioError(Exception):
    """A scenario file that cannot be run: names the file, the line and the way out."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line."""

    #: Where it stands, as `file:line`.
    place: str
    words: tuple[str, ...]

    def wrong(self, text: str) -> ScenarioError:
        """The error to raise when the command cannot be carried out."""
        return ScenarioError(f"{self.place}: {' '.join(self.words)}: {text}")


@dataclass(frozen=True, slots=True)
class Block:
    """Commands and what they must print."""

    #: Everything above the separator as it stands in the file: comments, blank lines and commands.
    source: tuple[str, ...]
    commands: tuple[Command, ...]
    expected: tuple[str, ...]


def parse(path: Path) -> list[Block]:
    """The blocks of a scenario file. Raises ScenarioError naming the line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    blocks: list[Block] = []
    at = 0
    while at < len(lines):
        begin = at
        commands: list[Command] = []
        while at < len(lines) and lines[at] != SEPARATOR:
            if lines[at].strip() and not lines[at].startswith("#"):
                commands.append(Command(f"{path.name}:{at + 1}", tuple(lines[at].split())))
            at += 1
        if at == len(lines):
            if commands:
                raise commands[-1].wrong(f"no line '{SEPARATOR}' with expected output follows")
            blocks.append(Block(tuple(lines[begin:]), (), ()))
            break
        if not commands:
            raise ScenarioError(f"{path.name}:{at + 1}: there is no command above this '{SEPARATOR}'")
        source = tuple(lines[begin:at])
        at += 1
        first = at
        while at < len(lines) and lines[at].strip():
            at += 1
        blocks.append(Block(source, tuple(commands), tuple(lines[first:at])))
    if not blocks or not blocks[0].source[0].startswith("#"):
        raise ScenarioError(f"{path.name}:1: begin with a comment that tells the story")
    return blocks


def written(blocks: list[Block], outputs: list[list[str]]) -> str:
    """The text of the same file with other expected outputs."""
    lines: list[str] = []
    for block, output in zip(blocks, outputs, strict=True):
        lines += block.source
        if block.commands:
            lines += [SEPARATOR, *output]
    return "\n".join(lines) + "\n"
