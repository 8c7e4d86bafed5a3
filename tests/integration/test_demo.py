"""`gapless demo`, short: real processes, a router and Spark killed, and an account without a fault."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.main import main

COMMAND = [sys.executable, "-m", "gapless", "demo"]


@pytest.mark.long
def test_a_short_demo_keeps_every_promise(tmp_path: Path) -> None:
    arguments = ["--seconds", "4", "--rate", "400", "--json", "--keep", "kept"]
    # Spark takes seconds to start, twice; and minutes where others need the processors, too.
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    account = json.loads(done.stdout)
    assert account["kept"]
    assert account["total_order_differences"] == 0
    assert (account["killed"], account["took_over"]) == ("b1", "b2")
    assert account["killed_s"] < account["restarted_s"] < account["back_s"] < account["stopped_s"]
    assert {edge: set(found) for edge, found in account["recovery_s"].items()} == {
        edge: {"tokyo", "london", "news"} for edge in ("s1", "s2")
    }
    trades = sum(account["published"][name] for name in ("akiko", "ben", "cleo"))
    for each in account["subscribers"]:
        assert each["delivered"] == each["matched"] > 0
        assert not each["lost"] + each["duplicated"] + each["out_of_order"] + each["unwanted"]
        assert each["published"] == (trades if each["topic"] == "trades" else account["published"]["dora"])
        # Events came in each phase, so that there was something to lose.
        assert all(latency["events"] for latency in each["latency"].values())
    assert (tmp_path / "kept" / "latency.png").is_file()
    assert json.loads((tmp_path / "kept" / "account.json").read_text()) == account
    _check_sale(account["sale"])
    assert (tmp_path / "kept" / "staleness.png").is_file()


def _check_sale(sale: dict[str, Any]) -> None:
    """The live view was killed twice, and right all the time."""
    assert sale["kept"]
    assert sale["router_killed_s"] < sale["spark_killed_s"] < sale["spark_restarted_s"]
    assert max(sale["spark_restarted_s"], sale["router_back_s"]) < sale["stopped_s"]
    assert sale["spark_restarted_s"] < sale["spark_back_s"] < sale["stopped_s"]
    assert sale["offers"] > sale["items"]
    assert sale["buys"] > sale["offers"] - sale["items"]
    assert [each["edge"] for each in sale["watchers"]] == ["s1", "s2"]
    for each in sale["watchers"]:
        assert each["states"] > 2
        assert 0 < each["rows"] <= sale["items"]
        assert not each["states_wrong"] + each["states_back"] + each["rows_differ"] + each["events_missing"]
        # Something was published in each phase; what was published before the kill may be shown after it.
        assert each["staleness"]["during"]["events"]
        assert each["staleness"]["after"]["events"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--seconds", "0"), "E150 --seconds takes a number from 2 to 3600, got 0"),
        (("--seconds", "nan"), "E150 --seconds takes a number from 2 to 3600, got nan"),
        (("--rate", "1e9"), "E150 --rate takes a number from 10 to 20000, got 1e+09"),
        (("--keep", "."), "E154 --keep . cannot be made: it is there already"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gapless", "demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"error: {reason}\n")
