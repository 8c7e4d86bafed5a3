"""The public names of Gapless are pinned and typed, and importing it costs next to nothing."""

import os
import subprocess
import sys
from pathlib import Path

import gapless
from gapless import errors
from gapless.client import connect
from gapless.embedding import embedded

ROOT = Path(__file__).parents[1]

PUBLIC = """
    AckMode Batch BatchReceipt Change Client ContentError DeliveryMode DeliveryOrder Event Gap GapMode
    GaplessError LinkError NetworkDescriptionError Options ParameterError PeerError PipelineError Publication
    Publisher Receipt SchemaError StartAt StoreError Subscription TlsFiles Topic UsageError View ViewError
    ViewInfo __version__ connect embedded sync
"""
PUBLIC_SYNC = "Batch Client Event Publication Publisher Subscription View connect embedded"

RIGHT = """
import gapless
from gapless import Client, Event, GaplessError, LinkError, Receipt, sync


async def story(seen: list[Event]) -> None:
    async with gapless.connect("gapless://localhost:7400") as client:
        receipt: Receipt = await client.publish("trades", {"price": 1.5})
        async with client.subscribe("trades", order="total", start={"trades-1": 5}) as trades:
            seen.append(await anext(trades))
            positions = trades.positions
        try:
            async with client.subscribe("trades", start=positions, ack="manual", gaps="raise") as trades:
                await (await anext(trades)).ack()
        except LinkError as error:
            print(error.code, receipt.tick)


def plain(path: str) -> gapless.Receipt:
    with sync.embedded(path) as client:
        on: sync.Client = client
        event: sync.Event = next(on.subscribe("trades", mode="best-effort"))
        assert isinstance(event, Event)
        return on.publish("trades", event)
"""
#: Each line is one mistake.
WRONG = """
from gapless import Evnt
gapless.conect("gapless://localhost")
gapless.LinkErr
gapless.sync.conect("gapless://localhost")
client.publsh("trades", {})
client.subscribe("trades", order="totl")
client.subscribe("trades", ack="never")
client.subscribe("trades", gaps="rise")
client.subscribe("trades", mode="holding")
client.subscribe("trades", start="erliest")
sync.subscribe("trades", order="totl")
sync.publish("trades", {}).result()
"""


def test_these_are_the_public_names() -> None:
    assert gapless.__all__ == PUBLIC.split()
    assert gapless.connect is connect
    assert gapless.embedded is embedded
    assert gapless.sync.__all__ == PUBLIC_SYNC.split()
    for name in gapless.__all__:
        assert getattr(gapless, name) is not None
    for name in errors.__all__:
        assert getattr(gapless, name) is getattr(errors, name)


def test_completion_offers_the_public_names_and_no_others() -> None:
    assert dir(gapless) == sorted(PUBLIC.split())
    assert dir(gapless.sync) == sorted(PUBLIC_SYNC.split())
    assert not hasattr(gapless, "conect")


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import gapless, sys; print([n for n in ('pyarrow', 'numpy', 'asyncio') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_type_checkers_accept_a_right_program_and_find_every_misspelling(tmp_path: Path) -> None:
    mistakes = WRONG.strip().splitlines()
    prelude = 'import gapless\nclient = gapless.Client("")\nsync = gapless.sync.Client(client)\n'
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(prelude + WRONG.lstrip())
    # In the folder of the project, so that what `make types` has found out is used.
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", tmp_path],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line.split(": ", 1) for line in run.stdout.splitlines() if ": error: " in line]
    assert not [line for line in complaints if "right.py" in line[0]], run.stdout
    found = {int(place.rpartition(":")[2]) for place, _ in complaints}
    first = prelude.count("\n") + 1
    assert found == set(range(first, first + len(mistakes))), run.stdout + run.stderr
