"""What the property tests draw: few ticks, few edges and few epochs, so that things meet."""

from hypothesis import strategies as st

from gapless.model.epochs import EPOCH_ALL, EPOCH_NONE, Epochs
from gapless.model.ids import BrokerId
from gapless.model.ticks import Tick, TickSet

#: Ticks are drawn from `0..DOMAIN`; stops may be DOMAIN itself.
DOMAIN = 40
EDGES = [BrokerId(name) for name in ("s1", "s2", "s3")]

ticks = st.integers(0, DOMAIN - 1)
#: A (start, stop) pair; a third of them are empty or the wrong way round.
spans = st.one_of(
    st.tuples(ticks, st.integers(1, 12)).map(lambda drawn: (drawn[0], min(DOMAIN, drawn[0] + drawn[1]))),
    st.tuples(ticks, st.integers(1, DOMAIN)).map(lambda drawn: (drawn[0], min(DOMAIN, drawn[0] + drawn[1]))),
    st.tuples(st.integers(0, DOMAIN), st.integers(0, DOMAIN)),
)
tick_sets = st.lists(spans, max_size=6).map(TickSet.from_pairs)
stamps = st.builds(
    Epochs,
    st.dictionaries(st.sampled_from(EDGES), st.sampled_from([EPOCH_NONE, 0, 1, 2, EPOCH_ALL])),
    st.sampled_from([EPOCH_NONE, EPOCH_NONE, EPOCH_ALL]),
)


def inside(span: tuple[Tick, Tick]) -> range:
    """The ticks of a span one by one."""
    return range(*span)
