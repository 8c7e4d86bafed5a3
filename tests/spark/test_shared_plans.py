"""Views share the stages of those before them, and a restart, and `explain`, find the same ones."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

from gapless.cli.view.explain import explained
from gapless.client import connect, sync
from gapless.spark.pipeline import Pipeline
from gapless.views.planning.graph import stages_of
from gapless.views.planning.stages import ViewPlan, stage_name
from gapless.views.registry import RUNNING, STATUS_TOPIC, statuses_of
from tests.spark.nodes import NodeThread
from tests.spark.quiet import quiet_pipeline, status_when
from tests.spark.test_holds import NODE, TOTAL

VIEWS = {
    "narrow": f"{TOTAL} HAVING item = 'a'",
    "whole": TOTAL,
    "late": f"{TOTAL} HAVING item = 'b'",
    "count_all": "SELECT count(*) AS n FROM whole",
}


def plans(pipeline: Pipeline) -> dict[str, ViewPlan]:
    return {name: view.plan for name, view in pipeline.runner.graph.views.items()}


def all_run(client: sync.SyncClient, names: set[str], since: datetime) -> None:
    """Wait until it was said of these views since then that they run."""
    running: set[str] = set()
    with client.subscribe(STATUS_TOPIC, start="earliest") as rows:
        for batch in rows.batches():
            for each in statuses_of(batch.columns):
                if each.state == RUNNING and each.at is not None and each.at >= since:
                    running.add(each.name)
            if running >= names:
                return


def explained_stages(address: str, name: str) -> set[str]:
    """The stages that `gapless view explain` tells of."""

    async def asked() -> str:
        async with connect(address) as client:
            return (await explained(client, name, None))[0]

    return set(re.findall(r"^stage \d+ \((\w+)\)", asyncio.run(asked()), re.MULTILINE))


def test_a_restart_and_explain_find_the_stages_that_run(tmp_path: Path) -> None:
    with NodeThread.running(NODE, tmp_path) as node, sync.connect(node.address) as client:
        with quiet_pipeline(node.address, tmp_path / "checkpoints") as pipeline:
            for name, text in VIEWS.items():
                client.create_view(name, text)
                status_when(client, name, RUNNING)
            before = plans(pipeline)
        # One came before the whole was there, the other after it.
        assert before["narrow"].shown.stage != before["whole"].shown.stage
        assert before["late"].shown.stage == before["whole"].shown.stage
        for name, made in before.items():
            assert explained_stages(node.address, name) == {stage_name(each) for each in stages_of(made)}
        began = datetime.now(UTC)
        with quiet_pipeline(node.address, tmp_path / "checkpoints") as pipeline:
            all_run(client, set(VIEWS), began)
            assert plans(pipeline) == before
            for name in ("count_all", "whole"):
                client.drop_view(name)
            client.create_view("another", "SELECT item FROM sales")
            all_run(client, {"another"}, began)
            assert plans(pipeline)["late"] == before["late"], "what runs goes on as it is"
        began = datetime.now(UTC)
        with quiet_pipeline(node.address, tmp_path / "checkpoints") as pipeline:
            all_run(client, {"narrow", "late", "another"}, began)
            found = plans(pipeline)
            assert found["narrow"] == before["narrow"]
            assert found["late"] != before["late"], "nobody needs the whole any more"
            assert explained_stages(node.address, "late") == {
                stage_name(each) for each in stages_of(found["late"])
            }
            assert not (tmp_path / "checkpoints" / stage_name(before["late"].shown.stage)).exists()
