"""A node that wants certificates of its clients wants them of bulk readers too, and they show theirs."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import flight

from gapless.client import connect
from gapless.client.bulk import Bulk, open_bulk
from gapless.client.tls import TlsFiles
from gapless.errors import LinkError, ParameterError, UsageError
from tests.integration.authority import Authority
from tests.integration.files import run, running
from tests.integration.test_bulk import NODE, prices, publish

TLS = """
[tls]
certificate = "{broker}.pem"
key = "{broker}.key"
authority = "ca.pem"
clients = "required"
"""


def files(authority: Authority, certificate: Path) -> TlsFiles:
    return TlsFiles(str(authority.path), str(certificate), str(certificate.with_suffix(".key")))


def test_only_readers_with_a_certificate_of_the_authority_come_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("n1")
    own = authority.issue("alice")
    foreign = Authority(tmp_path / "other", "other").issue("alice")
    # The key may be in the same file.
    both = tmp_path / "both.pem"
    both.write_bytes(own.read_bytes() + own.with_suffix(".key").read_bytes())

    def read(address: str) -> None:
        for tls in (files(authority, own), TlsFiles(str(authority.path), str(both))):
            with open_bulk(address, "trades", tls=tls) as bulk:
                assert prices(bulk.read("trades-1", 0)) == [0.0, 1.0]
                other = pickle.loads(pickle.dumps(bulk))
                assert prices(other.read("trades-1", 0)) == [0.0, 1.0]
                other.close()
                place = bulk.place
        with pytest.raises(UsageError, match=r"^E196"):
            open_bulk(address, "trades", tls=authority.path)
        # Whoever knows the door already, and goes there without a certificate or with another's.
        for tls in (str(authority.path), files(authority, foreign)):
            stranger = Bulk(replace(place, tls=tls), patience_s=0.0)
            with pytest.raises(LinkError, match=r"^E411 bulk reads at grpc\+tls://.* failed: "):
                stranger.horizons()
            stranger.close()
        with (
            flight.FlightClient(
                place.doors["trades-1"], tls_root_certs=authority.path.read_bytes()
            ) as client,
            pytest.raises(flight.FlightUnavailableError),
        ):
            list(client.list_actions())

    async def story() -> None:
        async with running(NODE + TLS, tmp_path, "n1") as network:
            async with connect(network.address("n1"), tls=files(authority, own)) as client:
                await publish(client, 0, 2)
            await asyncio.to_thread(read, network.address("n1"))

    run(story())


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("alice")
    missing = str(tmp_path / "missing.pem")
    key = str(own.with_suffix(".key"))
    with pytest.raises(ParameterError, match=r"^E191 tls: a key needs a certificate: give both"):
        TlsFiles(str(authority.path), key=key)
    for tls, told in (
        (TlsFiles(missing), r"missing.pem cannot be used: No such file"),
        (TlsFiles(str(authority.path), missing), r"missing.pem cannot be used: No such file"),
        (TlsFiles(str(authority.path), str(own)), r"alice.pem cannot be used: "),
        (TlsFiles(key, str(own), key), r"alice.key and .*alice.pem.* cannot be used: "),
    ):
        with pytest.raises(ParameterError, match=rf"^E191 tls: .*{told}"):
            connect("gapless+tls://localhost", tls=tls)
    with pytest.raises(ParameterError, match=r"^E191 tls: .*missing.pem cannot be used: No such file"):
        TlsFiles(missing).for_flight()
