"""The numbers of values, looked up one by one and all at once, under any changes."""

from random import Random

import numpy as np
import pytest

from gapless.content.index.features import UNKNOWN_VALUE, ValueNumbers
from gapless.content.rows import NULL_CODE


@pytest.mark.parametrize("seed", range(30))
def test_batch_lookup_equals_single_lookup(seed: int) -> None:
    random = Random(seed)
    identities = ValueNumbers()
    asked: list[int] = []
    # The last two have no code.
    values = [*range(random.choice([10, 300])), -(2**63) + 1, 2**63 - 1, 2**63, -(10**30)]
    codes = np.asarray([*values[:-2], NULL_CODE, -7])
    for step in range(800):
        if asked and random.random() < (0.7 if step % 200 > 150 else 0.4):
            identities.release(asked.pop(random.randrange(len(asked))))
        else:
            asked.append(random.choice(values))
            identities.acquire(asked[-1])
        if random.random() < 0.1:
            found, expected = identities.find_codes(codes), identities.find(codes.tolist())
            wanted = expected != UNKNOWN_VALUE
            assert found[wanted].tolist() == expected[wanted].tolist(), f"seed {seed}"
            # What nobody asks for any more has no number, or one that nobody has now.
            assert not np.isin(found[~wanted], np.append(expected[wanted], NULL_CODE)).any(), f"seed {seed}"
    for value in asked:
        identities.release(value)
    assert not len(identities)


def test_unused_values_are_freed() -> None:
    identities = ValueNumbers()
    for value in range(5_000):
        identities.acquire(value)
        identities.find_codes(np.asarray([value]))
        identities.release(value)
    assert len(identities._sorted) <= 100
