"""`gapless demo`, short: real processes, a router killed, and an account without a fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.cli.main import main

COMMAND = [sys.executable, "-m", "gapless", "demo"]


def test_a_short_demo_keeps_every_promise(tmp_path: Path) -> None:
    arguments = ["--seconds", "4", "--rate", "400", "--json", "--keep", "kept"]
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
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
