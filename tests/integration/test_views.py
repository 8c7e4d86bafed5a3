"""Views end to end, with rows that the test publishes in the place of the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gapless.sync
from gapless.client import Client, connect
from gapless.embedding import embedded
from gapless.errors import UsageError, ViewError
from gapless.fleet import Fleet
from gapless.model.ids import PubendId
from gapless.store.keyed import KeyedLog
from gapless.views.registry import STATUS_TOPIC, Status, status_rows
from tests.integration.files import run, running
from tests.integration.relations import SALES, STOCK, Shown

THREE_NODES = """
cells = {p = ["p1"], b = ["b1"], s = ["s1"]}
links = ["p--b", "b--s"]
edges = ["s1"]
repositories = ["p1"]
"""


@asynccontextmanager
async def market() -> AsyncIterator[Client]:
    async with embedded(spark=False) as client:
        await client.create_topic("sales", SALES)
        yield client


def row(item: str, total: int) -> dict[str, object]:
    return {"item": item, "total": total}


def horizon(tick: int, pubend: str = "sales-node") -> dict[str, dict[str, int]]:
    return {"sales": {pubend: tick}}


def test_a_view_is_created_listed_used_and_dropped() -> None:
    async def story() -> None:
        async with market() as client:
            assert await client.views() == {}
            made = await client.create_view("stock", STOCK)
            assert made.topic == "view.stock"
            assert (await client.create_view("stock", STOCK)) == made, "the same view again is not an error"
            await client.create_view("low", "SELECT item FROM stock WHERE total < 5")
            views = await client.views()
            assert {name: view.sql for name, view in views.items()} == {
                "stock": STOCK,
                "low": "SELECT item FROM stock WHERE total < 5",
            }
            assert views["stock"].status is None
            with pytest.raises(UsageError, match=r"^E179 view 'stock' is used by 'low': drop it first$"):
                await client.drop_view("stock")
            await client.drop_view("low")
            await client.drop_view("stock")
            assert await client.views() == {}
            with pytest.raises(
                UsageError, match=r"^E173 there is no view 'stock': no view has been created$"
            ):
                await client.drop_view("stock")
            again = await client.create_view(
                "stock", "SELECT item, count(*) AS sold FROM sales GROUP BY item"
            )
            assert again.topic == "view.stock.2", "what the first one showed is none of its rows"

    run(story())


def test_mistakes_in_a_view_are_reported_at_once() -> None:
    async def story() -> None:
        async with market() as client:
            await client.create_view("stock", STOCK)
            with pytest.raises(UsageError, match=r"^E173 there is already a view 'stock': drop it"):
                await client.create_view("stock", "SELECT item FROM sales")
            with pytest.raises(UsageError, match=r"^E173 'a view' is not a valid name for a view"):
                await client.create_view("a view", STOCK)
            with pytest.raises(UsageError, match=r"^E173 there is a topic 'sales'"):
                await client.create_view("sales", STOCK)
            with pytest.raises(ViewError, match=r"^E166 at \d+: ") as refused:
                await client.create_view("other", "SELECT item FROM sale")
            assert refused.value.pointer()
            with pytest.raises(ViewError, match=r"^E166 "):
                await client.create_view("other", 'SELECT * FROM "gapless.views"')
            assert set(await client.views()) == {"stock"}
            with pytest.raises(UsageError, match=r"^E173 there is no view 'stok': did you mean 'stock'\?$"):
                async with client.view("stok"):
                    pass

    run(story())


def test_the_state_of_a_view_is_listed_if_it_belongs_to_this_version() -> None:
    async def story() -> None:
        async with market() as client:
            made = await client.create_view("stock", STOCK)
            said = Status("stock", made.topic, "running", rows=3)
            await client.publish_batch(STATUS_TOPIC, status_rows([said]))
            assert (await client.views())["stock"].status == said
            await client.drop_view("stock")
            await client.create_view("stock", STOCK)
            assert (await client.views())["stock"].status is None

    run(story())


def test_creating_a_view_asks_for_the_topics_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with market() as client:
            asked: list[str] = []
            for name in ("topics", "subscribe", "create_topic", "publish_batch"):
                plain = getattr(client, name)
                monkeypatch.setattr(client, name, partial(noted, asked, name, plain))
            await client.create_view("stock", STOCK)
            assert asked == ["topics", "create_topic", "create_topic", "create_topic", "publish_batch"]
            asked.clear()
            await client.create_view("low", "SELECT item FROM stock WHERE total < 5")
            # The second time it asks is to learn how far the registry goes.
            assert asked == ["topics", "subscribe", "topics", "create_topic", "publish_batch"]

    run(story())


def noted(asked: list[str], name: str, plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    asked.append(name)
    return plain(*arguments, **options)


def test_a_live_table_shows_whole_states_only() -> None:
    async def story() -> None:
        async with market() as client:
            shown = Shown(client, await client.create_view("stock", STOCK))
            async with client.view("stock") as table:
                assert (table.rows(), table.as_of) == ([], {})
                changes = table.changes()
                await shown.show([row("b", 2), row("a", 1)], None)
                await shown.show([row("c", 3)], horizon(10))
                first = await anext(changes)
                assert table.rows() == [row("a", 1), row("b", 2), row("c", 3)]
                assert sorted(first.rows(), key=str) == [
                    (1, row(*each)) for each in (("a", 1), ("b", 2), ("c", 3))
                ]
                assert first.as_of == table.as_of == horizon(10)
                await shown.show([row("a", 5)], horizon(20), gone=["b"])
                second = await anext(changes)
                assert second.rows() == [(-1, row("b", 2)), (-1, row("a", 1)), (1, row("a", 5))]
                assert table.rows() == shown.all_rows() == [row("a", 5), row("c", 3)]
                # A part of a state is nothing to see, for one who comes now as well.
                await shown.show([row("z", 9)], None)
                async with client.view("stock") as late:
                    assert late.rows() == table.rows()
                    assert late.as_of == horizon(20)
                    assert len(late) == 2
                    assert late.to_arrow().column_names == ["item", "total"]

    run(story())


def test_a_state_that_lacks_rows_is_not_shown() -> None:
    async def story() -> None:
        async with market() as client:
            shown = Shown(client, await client.create_view("stock", STOCK))
            async with client.view("stock") as table:
                await shown.show([row("a", 1)], horizon(10), stamp=12345)
                await shown.show([row("b", 2)], horizon(20))
                await table.wait_until({"sales-node": 20})
                assert table.rows() == [row("a", 1), row("b", 2)]
                change = await anext(table.changes())
                assert change.as_of == horizon(20)

    run(story())


def test_waiting_for_ones_own_event() -> None:
    async def story() -> None:
        async with market() as client:
            shown = Shown(client, await client.create_view("stock", STOCK))
            await client.create_topic("news", {"text": "string"})
            first = await client.publish("sales", {"item": "a", "qty": 1})
            second = await client.publish_batch("sales", [{"item": "a", "qty": 2}] * 3)
            elsewhere = await client.publish("news", {"text": "hello"})
            assert first.tick is not None
            async with client.view("stock") as table:
                waiting = asyncio.create_task(table.wait_until([first, second]))
                await shown.show([row("a", 1)], {"sales": {first.pubend: first.tick + 1}})
                await table.wait_until(first)
                assert table.rows() == [row("a", 1)]
                assert not waiting.done()
                await shown.show([row("a", 7)], {"sales": {first.pubend: int(second.ticks[-1]) + 1}})
                await waiting
                assert table.rows() == [row("a", 7)]
                await table.wait_until(table.as_of)
                with pytest.raises(UsageError, match=r"^E191 view 'stock' depends on sales, not on 'news'"):
                    await table.wait_until(elsewhere)

    run(story())


def test_a_part_of_a_view_is_the_rows_that_a_condition_accepts() -> None:
    async def story() -> None:
        async with market() as client:
            shown = Shown(client, await client.create_view("stock", STOCK))
            await shown.show([row("a", 1), row("b", 2), row("c", 30)], horizon(10))
            async with (
                client.view("stock", "total < 10") as low,
                client.view("stock", "item >= 'b'") as high,
            ):
                assert low.rows() == [row("a", 1), row("b", 2)]
                assert high.rows() == [row("b", 2), row("c", 30)]
                await shown.show([row("a", 100), row("c", 3), row("d", 4)], horizon(20), gone=["b"])
                for table in (low, high):
                    await table.wait_until({"sales-node": 20})
                assert low.rows() == [row("c", 3), row("d", 4)], "what leaves the condition is gone"
                assert high.rows() == [row("c", 3), row("d", 4)]

    run(story())


def test_a_table_outlives_its_brokers(tmp_path: Path) -> None:
    async def story() -> None:
        async with Fleet(THREE_NODES, tmp_path) as fleet, connect(fleet.address("s1")) as client:
            await client.create_topic("sales", SALES)
            shown = Shown(client, await client.create_view("stock", STOCK))
            await shown.show([row(f"item {at:04}", at) for at in range(1_000)], horizon(1, "sales-p1"))
            async with client.view("stock") as table:
                assert table.rows() == shown.all_rows()
                for turn, victim in enumerate(("s1", "p1"), start=2):
                    await fleet.kill(victim)
                    await fleet.start(victim)
                    changed = [row(f"item {at:04}", at * turn) for at in range(0, 1_000, turn)]
                    await shown.show(changed, horizon(turn, "sales-p1"), gone=[f"item {turn:04}"])
                    await table.wait_until({PubendId("sales-p1"): turn})
                    assert table.rows() == shown.all_rows()
                async with client.view("stock") as late:
                    assert late.rows() == shown.all_rows()

    run(story())


def test_a_relation_stays_small_however_often_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.node.node.SEGMENT_BYTES", 20_000)
    text = 'cells = {all = ["n1"]}\ntopics.sales = {item = "string", qty = "int"}\n'
    text += 'pubends.sales-1 = {topic = "sales", broker = "n1"}\n'
    tidied = asyncio.Event()
    tidy = KeyedLog.tidy

    async def story() -> None:
        loop = asyncio.get_running_loop()

        def tidy_and_tell(log: KeyedLog, remembered: int, numbers_up_to: int) -> None:
            tidy(log, remembered, numbers_up_to)
            loop.call_soon_threadsafe(tidied.set)

        monkeypatch.setattr(KeyedLog, "tidy", tidy_and_tell)
        async with running(text, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            shown = Shown(client, await client.create_view("stock", STOCK))
            for turn in range(1, 120):
                rows = [row(f"item {at:02}", turn * at) for at in range(100)]
                await shown.show(rows, horizon(turn, "sales-1"))
            log = network.nodes["n1"].storage.logs[PubendId("view.stock-n1")]
            tidied.clear()
            while log.log_bytes > 120_000:
                await tidied.wait()
                tidied.clear()
            async with client.view("stock") as table:
                assert table.rows() == shown.all_rows()
        async with (
            running(text, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
            client.view("stock") as table,
        ):
            assert table.rows() == shown.all_rows()

    run(story())


def test_the_same_without_an_event_loop() -> None:
    with gapless.sync.embedded(spark=False) as client:
        client.create_topic("sales", SALES)
        made = client.create_view("stock", STOCK)
        assert list(client.views()) == ["stock"]
        receipt = client.publish("sales", {"item": "a", "qty": 1})
        assert receipt.tick is not None
        with client.view("stock") as table:
            assert table.rows() == []
            rows = [
                {"gapless_kind": 1, "gapless_key": '["a"]', "item": "a", "total": 1},
                {
                    "gapless_kind": 2,
                    "gapless_as_of": f'{{"sales": {{"{receipt.pubend}": {receipt.tick + 1}}}}}',
                },
            ]
            client.publish_batch(made.topic, rows)
            table.wait_until(receipt, timeout_s=30)
            assert table.rows() == [row("a", 1)]
            assert table.to_arrow().num_rows == len(table) == 1
            assert next(table.changes()).rows() == [(1, row("a", 1))]
            assert table.as_of == {"sales": {receipt.pubend: receipt.tick + 1}}
            with pytest.raises(TimeoutError):
                table.wait_until({receipt.pubend: receipt.tick + 100}, timeout_s=0.01)
        client.drop_view("stock")
        assert client.views() == {}
