"""The log is held for as long as a view may need it, and no longer, whatever happens to whom and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.client import sync
from gapless.errors import LinkError, PipelineError
from gapless.model.ids import TopicId
from gapless.spark import pipeline as module
from gapless.views.registry import (
    FAILED,
    HOLDS_COLUMNS,
    HOLDS_RETENTION,
    HOLDS_TOPIC,
    REGISTRY_TOPIC,
    RUNNING,
    Definition,
    HoldBook,
    definition_rows,
    hold_rows,
)
from tests.spark.nodes import NodeThread
from tests.spark.quiet import book_when, quiet_pipeline, status_when

NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.sales = {item = "string", qty = "int"}
pubends.sales-1 = {topic = "sales", broker = "n1"}
"""
TOTAL = "SELECT item, sum(qty) AS total FROM sales GROUP BY item"
STRAY = "gapless.views.0123456789ab.0"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeThread]:
    with NodeThread.running(NODE, tmp_path) as made:
        yield made


@pytest.fixture
def client(node: NodeThread) -> Iterator[sync.SyncClient]:
    with sync.connect(node.address) as made:
        made.create_topic(HOLDS_TOPIC, HOLDS_COLUMNS, retention=HOLDS_RETENTION)
        yield made


def held(node: NodeThread) -> set[str]:
    """What the node holds for the pipeline."""
    listed = node.report()["subscriptions"]["list"]
    return {each["name"] for each in listed if (each["name"] or "").startswith("gapless.views.")}


def has_some(book: HoldBook) -> bool:
    return bool(book.at("n1"))


def has_none(book: HoldBook) -> bool:
    return not book.at("n1")


def begun(client: sync.SyncClient, name: str = "stock") -> set[str]:
    """Wait until a view runs; what is written down by then."""
    status_when(client, name, RUNNING)
    return set(book_when(client, has_some).at("n1"))


def test_a_dropped_view_holds_nothing(node: NodeThread, client: sync.SyncClient, tmp_path: Path) -> None:
    client.create_view("stock", TOTAL)
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        names = begun(client)
        assert held(node) == names
        assert len(names) == 1
        client.drop_view("stock")
        book_when(client, has_none)
        assert not held(node)


def test_one_that_was_dropped_while_the_pipeline_was_away_holds_nothing_once_it_is_back(
    node: NodeThread, client: sync.SyncClient, tmp_path: Path
) -> None:
    client.create_view("stock", TOTAL)
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        begun(client)
    assert held(node)
    client.drop_view("stock")
    assert list((tmp_path / "checkpoints").iterdir())
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        book_when(client, has_none)
    assert not held(node)
    # A checkpoint that outlives its hold could not be gone on with.
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.parametrize("code", ["E501", "E502"])
def test_a_view_that_fails_keeps_its_hold_until_it_is_dropped(
    node: NodeThread, client: sync.SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_MIN", 1_000)
    client.create_view("stock", TOTAL)
    with quiet_pipeline(node.address, tmp_path / "checkpoints") as pipeline:
        names = begun(client)
        [running] = pipeline.runner.running.values()
        running.error = PipelineError(code, "it is too large")
        status_when(client, "stock", FAILED)
        # What is dropped meanwhile takes nothing away from it.
        client.create_view("other", "SELECT item FROM sales WHERE qty > 1")
        begun(client, "other")
        client.drop_view("other")
        book_when(client, lambda book: set(book.at("n1")) == names)
        assert held(node) == names
        client.drop_view("stock")
        book_when(client, has_none)
        assert not held(node)


def test_an_error_while_forgetting_is_not_the_end_of_it(
    node: NodeThread, client: sync.SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FORGET_AGAIN_SECONDS", 0.0)
    errors: list[Exception] = [TimeoutError("no answer"), LinkError("E401", "the node is away")]
    forget = sync.SyncClient.forget_hold

    def forget_later(self: sync.SyncClient, topic: str, name: str, *, timeout_s: float) -> None:
        if errors:
            raise errors.pop()
        forget(self, topic, name, timeout_s=timeout_s)

    monkeypatch.setattr(sync.SyncClient, "forget_hold", forget_later)
    client.create_view("stock", TOTAL)
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        begun(client)
        client.drop_view("stock")
        book_when(client, has_none)
    assert not errors
    assert not held(node)


@pytest.mark.parametrize(
    ("is_written", "is_made"),
    [(True, False), (True, True), (False, True)],
    ids=["died before it was made, or before it was crossed out", "died later", "of an earlier version"],
)
def test_what_a_process_has_left_is_found_by_the_next(
    node: NodeThread, client: sync.SyncClient, tmp_path: Path, *, is_written: bool, is_made: bool
) -> None:
    if is_written:
        client.publish_batch(HOLDS_TOPIC, hold_rows("n1", {STRAY: TopicId("sales")}, held=True))
    if is_made:
        with client.hold("sales", STRAY, {}):
            pass
    before = client.ends(HOLDS_TOPIC)
    client.create_view("stock", TOTAL)
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        names = begun(client)
        with client.subscribe(HOLDS_TOPIC, "held = false", start="earliest") as rows:
            event = next(iter(rows))
            assert (event["edge"], event["name"]) == ("n1", STRAY)
        assert client.ends(HOLDS_TOPIC) != before
        assert held(node) == names - {STRAY}


def test_names_at_other_edges_and_of_others_are_left_alone(
    node: NodeThread, client: sync.SyncClient, tmp_path: Path
) -> None:
    client.publish_batch(HOLDS_TOPIC, hold_rows("n2", {STRAY: TopicId("sales")}, held=True))
    client.publish_batch(HOLDS_TOPIC, hold_rows("n1", {"desk-3": TopicId("sales")}, held=True))
    with client.hold("sales", "desk-3", {}):
        pass
    client.create_view("stock", TOTAL)
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        begun(client)
        client.drop_view("stock")
        book = book_when(client, lambda book: bool(book.at("n2")) and has_none(book))
    assert set(book.at("n2")) == {STRAY}
    assert client.inquire(subscription="desk-3")["subscription"] is not None


def test_a_view_that_cannot_be_planned_keeps_whatever_may_be_its_own(
    node: NodeThread, client: sync.SyncClient, tmp_path: Path
) -> None:
    client.publish_batch(HOLDS_TOPIC, hold_rows("n1", {STRAY: TopicId("sales")}, held=True))
    client.create_view("stock", TOTAL)
    odd = Definition("odd", "SELECT item FROM nowhere", TopicId("view.odd"))
    client.publish_batch(REGISTRY_TOPIC, definition_rows(odd))
    with quiet_pipeline(node.address, tmp_path / "checkpoints"):
        assert "nowhere" in status_when(client, "odd", FAILED).message
        assert STRAY in begun(client)
        client.drop_view("odd")
        book = book_when(client, lambda book: STRAY not in book.at("n1"))
        assert set(book.at("n1")) == held(node)
