"""The simulated networks are what they should be: the paper's, and all sorts of others."""

import zlib
from random import Random

from gapless.sim.topologies import FIGURE3_PUBENDS, figure3, random_network


def test_figure3_splits_its_pubends_evenly_over_the_brokers_of_a_cell() -> None:
    network = figure3()
    for cell in ("IB1", "IB2"):
        brokers = sorted(network.cells[cell])  # type: ignore[index]
        chosen = [brokers[zlib.crc32(name.encode()) % len(brokers)] for name in FIGURE3_PUBENDS]
        assert sorted(chosen.count(broker) for broker in brokers) == [2, 2]


def test_random_networks_come_in_all_shapes() -> None:
    random = Random(3)
    networks = [random_network(random, 200) for _ in range(300)]
    sizes = [len(network.cell_of) for network in networks]
    assert min(sizes) == 1
    assert max(sizes) > 100
    assert sorted(sizes)[len(sizes) // 2] < 10
    assert any(len(network.topics) > 1 for network in networks)
    assert any(len(network.trees) > 1 for network in networks)
    assert any(len(brokers) == 3 for network in networks for brokers in network.cells.values())
    assert any(place.broker in network.edges for network in networks for place in network.pubends.values())
    assert any(network.parameters.delay_curiosity_ms is not None for network in networks)
