"""Every story in this folder happens as it is told."""

from pathlib import Path

import pytest

from tests.scenarios import files, runner

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def not_yet(path: Path) -> str | None:
    """Why a story cannot happen as it is told yet, if it says so."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix(files.NOT_YET) for line in lines if line.startswith(files.NOT_YET)), None)


def marks(path: Path) -> list[pytest.MarkDecorator]:
    # A story that is not true yet must fail: when it comes true, the line that says so has to go.
    why = not_yet(path)
    return [] if why is None else [pytest.mark.xfail(reason=why, strict=True)]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=marks(path)) for path in STORIES])
def test_the_story_happens_as_told(path: Path, rewrite_golden: bool) -> None:
    blocks = files.parse(path)
    outputs = runner.run(path)
    if rewrite_golden and not_yet(path) is None:
        path.write_text(files.written(blocks, outputs), encoding="utf-8")
        return
    for block, output in zip(blocks, outputs, strict=True):
        place = block.commands[-1].place if block.commands else path.name
        assert "\n".join(output) == "\n".join(block.expected), f"{place}: the story goes otherwise"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_comment_on_top_says_what_the_story_shows(path: Path) -> None:
    top = path.read_text(encoding="utf-8").split("\n\n", maxsplit=1)[0]
    comments = [line for line in top.splitlines() if line.startswith("#")]
    assert any(line.startswith("# Shows: ") for line in comments), f"{path.name}: no '# Shows: ...' on top"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("publish trades price=3\n----\n", "a.txt:1: begin with a comment that tells the story"),
        ("# A story.\ndance\n----\n", "a.txt:2: dance: there is no command 'dance'"),
        ("# A story.\nwait 1ms\n----\n", "a.txt:2: wait 1ms: there are no brokers yet"),
        ("# A story.\n\ntopology p--s\n", "a.txt:3: topology p--s: no line '----'"),
        ("# A story.\n----\n", "a.txt:2: there is no command above this '----'"),
        ("# A story.\ntopology p-s\n----\n", "a.txt:2: topology p-s: 'p-s' is not a link"),
        ("# A story.\nparameters gap_ms=many\n----\n", "'many' is not a whole number"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(files.ScenarioError) as refused:
        runner.run(path)
    assert complaint in str(refused.value)
