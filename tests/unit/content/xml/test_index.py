"""The index: slots, batches of any kind, and structures that let go of what nobody needs."""

import time

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.xml import PatternIndex, parse_pattern
from gapless.content.xml.index.blocks import Blocks, Pairs
from gapless.content.xml.index.facts import Facet
from gapless.content.xml.index.index import SHAPES_MAX
from gapless.content.xml.normal import Normal


def index_of(*texts: str) -> PatternIndex:
    index = PatternIndex()
    for slot, text in enumerate(texts):
        index.add(slot, parse_pattern(text))
    return index


def pairs(index: PatternIndex, documents: object) -> list[tuple[int, int]]:
    rows, slots = index.match(documents)  # type: ignore[arg-type]
    assert rows.dtype == slots.dtype == np.int64
    return list(zip(rows.tolist(), slots.tolist(), strict=True))


def test_an_empty_index_and_an_empty_batch_match_nothing() -> None:
    assert pairs(PatternIndex(), ["<a/>"]) == []
    assert pairs(index_of("/a"), []) == []
    assert pairs(index_of("/a"), [None, None]) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_arrow_arrays_are_batches(kind: pa.DataType) -> None:
    array = pa.array(["<a/>", None, "<b><a/></b>", "no XML"]).cast(kind)
    index = index_of("/a", "//a", "/b")
    expected = [(0, 0), (0, 1), (2, 1), (2, 2)]
    assert pairs(index, array) == expected
    assert pairs(index, array[1:]) == [(row - 1, slot) for row, slot in expected[2:]]
    assert pairs(index, pa.chunked_array([array[:1], array[1:]])) == expected
    assert index.refused == 3


def test_a_slot_added_again_is_replaced() -> None:
    index = index_of("/a", "/b")
    index.add(0, parse_pattern("/b"))
    index.add(0, parse_pattern("/b"))
    assert len(index) == 2
    assert pairs(index, ["<a/>", "<b/>"]) == [(1, 0), (1, 1)]
    index.remove(1)
    assert 1 not in index
    assert 0 in index
    assert pairs(index, ["<a/>", "<b/>"]) == [(1, 0)]
    with pytest.raises(KeyError):
        index.remove(1)


def test_slots_may_be_any_integers_and_equal_patterns_share() -> None:
    index = PatternIndex()
    slots = [2**62, -(2**62), 0, 5]
    for slot in slots:
        index.add(slot, parse_pattern("/a/b"))
    assert index.statistics()["distinct"] == 1
    assert index.statistics()["patterns"] == 4
    assert pairs(index, ["<a><b/></a>"]) == [(0, slot) for slot in sorted(slots)]


def test_a_large_batch_is_cut_and_comes_out_whole() -> None:
    # Every document has its own shapes, because every attribute is asked for.
    count = SHAPES_MAX // 2
    index = PatternIndex()
    for slot in range(count):
        index.add(slot, parse_pattern(f"/a/b[@p = '{slot}']"))
    documents = [f"<a><b p='{row}'/><b p='{row}x'/></a>" for row in range(2 * count)]
    documents += [f"<a{row}><a><b p='1'/></a></a{row}>" for row in range(10)]
    assert pairs(index, documents) == [(row, row) for row in range(count)]


def test_patterns_that_never_match_and_always_match() -> None:
    index = index_of("/a[@p < 'x']", "//*", "not(/a)", "not(//zzz)", "true()", "/a[not(b)][not(@p)]")
    assert pairs(index, ["<a/>", "<b/>"]) == [(0, 1), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2), (1, 3), (1, 4)]


def test_comments_are_no_elements() -> None:
    index = index_of("/a/*", "/a[not(*)]")
    assert pairs(index, ["<a><!-- x --><?y z?></a>", "<a><!-- x --><b/></a>"]) == [(0, 1), (1, 0)]


def test_everything_is_freed_with_the_last_pattern() -> None:
    index = index_of(
        "/a[b or c[@p > 5]]", "//b[contains(., 'x')]", "/a[b or c[@p > 5]]", "/x/*[text() = 'y']//z[@*]"
    )
    for slot in range(4):
        index.remove(slot)
    assert index.statistics()["conditions"] == 0
    assert pairs(index, ["<a><b/></a>"]) == []
    graph = index._graph
    assert not [name for name in graph.labels if isinstance(name, str)]
    assert not graph.facets
    assert not graph.several
    assert set(graph.asks) == {0}


def test_churn_does_not_grow_the_structures() -> None:
    index = PatternIndex()
    sizes = []
    for turn in range(8):
        for slot in range(300):
            index.add(
                slot,
                parse_pattern(f"/a{(slot * 7 + turn) % 50}/b{slot % 9}[c{(slot + turn) % 40}][@p > {slot}]"),
            )
        for slot in range(300):
            index.remove(slot)
        sizes.append(index.statistics()["array_bytes"])
    assert sizes[-1] <= 2 * sizes[0]


# ------------------------------------------------------------------------------------- structures


def test_blocks_grow_shrink_and_reuse_their_room() -> None:
    blocks = Blocks()
    one, other = blocks.create(), blocks.create()
    for value in range(10):
        assert blocks.append(one, value) == value
        blocks.append(other, 100 + value)
    assert blocks.remove(one, 3) == 9
    assert blocks.values(one) == [0, 1, 2, 9, 4, 5, 6, 7, 8]
    assert blocks.remove(one, 8) == 8
    at, values = blocks.read(np.array([other, one]))
    assert at.tolist() == [0] * 10 + [1] * 8
    assert values.tolist() == [*range(100, 110), 0, 1, 2, 9, 4, 5, 6, 7]
    blocks.release(one)
    assert blocks.create() == one
    assert blocks.values(one) == []


def test_pairs_are_found_after_growing_and_forgotten_when_dead() -> None:
    dead: set[int] = set()
    table = Pairs(lambda value: value in dead)
    for value in range(1000):
        table.put(value, value % 7, value)
        if value % 3 == 0:
            dead.add(value)
    for value in range(1000, 5000):
        table.put(value, value % 7, value)
    firsts = np.arange(6000)
    found = table.find(firsts, firsts % 7)
    alive = [value for value in range(5000) if value not in dead]
    assert found[alive].tolist() == alive
    assert set(found[list(dead)].tolist()) == {-1}
    assert set(found[5000:].tolist()) == {-1}
    assert table.get(4999, 4999 % 7) == 4999
    assert table.get(4999, 6 - 4999 % 7) == -1


@pytest.mark.parametrize("value", ["", "x", "3", "4", "4.0", "5", "-1", " 5 "])
def test_a_facet_knows_what_a_value_passes(value: str) -> None:
    from gapless.content.xml.evaluate import value_passes

    normal = Normal()
    operators = ["=", "!=", "<", "<=", ">", ">="]
    tests = [normal.compare(each, number) for each in operators for number in (3.0, 4.0, 5.0)]
    tests += [normal.compare(each, "4") for each in ("=", "!=", "contains", "starts-with")]
    facet = Facet()
    assert not facet
    for fact, test in enumerate(tests):
        facet.add(test, fact)
    assert sorted(facet.facts(value)) == [
        fact for fact, test in enumerate(tests) if value_passes(test, value)
    ]
    for fact, test in enumerate(tests):
        facet.remove(test, fact)
    assert not facet
    assert facet.facts(value) == ()


def test_the_values_of_a_deep_and_wide_document_are_read_in_time() -> None:
    """Every text is part of the value of all elements above it: 250 of them here."""
    document = "<a>" * 250 + "<b>x</b>" * 30_000 + "<!--no--><?nor this?>y" + "</a>" * 250
    index = PatternIndex()
    index.add(1, parse_pattern("//a[contains(., 'xy')]"))
    index.add(2, parse_pattern("//a[contains(., 'z')]"))
    index.add(3, parse_pattern("//b[. = 'x']"))
    started = time.process_time()
    rows, slots = index.match([document])
    assert (rows.tolist(), slots.tolist()) == ([0, 0], [1, 3])
    assert time.process_time() - started < 2.0, "it took 4 s to read them piece by piece"
