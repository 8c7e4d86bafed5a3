"""What went wrong, and whose fault is it?

```
GaplessError                        everything Gapless raises on purpose
├── UsageError                E1xx  the caller broke the contract; raised before any state changes
│   ├── ContentError                 a condition or a document that cannot be read; says where
│   │   └── ViewError               a view that cannot be read or cannot be maintained; says where
│   ├── SchemaError                 a schema, or a value that does not fit its schema
│   ├── NetworkDescriptionError     a description of nodes, links and topics that cannot be run
│   └── ParameterError              one argument or option outside its allowed values
├── PeerError                 E2xx  a peer broke the protocol; close that link, serve the others
├── StoreError                E3xx  a disk failed, is full, or has unexpected contents
├── LinkError                 E4xx  a client cannot reach a node, or lost it
└── PipelineError             E5xx  Spark, or a view that it computes, failed; the views say so
```

Our own bugs are none of these: they are failed `assert`s, and must not be caught.

Every error carries a code such as `E101`. The meaning of a code never changes: programs may compare it,
people may look it up in `docs/operating.md`. The text after it may be reworded at any time. It says what is
wrong, where, and how to fix it.
"""

import re
from collections.abc import Iterable, Mapping

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
        """`retry` says whether the same request may succeed later."""
        assert self.code_pattern.fullmatch(code), f"{type(self).__name__} cannot have the code {code!r}"
        super().__init__(code, message)
        #: Never changes: `E` and three digits, the first of which names the branch of the tree.
        self.code = code
        #: What is wrong, where, and how to fix it. For people; may be reworded.
        self.message = message
        #: Whether the same request may succeed later.
        self.retry = retry

    def __str__(self) -> str:
        return f"{self.code} {self.message}"


class UsageError(GaplessError):
    """The caller broke the contract. Nothing has changed; fix the call and repeat it."""

    code_pattern = re.compile(r"E1[0-9]{2}")


class SchemaError(UsageError):
    """An invalid schema, or a value that does not fit its schema."""


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
        """`at` is the position of the problem in `text`, counted from 0."""
        where = "" if at is None else f"{_place(text, at)}: "
        super().__init__(code, f"{where}{message}")
        #: What was read.
        self.text = text
        #: The position of the problem in `text`, counted from 0; None when there is none.
        self.at = at

    def pointer(self) -> str:
        """The offending line of the text, and a caret below it; empty when no position is known."""
        if self.at is None or not self.text:
            return ""
        start = self.text.rfind("\n", 0, self.at) + 1
        line = self.text[start:].split("\n", 1)[0].replace("\t", " ")
        return f"{line}\n{' ' * (self.at - start)}^"


def _place(text: str, at: int) -> str:
    """A position as an editor counts it.

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
    """A disk failed, is full, or has unexpected contents. Acknowledged events are never sacrificed to it."""

    code_pattern = re.compile(r"E3[0-9]{2}")


class SupersededError(StoreError):
    """Others have seen more of this broker than its folder has: that is empty, or an older copy.

    The host starts the broker again, in a life above `incarnation`. If `older_copy` names a pubend, others
    have seen more of its log than there is: a new log begins, at the tick `began`, under another id, and what
    is lost lies between that tick and `lost_before`.
    """

    def __init__(
        self,
        broker: str,
        ours: int,
        seen: int,
        *,
        older_copy: str | None = None,
        began: int = 0,
        lost_before: int = 0,
    ) -> None:
        """`ours` and `seen` are incarnations."""
        text = f"others have seen life {seen} of '{broker}', and this is life {ours}: starting above that"
        if older_copy is not None:
            text = (
                f"the log of '{older_copy}' at '{broker}' is an older copy: starting again, and what is "
                "missing becomes a gap that subscribers are told of"
            )
        super().__init__("E311", text, retry=True)
        self.incarnation = seen
        self.older_copy = older_copy
        self.began = began
        self.lost_before = lost_before
        #: Where the logs ended of which this life has told nothing, by pubend: the next one has to know.
        self.untold: Mapping[str, int] = {}


class LinkError(GaplessError):
    """A client cannot reach a node, or lost it. Without a receipt an event may or may not be stored."""

    code_pattern = re.compile(r"E4[0-9]{2}")


class PipelineError(GaplessError):
    """The pipeline failed, or exceeded a limit. The log has everything: it can start over."""

    code_pattern = re.compile(r"E5[0-9]{2}")


def no_topic(topic: str, known: Iterable[str]) -> UsageError:
    """The error for a topic that is not among the known ones.

    >>> str(no_topic("trade", ["trades", "quotes"]))
    "E141 there is no topic 'trade': there is quotes, trades"
    """
    return UsageError("E141", f"there is no topic '{topic}': there is {', '.join(sorted(known)) or 'none'}")


def no_pubend(pubend: str, topic: str, known: Iterable[str]) -> UsageError:
    """The error for a pubend that the topic does not have."""
    return UsageError(
        "E143", f"topic '{topic}' has no pubend '{pubend}': it has {', '.join(sorted(known)) or 'none'}"
    )
