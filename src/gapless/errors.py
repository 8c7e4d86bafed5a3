"""What went wrong, and whose mistake was it?

```
GaplessError                        everything Gapless raises on purpose
├── UsageError                E1xx  the caller broke the contract; raised before any state changes
│   ├── ContentError                 a condition or a document that cannot be read; says where
│   │   └── ViewError               a view that cannot be read or cannot be maintained; says where
│   ├── SchemaError                 a schema, or a value that does not fit its schema
│   ├── NetworkDescriptionError     a description of nodes, links and topics that cannot be run
│   └── ParameterError              one argument or option outside its allowed values
├── PeerError                 E2xx  a peer broke the protocol; close that link, serve the others
├── StoreError                E3xx  a disk, or what is on it, is not as it should be
├── LinkError                 E4xx  a client cannot reach a node, or not any more
└── PipelineError             E5xx  Spark, or what it computes, is not as it should be; the views say so
```

A mistake of our own is neither: it is a failed `assert`, and is not to be caught.

Every error carries a code such as `E101`. A code means the same for ever: programs may compare it, people
may look it up in `docs/operating.md`. The text after it may be reworded at any time. It says what is wrong,
where, and the way out.
"""

import re

__all__ = [
    "ContentError",
    "GaplessError",
    "LinkError",
    "NetworkDescriptionError",
    "ParameterError",
    "PeerError",
    "PipelineError",
    "SchemaError",
    "StoreError",
    "UsageError",
    "ViewError",
]


class GaplessError(Exception):
    """The root of the tree: catch it to catch everything Gapless raises on purpose.

    >>> str(UsageError("E101", "no topic 'trade': did you mean 'trades'?"))
    "E101 no topic 'trade': did you mean 'trades'?"
    """

    #: The codes that this branch of the tree may use.
    code_pattern = re.compile(r"E[1-9][0-9]{2}")

    def __init__(self, code: str, message: str, *, retry: bool = False) -> None:
        """`retry` says whether the very same request may succeed later."""
        assert self.code_pattern.fullmatch(code), f"{type(self).__name__} cannot have the code {code!r}"
        super().__init__(code, message)
        #: Stable for ever: `E` and three digits, the first of which names the branch of the tree.
        self.code = code
        #: What is wrong, where, and the way out. For people; may be reworded.
        self.message = message
        #: Whether the very same request may succeed later.
        self.retry = retry

    def __str__(self) -> str:
        return f"{self.code} {self.message}"


class UsageError(GaplessError):
    """The caller broke the contract. Nothing has changed; mend the call and make it again."""

    code_pattern = re.compile(r"E1[0-9]{2}")


class SchemaError(UsageError):
    """A schema that cannot be, or a value that does not fit its schema."""


class ContentError(UsageError):
    """A condition or a document that cannot be read or is refused.

    >>> error = ContentError("E161", "no column 'prise': did you mean 'price'?", text="prise > 3", at=0)
    >>> print(error)
    E161 at 1: no column 'prise': did you mean 'price'?
    >>> print(error.pointer())
    prise > 3
    ^
    """

    def __init__(self, code: str, message: str, *, text: str = "", at: int | None = None) -> None:
        """`at` is the position in `text`, counted from 0, where the trouble begins."""
        where = "" if at is None else f"{_place(text, at)}: "
        super().__init__(code, f"{where}{message}")
        #: What was read.
        self.text = text
        #: Where in `text` the trouble begins, counted from 0; None when no place is to blame.
        self.at = at

    def pointer(self) -> str:
        """The line of the text that is to blame, and below it a caret; empty when no place is."""
        if self.at is None or not self.text:
            return ""
        start = self.text.rfind("\n", 0, self.at) + 1
        line = self.text[start:].split("\n", 1)[0].replace("\t", " ")
        return f"{line}\n{' ' * (self.at - start)}^"


def _place(text: str, at: int) -> str:
    """A place as an editor counts it.

    >>> _place("a > 1", 4), _place("a\\n > 1", 5)
    ('at 5', 'at line 2 column 4')
    """
    if "\n" not in text:
        return f"at {at + 1}"
    return f"at line {text.count(chr(10), 0, at) + 1} column {at - text.rfind(chr(10), 0, at)}"


class ViewError(ContentError):
    """A view that cannot be read, does not fit its topics, or cannot be maintained; `at` is in its text."""


class NetworkDescriptionError(UsageError):
    """A description of nodes, links and topics that contradicts itself or cannot be run."""


class ParameterError(UsageError):
    """One argument or option is outside its allowed values."""


class PeerError(GaplessError):
    """A peer broke the protocol. The link to it is closed; the other links are not affected."""

    code_pattern = re.compile(r"E2[0-9]{2}")


class StoreError(GaplessError):
    """A disk failed, is full, or holds what it should not. What was acknowledged is never given up for it."""

    code_pattern = re.compile(r"E3[0-9]{2}")


class SupersededError(StoreError):
    """Others have seen a later life of this broker: its folder is an older copy, or its clock was ahead."""

    def __init__(self, broker: str, ours: int, seen: int) -> None:
        """`ours` and `seen` are incarnations."""
        super().__init__(
            "E311",
            f"others have seen life {seen} of '{broker}', and this is life {ours}: start it again, "
            "and it begins above that",
            retry=True,
        )
        self.incarnation = seen


class LinkError(GaplessError):
    """A client cannot reach a node, or not any more. What has no receipt may or may not have been stored."""

    code_pattern = re.compile(r"E4[0-9]{2}")


class PipelineError(GaplessError):
    """What computes the views failed, or was given more than it may keep. The log has it all: begin again."""

    code_pattern = re.compile(r"E5[0-9]{2}")
