"""The verification of the ticket sale finds every kind of fault, and no false ones."""

import io
import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gapless.cli import demo
from gapless.cli.main import app
from gapless.demo.account import Record
from gapless.demo.network import EDGES, router_of
from gapless.demo.report import WIDTH, DemoOutcome
from gapless.demo.sale.account import Ledger, Sale, ShownState, Trade, Traded, account_of, counts
from gapless.demo.sale.figure import draw
from gapless.demo.sale.report import (
    SaleNarrator,
    SaleOutcome,
    as_json,
    broken,
    introduce,
    report,
    view_table,
)
from gapless.demo.sale.tickets import DESCRIPTION, ITEMS, SQL, TRADERS, VIEW_PUBEND, trades_of
from gapless.errors import UsageError
from gapless.model.schema import Schema
from gapless.views.sql.parse import parse_view
from tests.views.evaluate import Event, evaluate

#: Events of each trader, what lies between two of them, and from publishing to being shown.
EVENTS, STEP_S, STALE_S = 300, 0.01, 0.25
#: A state is shown after so many events of each.
STATE_EVENTS = 25


@pytest.fixture
def sale() -> Sale:
    """A run in which every table was right."""
    traded = {plan.pubend: Traded() for plan in TRADERS}
    for plan in TRADERS:
        make = trades_of(plan, 1)
        for number in range(EVENTS):
            event = make(number)
            trade = Trade(event["item"], event["qty"], event.get("price"), number * STEP_S)
            traded[plan.pubend].trades.append(trade)
            traded[plan.pubend].ticks.append(1_000 + 10 * number)
    states = []
    ledger = Ledger(traded)
    for number in range(STATE_EVENTS, EVENTS + 1, STATE_EVENTS):
        horizons = dict.fromkeys(traded, 1_000 + 10 * number)
        ledger.advance(horizons)
        states.append(ShownState((number - 1) * STEP_S + STALE_S, horizons, ledger.table()))
    return Sale(
        traded=traded,
        shown={edge: list(states) for edge in EDGES},
        victim=router_of(VIEW_PUBEND),
        router_killed_s=0.8,
        spark_killed_s=1.0,
        spark_restarted_s=1.2,
        router_back_s=1.4,
        spark_back_s=1.6,
        start_s=9.0,
        stopped_s=3.0,
    )


def outcome_of(sale: Sale) -> SaleOutcome:
    accounts = [account_of(edge, sale) for edge in EDGES]
    return SaleOutcome(sale=sale, accounts=accounts, figure=Path("demo-view.png"))


def test_the_ledger_means_what_the_view_means(sale: Sale) -> None:
    description = tomllib.loads(DESCRIPTION)
    schemas = {name: Schema.parse(name, columns) for name, columns in description["topics"].items()}
    events = {}
    for plan in TRADERS:
        traded = sale.traded[plan.pubend]
        events[plan.topic] = [
            Event(
                plan.pubend,
                tick,
                {"item": trade.item, "qty": trade.qty}
                | ({} if trade.price is None else {"price": trade.price}),
            )
            for trade, tick in zip(traded.trades, traded.ticks, strict=True)
        ]
    rows = evaluate(parse_view(SQL, schemas, {}), events)
    assert 0 < len(rows) < len(ITEMS), "some items are sold out, and some are not"
    assert {row["item"]: (row["price"], row["avail"]) for row in rows} == sale.shown["s1"][-1].rows


def test_a_good_run_is_accounted_for(sale: Sale) -> None:
    for edge in EDGES:
        found = account_of(edge, sale)
        assert found.kept
        assert (found.states, found.rows_differ) == (EVENTS // STATE_EVENTS, 0)
        assert sum(each.events for each in found.staleness.values()) == len(TRADERS) * EVENTS
        assert all(each.events for each in found.staleness.values())
        longest_s = STALE_S + (STATE_EVENTS - 1) * STEP_S
        assert found.staleness["after"].max_s == pytest.approx(longest_s)
    assert counts(sale) == (EVENTS, 2 * EVENTS)
    assert broken(outcome_of(sale)) == ""


def _other_value(states: list[ShownState]) -> None:
    item, (price, left) = next(iter(states[3].rows.items()))
    states[3] = states[3]._replace(rows={**states[3].rows, item: (price, left + 1)})


def _row_missing(states: list[ShownState]) -> None:
    states[-1] = states[-1]._replace(rows=dict(list(states[-1].rows.items())[1:]))


def _late(states: list[ShownState]) -> None:
    del states[-1]


def _back(states: list[ShownState]) -> None:
    states.append(states[-2])


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (_other_value, "available at s2: 1 wrong rows in its states"),
        (_row_missing, "available at s2: 1 wrong rows in its states; available at s2: 1 rows that differ"),
        (_late, "available at s2: "),
        (_back, "available at s2: "),
    ],
)
def test_whatever_is_wrong_is_noticed(
    sale: Sale, harm: Callable[[list[ShownState]], None], found: str
) -> None:
    harm(sale.shown["s2"])
    assert account_of("s1", sale).kept
    assert not account_of("s2", sale).kept
    outcome = outcome_of(sale)
    assert not outcome.kept
    assert broken(outcome).startswith(found)
    if harm is _late:
        assert account_of("s2", sale).events_missing == len(TRADERS) * STATE_EVENTS
    if harm is _back:
        assert account_of("s2", sale).states_back == 1


def test_what_is_told_fits_80_columns(sale: Sale) -> None:
    output = io.StringIO()
    console = Console(file=output, width=WIDTH, highlight=False)
    introduce(console, 1_000, sale.victim)
    narrator = SaleNarrator(console, None)
    happened = ("router killed", "spark killed", "spark restarted", "router back", "spark back", "stopped")
    for what in ("opened", *happened):
        narrator.tell(what, sale)
    console.print(view_table(sale.shown["s1"][-1].rows, 10))
    report(console, outcome_of(sale))
    told = output.getvalue()
    assert max(map(len, told.splitlines())) <= WIDTH
    assert "900 events, 24 states shown, 0 rows that differ." in told


def test_the_account_is_json_and_a_picture(sale: Sale, tmp_path: Path) -> None:
    found = json.loads(json.dumps(as_json(outcome_of(sale))))
    assert found["kept"]
    assert [each["rows_differ"] for each in found["watchers"]] == [0, 0]
    draw(sale, tmp_path / "demo-view.png")
    assert (tmp_path / "demo-view.png").read_bytes().startswith(b"\x89PNG")


def _play(monkeypatch: pytest.MonkeyPatch, sale: Sale) -> None:
    """Let nothing happen in the first act, and what is there already in the second."""

    record = Record({}, {}, killed_s=1.0, restarted_s=2.0, back_s=3.0, stopped_s=4.0)
    first = DemoOutcome(record=record, accounts=[], order_differences=0, recovery_s={}, figure=None)

    async def sale_told(*_: object) -> Sale:
        return sale

    monkeypatch.setattr(demo, "_first_act", lambda *_: first)
    monkeypatch.setattr(demo, "_sale_told", sale_told)


def test_a_wrong_table_is_exit_status_1(sale: Sale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _row_missing(sale.shown["s2"])
    _play(monkeypatch, sale)
    monkeypatch.setattr(demo, "missing", lambda: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "--json"])
    assert done.exit_code == demo.EXIT_BROKEN
    assert "1 rows that differ in the end" in done.stderr
    told = json.loads(done.stdout)
    assert (told["kept"], told["sale"]["kept"], told["sale_skipped"]) == (False, False, None)
    assert (tmp_path / demo.FIGURES / "demo-view.png").is_file()


def test_without_spark_the_demo_says_that_it_skips_the_second_act(
    sale: Sale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_installed() -> None:
        raise UsageError("E174", "Java is not installed: Spark needs Java 17 or newer")

    _play(monkeypatch, sale)
    monkeypatch.setattr("gapless.spark.session.check_installed", check_installed)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0
    skipped = "The second act, a live view on Spark, is left out: Java is not installed: Spark needs Java 17"
    assert skipped in done.stdout
    told = json.loads(CliRunner().invoke(app, ["demo", "--json"]).stdout)
    assert told["kept"]
    assert told["sale"] is None
    assert told["sale_skipped"].startswith("Java is not installed")
