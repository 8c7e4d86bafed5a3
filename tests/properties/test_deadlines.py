"""Deadlines in a heap against a plain dictionary that is searched from end to end."""

from hypothesis import given
from hypothesis import strategies as st

from gapless.model.ids import PubendId
from gapless.protocol.deadlines import STALE_MAX, Deadlines

pubends = st.sampled_from([PubendId(name) for name in "abcd"])
steps = st.lists(st.tuples(pubends, st.none() | st.integers(0, 50), st.integers(0, 50)), max_size=60)


@given(steps)
def test_the_heap_equals_a_linear_search(told: list[tuple[PubendId, int | None, int]]) -> None:
    deadlines, plain = Deadlines(), dict[PubendId, int]()
    for pubend, at_ms, now_ms in told:
        deadlines.put(pubend, at_ms)
        plain.pop(pubend, None)
        if at_ms is not None:
            plain[pubend] = at_ms
        assert deadlines.earliest() == min(plain.values(), default=None)
        # Asking changes nothing.
        for _ in range(2):
            assert deadlines.due(now_ms) == sorted(each for each, at in plain.items() if at <= now_ms)
        assert len(deadlines._heap) <= STALE_MAX * (len(plain) + 1) + 1
