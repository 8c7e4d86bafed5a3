"""A message of any size to the bulk-read port, from somebody without a token: it must not fill the memory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pyarrow import flight

from gapless.node.bulk_reads.inbound import can_watch
from tests.hostile.raw import frame
from tests.hostile.victim import TWO_TOPICS, Victim

BODY_BYTES = 500 * 2**20
GOOD = hashlib.sha256(b"good").hexdigest()
NETWORK = f'{TWO_TOPICS}tokens.good = {{sha256 = "{GOOD}", publish = ["*"], subscribe = ["*"]}}\n'


def highest_bytes(victim: Victim) -> int:
    """The most memory that the process ever took."""
    assert victim.process is not None
    lines = Path(f"/proc/{victim.process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1_024


@pytest.mark.skipif(not can_watch(), reason="this system does not count what a connection receives")
def test_a_huge_request_without_a_token_does_not_fill_the_memory(tmp_path: Path) -> None:
    with Victim(tmp_path, NETWORK) as victim, victim.dial(token="good") as asking:
        asking.send(frame("LIST_TOPICS", [1, True]))
        door = asking.hear_kind("TOPICS").head[5]
        good = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer good")])
        before = victim.resident_bytes
        with flight.FlightClient(door) as stranger, pytest.raises(flight.FlightError):
            list(stranger.do_action(flight.Action("horizons", bytes(BODY_BYTES))))
        assert highest_bytes(victim) < before + BODY_BYTES // 2
        with flight.FlightClient(door) as client:
            assert list(client.do_action(flight.Action("horizons", b'{"topic":"mine"}'), good))
        assert victim.page("/readyz") == (200, "ready\n")
        assert victim.stop() == 0
