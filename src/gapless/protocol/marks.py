"""Which rare branches has a run reached? Named marks, counted.

A fault that was injected but never met the branch it was meant for tests nothing. So every branch that
only failures, races or bounds lead to says `reached("...")`, and the simulator reports which marks
a set of seeds has seen. The counts steer nothing: no machine ever reads them.
"""

from collections import Counter

#: Every mark there is, with what reaching it means.
MARKS: dict[str, str] = {}

#: How often each mark was reached since the process started.
counts: Counter[str] = Counter()


def mark(name: str, meaning: str) -> str:
    """Declare a mark; a name may be declared only once."""
    assert name not in MARKS, f"mark '{name}' is declared twice"
    MARKS[name] = meaning
    return name


def reached(name: str) -> None:
    """Count that the branch was taken."""
    counts[name] += 1
