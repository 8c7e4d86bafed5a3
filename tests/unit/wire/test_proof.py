"""The challenge between two brokers: who is convinced by what, and what proves nothing."""

import pytest

from gapless.errors import PeerError
from gapless.wire.frames import FROM_DIALED_BROKER, FROM_STRANGER, FrameReader
from gapless.wire.handshake import Challenge, Hello, Proof, Role, Welcome, decode_link, encode_link
from gapless.wire.proof import Answering, Dialling, NetworkSecret

SECRET = NetworkSecret(b"what only the brokers know, and nobody else")
OTHER = NetworkSecret(b"what somebody has made up, and no broker knows")
A, B, C = (letter * 32 for letter in (b"A", b"B", b"C"))


def hello(name: str = "a", *, nonce: bytes = A, network: str = "f") -> Hello:
    return Hello(role=Role.BROKER, name=name, network=network, nonce=nonce)


def welcome(name: str = "b") -> Welcome:
    return Welcome(version=1, name=name, network="f")


def test_two_brokers_with_the_secret_accept_each_other() -> None:
    dialling = Dialling(SECRET, hello(), "b")
    answering = Answering(SECRET, hello(), "b", B)
    answering.proved(dialling.challenged(answering.challenge()))
    dialling.welcomed(welcome())


def test_without_a_secret_nothing_is_proved_or_asked_for() -> None:
    dialling = Dialling(None, hello(nonce=b""), "b")
    dialling.welcomed(welcome())
    with pytest.raises(
        PeerError, match="E227 'b' wants a proof of the network's secret, and this broker has"
    ):
        dialling.challenged(Answering(SECRET, hello(), "b", B).challenge())


def test_a_dialler_with_another_secret_believes_nothing_and_proves_nothing() -> None:
    challenge = Answering(SECRET, hello(), "b", B).challenge()
    with pytest.raises(PeerError, match="E228 'b' does not know the network's secret"):
        Dialling(OTHER, hello(), "b").challenged(challenge)
    forged = Proof(proof=OTHER.proof("dialler", hello(), "b", B))
    with pytest.raises(PeerError, match="E228 'a' does not know the network's secret"):
        Answering(SECRET, hello(), "b", B).proved(forged)


def test_a_proof_is_valid_for_one_conversation() -> None:
    first = Answering(SECRET, hello(), "b", B)
    overheard = Dialling(SECRET, hello(), "b").challenged(first.challenge())
    with pytest.raises(PeerError, match="E228"):
        # The same HELLO byte for byte, and another nonce of the acceptor.
        Answering(SECRET, hello(), "b", C).proved(overheard)
    with pytest.raises(PeerError, match="E228"):
        # The same challenge, and another nonce of the dialler.
        Dialling(SECRET, hello(nonce=C), "b").challenged(first.challenge())


def test_a_proof_cannot_be_reflected() -> None:
    answering = Answering(SECRET, hello(), "b", B)
    with pytest.raises(PeerError, match="E228"):
        answering.proved(Proof(proof=answering.challenge().proof))
    # Not with roles and names turned round either: "b" dials "a", who dials "b" with the same nonces.
    turned = Answering(SECRET, hello("b", nonce=B), "a", A)
    with pytest.raises(PeerError, match="E228"):
        answering.proved(Proof(proof=turned.challenge().proof))
    with pytest.raises(PeerError, match="E228"):
        Dialling(SECRET, hello(), "b").challenged(
            Challenge(name="b", nonce=A, proof=SECRET.proof("dialler", hello(), "b", A))
        )


@pytest.mark.parametrize(
    "claimed", [hello("c"), hello(network="g"), Hello(role=Role.CLIENT, name="a", network="f", nonce=A)]
)
def test_a_proof_is_for_one_name_role_and_network(claimed: Hello) -> None:
    proof = Dialling(SECRET, hello(), "b").challenged(Answering(SECRET, hello(), "b", B).challenge())
    with pytest.raises(PeerError, match="E228"):
        Answering(SECRET, claimed, "b", B).proved(proof)


def test_another_broker_of_the_network_cannot_answer_for_a_neighbour() -> None:
    challenge = Answering(SECRET, hello(), "c", B).challenge()
    with pytest.raises(PeerError, match="E223 'c' answers at the address of 'b'"):
        Dialling(SECRET, hello(), "b").challenged(challenge)
    renamed = Challenge(name="b", nonce=challenge.nonce, proof=challenge.proof)
    with pytest.raises(PeerError, match="E228"):
        Dialling(SECRET, hello(), "b").challenged(renamed)


def test_a_peer_that_skips_the_challenge_is_refused() -> None:
    with pytest.raises(PeerError, match="E227 'b' does not prove that it knows the network's secret"):
        Dialling(SECRET, hello(), "b").welcomed(welcome())
    with pytest.raises(PeerError, match="E227 'a' does not prove that it knows the network's secret"):
        Answering(SECRET, hello(nonce=b""), "b", B)


def test_a_second_challenge_gets_no_second_proof() -> None:
    dialling = Dialling(SECRET, hello(), "b")
    challenge = Answering(SECRET, hello(), "b", B).challenge()
    dialling.challenged(challenge)
    with pytest.raises(PeerError, match="E213"):
        dialling.challenged(challenge)


def test_a_secret_is_not_printed() -> None:
    assert "brokers know" not in repr(SECRET)


def test_the_frames_of_a_challenge_survive_the_wire() -> None:
    challenge = Answering(SECRET, hello(), "b", B).challenge()
    [frame] = FrameReader(FROM_DIALED_BROKER).feed(encode_link(challenge)[0])
    assert decode_link(frame) == challenge
    [frame] = FrameReader(FROM_STRANGER).feed(encode_link(hello())[0])
    assert decode_link(frame) == hello()


@pytest.mark.parametrize("nonce", [b"", b"short", b"x" * 33])
def test_a_nonce_of_another_length_is_refused(nonce: bytes) -> None:
    [data] = encode_link(Challenge(name="b", nonce=nonce, proof=A))
    [frame] = FrameReader(FROM_DIALED_BROKER).feed(data)
    with pytest.raises(PeerError, match="E215"):
        decode_link(frame)
