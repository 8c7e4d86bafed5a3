"""How are parts that many patterns share stored only once?

Every pattern is a tree of needs, and equal subtrees are shared as one *condition*:

    condition    a name (or any) and what an element of that name must have: `b[c][@p > 5]`
    fact         what an element can learn before its own conditions are decided: that a child meets a
                 condition (`c`), that something below does (`.//c`), that a value passes (`@p > 5`);
                 fact 0 is always true
    variant      one way to meet a condition: a set of facts that must be there, and some that must not.
                 There is one, unless the condition has an `or`

A variant waits at a single one of its facts, its *pivot*, for elements of its name: the fact that is likely
to be the rarest, judged by how often patterns name what it is about. Only when an element of that name learns
that fact is the variant examined, and its other facts are checked. So a part that no document has costs
nothing, however many patterns ask for it.

Everything is reference-counted and freed with its last user, in reverse order of creation.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from lxml import etree

from gapless.content.xml.index.blocks import Blocks, Integers, NumberColumn, Pairs
from gapless.content.xml.index.facts import Facet
from gapless.content.xml.pattern import TEXT, TRUE, And, Axis, Has, Need, Not, Or, Pattern, Some, TextCompare

__all__ = [
    "ANY",
    "ASKS_ATTRIBUTES",
    "ASKS_TEXTS",
    "ASKS_VALUE",
    "DOCUMENT",
    "IGNORED",
    "UNKNOWN",
    "PatternGraph",
    "conjunctions",
]

#: Labels: a name that no pattern has, any name, and the document node. Names follow.
UNKNOWN, ANY, DOCUMENT = 0, 1, 2
#: The label of comments and processing instructions.
IGNORED = -1
#: What must be asked of an element of some name to decide its conditions.
ASKS_ATTRIBUTES, ASKS_TEXTS, ASKS_VALUE = 1, 2, 4
#: The fact that every node knows.
ALWAYS = 0
_NONE = -1
#: Guesses that only affect where a variant waits: how often a value passes, how much more often something is
#: anywhere below than directly below, and how much more often documents have a name than patterns.
_VALUE_ODDS = 0.1
_BELOW_FACTOR = 8.0
_LABEL_FACTOR = 4.0


class PatternGraph:
    """All conditions of all patterns, and which fact wakes which."""

    def __init__(self) -> None:
        #: Names used by some condition, and the two functions that lxml uses as names of non-elements.
        self.labels: dict[object, int] = {etree.Comment: IGNORED, etree.ProcessingInstruction: IGNORED}
        self._label_names: list[str] = ["", "", ""]
        self._label_uses: list[int] = [0, 0, 0]
        self._free_labels: list[int] = []
        #: For each label, the ASKS_ bits of its conditions, and how many conditions ask for each.
        self.asks: list[int] = [0, 0, 0]
        self._asking: dict[tuple[int, int], int] = {}

        #: By label and the text of the need: a string is compared faster than a Need, and is all we keep.
        self._conditions: dict[tuple[int, str], int] = {}
        self._condition_keys: list[tuple[int, str] | None] = []
        self._condition_uses: list[int] = []
        self._condition_variants: list[tuple[int, ...]] = []
        #: A guess of how often elements meet the condition, from how often patterns name its parts.
        self._condition_odds: list[float] = []
        self._free_conditions: list[int] = []
        #: For each condition the fact "a child meets it" and "something below meets it", or -1.
        self.child_fact = NumberColumn(_NONE)
        self.below_fact = NumberColumn(_NONE)

        self._fact_uses: list[int] = [1]
        #: For each fact the condition it is about, or the comparison.
        self._fact_owner: list[int | Need] = [TRUE]
        self._free_facts: list[int] = []
        self._value_facts: dict[Need, int] = {}
        #: Whether a fact is handed on from child to parent: those about "something below".
        self.rises = NumberColumn(0, dtype=np.int8)
        # The always-true fact is handed on as well, so that only leaves need to be given it.
        self.rises.view[ALWAYS] = 1
        #: For each fact the list of the variants that wait there for elements of any label, or -1.
        self._any_door = NumberColumn(_NONE)
        #: One label of those that wait at a fact, and their list; further labels are in `_doors`.
        self._main_label = NumberColumn(_NONE)
        self._main_door = NumberColumn(_NONE)
        self._has_more = NumberColumn(0, dtype=np.int8)
        self._waiting = Blocks()
        self._doors = Pairs(self._forget_door)

        #: Comparisons by subject: `.`, `text()`, `@*` or `@name`.
        self.facets: dict[str, Facet] = {}

        self._variant_facts: list[tuple[int, ...]] = []
        self._free_variants: list[int] = []
        #: For each variant its condition, the list where it waits, and its place there.
        self.condition_of = NumberColumn(_NONE)
        self._door_of = NumberColumn(_NONE)
        self._place_of = NumberColumn(_NONE)
        #: For each variant the list of the facts to check besides the pivot, or -1; ~fact must be absent.
        self.checks_of = NumberColumn(_NONE)
        self.checks = Blocks()
        #: Number of conditions that can be met in several ways, so that one may be met twice.
        self.several = 0

    # -------------------------------------------------------------------------- adding, removing

    def acquire_pattern(self, pattern: Pattern) -> int:
        """The condition of the document node for a pattern; it is kept until released."""
        return self._acquire(DOCUMENT, pattern.need)

    def _acquire(self, label: int, need: Need) -> int:
        key = (label, need.text)
        known = self._conditions.get(key)
        if known is not None:
            self._condition_uses[known] += 1
            return known
        made = self._new_condition(key)
        self._label_uses[label] += 1
        variants = []
        odds = 0.0
        for terms in conjunctions(need):
            facts = tuple([self._fact(term, label) for term in terms])
            # A fact that must be absent cannot be waited for.
            each_odds = [(self._odds(fact), fact) for fact in facts if fact >= 0]
            odds += prod([each for each, _ in each_odds])
            variants.append(self._new_variant(made, label, facts, min(each_odds)[1] if each_odds else ALWAYS))
        self._condition_odds[made] = min(1.0, odds * self._label_odds(label))
        self._condition_variants[made] = tuple(variants)
        self.several += len(variants) > 1
        return made

    def release(self, condition: int) -> None:
        """Release one use of a condition; the last one removes it."""
        self._condition_uses[condition] -= 1
        if self._condition_uses[condition]:
            return
        key = self._condition_keys[condition]
        assert key is not None, f"condition {condition} was released before"
        label, _ = key
        variants = self._condition_variants[condition]
        self.several -= len(variants) > 1
        for variant in variants:
            self._drop_variant(variant)
            for fact in self._variant_facts[variant]:
                self._release_fact(fact if fact >= 0 else ~fact, label)
        del self._conditions[key]
        self._condition_keys[condition] = None
        self._condition_variants[condition] = ()
        self._free_conditions.append(condition)
        self._drop_label(label)

    def _new_condition(self, key: tuple[int, str]) -> int:
        if self._free_conditions:
            made = self._free_conditions.pop()
            self._condition_keys[made] = key
            self._condition_uses[made] = 1
        else:
            made = len(self._condition_keys)
            self._condition_keys.append(key)
            self._condition_uses.append(1)
            self._condition_variants.append(())
            self._condition_odds.append(1.0)
            self.child_fact.reach(made)
            self.below_fact.reach(made)
        self._conditions[key] = made
        return made

    # -------------------------------------------------------------------------------- the labels

    def _label(self, name: str | None) -> int:
        if name is None:
            return ANY
        known = self.labels.get(name)
        if known is None:
            if self._free_labels:
                known = self._free_labels.pop()
                self._label_names[known] = name
            else:
                known = len(self._label_uses)
                self._label_names.append(name)
                self._label_uses.append(0)
                self.asks.append(0)
            self.labels[name] = known
        return known

    def _drop_label(self, label: int) -> None:
        self._label_uses[label] -= 1
        if label > DOCUMENT and not self._label_uses[label]:
            del self.labels[self._label_names[label]]
            self._free_labels.append(label)

    def _ask(self, label: int, need: Need, change: int) -> None:
        if isinstance(need, TextCompare):
            bit = ASKS_VALUE
        else:
            assert isinstance(need, Some), need
            bit = ASKS_TEXTS if need.subject == TEXT else ASKS_ATTRIBUTES
        asking = self._asking.get((label, bit), 0) + change
        self._asking[label, bit] = asking
        self.asks[label] = self.asks[label] | bit if asking else self.asks[label] & ~bit

    # --------------------------------------------------------------------------------- the facts

    def _fact(self, term: Need, label: int) -> int:
        """The fact that an element of this label needs for a term, to which one use is added; ~ for a not."""
        if isinstance(term, Not):
            return ~self._fact(term.term, label)
        if isinstance(term, Has):
            condition = self._acquire(self._label(term.label), term.test)
            column = self.child_fact if term.axis is Axis.CHILD else self.below_fact
            fact = column.view[condition]
            if fact == _NONE:
                fact = self._new_fact(condition, rises=term.axis is Axis.DESCENDANT)
                column.view[condition] = fact
        else:
            known = self._value_facts.get(term)
            if known is None:
                known = self._value_facts[term] = self._new_fact(term, rises=False)
                subject, test = _subject(term)
                self.facets.setdefault(subject, Facet()).add(test, known)
            fact = known
            self._ask(label, term, 1)
        self._fact_uses[fact] += 1
        return int(fact)

    def _new_fact(self, owner: int | Need, *, rises: bool) -> int:
        if self._free_facts:
            made = self._free_facts.pop()
            self._fact_owner[made] = owner
        else:
            made = len(self._fact_uses)
            self._fact_uses.append(0)
            self._fact_owner.append(owner)
            for column in (self.rises, self._any_door, self._main_label, self._main_door, self._has_more):
                column.reach(made)
        self.rises.view[made] = rises
        return made

    def _release_fact(self, fact: int, label: int) -> None:
        owner = self._fact_owner[fact]
        self._fact_uses[fact] -= 1
        if isinstance(owner, Need):
            self._ask(label, owner, -1)
        if not self._fact_uses[fact]:
            self._drop_fact(fact, owner)
        if not isinstance(owner, Need):
            self.release(owner)

    def _drop_fact(self, fact: int, owner: int | Need) -> None:
        if isinstance(owner, Need):
            subject, test = _subject(owner)
            facet = self.facets[subject]
            facet.remove(test, fact)
            if not facet:
                del self.facets[subject]
            del self._value_facts[owner]
        else:
            column = self.below_fact if self.rises.view[fact] else self.child_fact
            column.view[owner] = _NONE
        self._fact_owner[fact] = TRUE
        self._free_facts.append(fact)

    def _odds(self, fact: int) -> float:
        """A guess of how often an element learns a fact."""
        owner = self._fact_owner[fact]
        if isinstance(owner, Need):
            return _VALUE_ODDS
        odds = self._condition_odds[owner]
        return min(1.0, _BELOW_FACTOR * odds) if self.rises.view[fact] else odds

    def _label_odds(self, label: int) -> float:
        if label == ANY:
            return 1.0
        return min(1.0, _LABEL_FACTOR * self._label_uses[label] / len(self._conditions))

    @property
    def fact_count(self) -> int:
        """All facts are below this."""
        return len(self._fact_uses)

    # ------------------------------------------------------------------------------ the variants

    def _new_variant(self, condition: int, label: int, facts: tuple[int, ...], pivot: int) -> int:
        if self._free_variants:
            made = self._free_variants.pop()
            self._variant_facts[made] = facts
        else:
            made = len(self._variant_facts)
            self._variant_facts.append(facts)
            for column in (self.condition_of, self._door_of, self._place_of, self.checks_of):
                column.reach(made)
        door = self._door(pivot, label)
        self.condition_of.view[made] = condition
        self._door_of.view[made] = door
        self._place_of.view[made] = self._waiting.append(door, made)
        rest = [fact for fact in facts if fact != pivot]
        if rest:
            block = self.checks.create()
            for fact in rest:
                self.checks.append(block, fact)
            self.checks_of.view[made] = block
        return made

    def _door(self, fact: int, label: int) -> int:
        """The list of those that wait at a fact for elements of a label; made if need be."""
        if label == ANY:
            if self._any_door.view[fact] == _NONE:
                self._any_door.view[fact] = self._waiting.create()
            return int(self._any_door.view[fact])
        main = self._main_door.view[fact]
        if self._main_label.view[fact] == label:
            return int(main)
        if self._has_more.view[fact]:
            door = self._doors.get(fact, label)
            if door != _NONE:
                return door
        if main == _NONE or not self._waiting.lengths.view[main]:
            if main == _NONE:
                main = self._main_door.view[fact] = self._waiting.create()
            self._main_label.view[fact] = label
            return int(main)
        door = self._waiting.create()
        self._doors.put(fact, label, door)
        self._has_more.view[fact] = 1
        return door

    def _forget_door(self, door: int) -> bool:
        if self._waiting.lengths.view[door]:
            return False
        self._waiting.release(door)
        return True

    def _drop_variant(self, variant: int) -> None:
        door, place = self._door_of.view[variant], self._place_of.view[variant]
        moved = self._waiting.remove(door, place)
        self._place_of.view[moved] = place
        block = self.checks_of.view[variant]
        if block != _NONE:
            self.checks.release(block)
            self.checks_of.view[variant] = _NONE
        self._free_variants.append(variant)

    # ----------------------------------------------------------------------------------- reading

    def woken(self, facts: Integers, labels: Integers, *, or_any: bool) -> tuple[Integers, Integers]:
        """The variants that wait at each fact for elements of the label beside it, or of any label.

        Returns for each of them the position of its fact, and the variant.
        """
        main = self._main_label.array[facts] == labels
        at = np.flatnonzero(main)
        places, doors = [at], [self._main_door.array[facts[at]]]
        others = np.flatnonzero(self._has_more.array[facts] > main)
        if len(others):
            found = self._doors.find(facts[others], labels[others])
            hit = np.flatnonzero(found != _NONE)
            places.append(others[hit])
            doors.append(found[hit])
        if or_any:
            any_doors = self._any_door.array[facts]
            hit = np.flatnonzero(any_doors != _NONE)
            places.append(hit)
            doors.append(any_doors[hit])
        which, variants = self._waiting.read(np.concatenate(doors))
        return np.concatenate(places)[which], variants

    @property
    def condition_count(self) -> int:
        """How many distinct conditions there are."""
        return len(self._conditions)

    @property
    def nbytes(self) -> int:
        """The memory of the arrays; the dictionaries beside them are not counted."""
        columns = (
            self.child_fact,
            self.below_fact,
            self.rises,
            self._any_door,
            self._main_label,
            self._main_door,
            self._has_more,
            self.condition_of,
            self._door_of,
            self._place_of,
            self.checks_of,
        )
        return (
            sum(each.nbytes for each in columns)
            + self._waiting.nbytes
            + self.checks.nbytes
            + self._doors.nbytes
        )


def conjunctions(need: Need) -> Iterable[tuple[Need, ...]]:
    """The alternatives of a need, each a set of terms without `and` and `or`; `parse.py` bounds them."""
    match need:
        case And(terms=terms):
            product: list[tuple[Need, ...]] = [()]
            for each in terms:
                product = [(*left, *right) for left in product for right in conjunctions(each)]
            return [tuple(dict.fromkeys(each)) for each in product]
        case Or(terms=terms):
            return [each for term in terms for each in conjunctions(term)]
        case _:
            return [(need,)]


def _subject(need: Need) -> tuple[str, Need]:
    """What a comparison looks at, and the test of it."""
    return (need.subject, need.test) if isinstance(need, Some) else (".", need)
