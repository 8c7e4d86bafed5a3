"""What is a mutant? A declaration: what is replaced, by what, and who should notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """One broken machine."""

    name: str
    #: What it does wrong, in a few words.
    wrong: str
    #: The class or module, and the name of what is replaced in it.
    owner: Any
    method: str
    #: Given the right method, the wrong one.
    broken: Callable[[Callable[..., Any]], Callable[..., Any]]
    #: The checkers that are meant to notice.
    noticed_by: frozenset[str]
    #: What else has to be broken, because the same is looked at in several places.
    more: list[tuple[Any, str, Callable[..., Any]]] = field(default_factory=list)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The machines with this fault in them."""
        with contextlib.ExitStack() as patches:
            for owner, method, broken in ((self.owner, self.method, self.broken), *self.more):
                wrong = broken(getattr(owner, method))
                patches.enter_context(mock.patch.object(owner, method, wrong))
            yield


#: All mutants by name, in the order of their declarations.
MUTANTS: dict[str, Mutant] = {}


def mutant(
    owner: Any, method: str, wrong: str, *noticed_by: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a mutant: the decorated function turns the right method into the wrong one."""

    def declare(broken: Callable[..., Any]) -> Callable[..., Any]:
        name = broken.__name__
        assert name not in MUTANTS, f"two mutants are called {name}"
        MUTANTS[name] = Mutant(name, wrong, owner, method, broken, frozenset(noticed_by))
        return broken

    return declare


def breaks_too(name: str, owner: Any, method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare another method that a mutant replaces."""

    def declare(broken: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS[name].more.append((owner, method, broken))
        return broken

    return declare
