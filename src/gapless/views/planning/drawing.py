"""What does the transform graph look like? One self-contained SVG: topics, stages, views, from left to right.

The layout is in layers: topics in the first, each stage after all of its inputs, each view after its stage.
Within a layer, boxes are placed near their neighbours, so that few lines cross; a line that crosses a layer
gets a slot in it like a box. The lines from the topics are labelled with what the brokers select.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from xml.sax.saxutils import escape

from gapless.views.planning.graph import TransformGraph, inputs_of
from gapless.views.planning.stages import Events, Keyed, Leaf, Paired, Reduced, Stage, ViewPlan
from gapless.views.printing import aggregate_text, order_text, outputs_text

_CHARACTER = 7.6
_LINE = 17
_PADDING = 10
_BETWEEN_BOXES = 22
_BETWEEN_LAYERS = 70
_MARGIN = 24
#: Longer texts are cut.
_CHARACTERS_MAX = 46
#: Views of one stage beyond this number share a box.
_VIEWS_MAX = 8

#: Fill and border of each kind of box.
_COLOURS = {
    "topic": ("#e8f0fb", "#4a78b5"),
    "events": ("#f4f4f4", "#777777"),
    "keyed": ("#fdf1dc", "#c98a1b"),
    "reduced": ("#fbe6e1", "#c0553a"),
    "paired": ("#f2e6f7", "#8d4fa8"),
    "view": ("#e4f4e6", "#3f8f4f"),
}

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" \
viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12">
<title>Topics, stages and views</title>
<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>
<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0L8 4L0 8z" fill="#888888"/></marker></defs>"""


@dataclass(slots=True)
class _Box:
    """A box, or the place where a line goes through a layer (`kind` is empty)."""

    kind: str
    layer: int
    lines: list[str] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    before: list[_Box] = field(default_factory=list)
    behind: list[_Box] = field(default_factory=list)
    #: Of the place of a line: as wide as its layer.
    span: float = 0.0

    @property
    def width(self) -> float:
        if not self.kind:
            return self.span
        return max(len(line) for line in self.lines) * _CHARACTER + 2 * _PADDING

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PADDING if self.kind else 4.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(slots=True)
class _Line:
    """A line from one box to another, through places in the layers between, with what is written on it."""

    through: list[_Box]
    label: str


def draw(graph: TransformGraph) -> str:
    """The graph as the text of an SVG file."""
    boxes, lines = _boxes(graph)
    layers = _layers(boxes)
    _order(layers)
    width, height = _place(layers, lines)
    parts = [
        _HEAD.format(width=width, height=height),
        *(_drawn_line(line) for line in lines),
        *(_drawn_box(box) for box in boxes if box.kind),
        *(_drawn_label(line) for line in lines if line.label),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _boxes(graph: TransformGraph) -> tuple[list[_Box], list[_Line]]:
    topics: dict[str, _Box] = {}
    stages: dict[Stage, _Box] = {}
    lines: list[_Line] = []
    for stage in graph.stages:
        below = [stages[each.stage] for each in inputs_of(stage)]
        box = _Box(_kind(stage), 1 + max((each.layer for each in below), default=0), _described(stage))
        stages[stage] = box
        for each in dict.fromkeys(id(one) for one in below):
            source = next(one for one in below if id(one) == each)
            lines.append(_Line([source, box], ""))
        for topic, label in _selected(stage).items():
            source = topics.setdefault(topic, _Box("topic", 0, [topic]))
            lines.append(_Line([source, box], label))
    views = []
    for stage, box in stages.items():
        for text in _views(graph, stage):
            view = _Box("view", box.layer + 1, text)
            views.append(view)
            lines.append(_Line([box, view], ""))
    boxes = [*topics.values(), *stages.values(), *views]
    for line in lines:
        boxes += _threaded(line)
    return boxes, lines


def _threaded(line: _Line) -> list[_Box]:
    """Slots for the line in the layers that it crosses; links neighbours to each other."""
    first, last = line.through
    places = [_Box("", layer) for layer in range(first.layer + 1, last.layer)]
    line.through = [first, *places, last]
    for before, behind in zip(line.through[:-1], line.through[1:], strict=True):
        before.behind.append(behind)
        behind.before.append(before)
    return places


def _kind(stage: Stage) -> str:
    return type(stage).__name__.lower()


def _described(stage: Stage) -> list[str]:
    match stage:
        case Events():
            outputs = outputs_text(stage.leaves[0].outputs)
            return _cut(["every event", outputs])
        case Keyed():
            keys = ", ".join(name for name, _ in stage.keys)
            lines = [f"one state per {keys}" if keys else "one state"]
            for branch in stage.branches:
                lines += [f"{branch.name}:"] if len(stage.branches) > 1 else []
                lines += [f"  {aggregate_text(each)}" for each in branch.aggregates] or ["  count(*)"]
            return _cut(lines)
        case Reduced():
            keys = outputs_text(stage.keys)
            lines = [f"one group per {keys}" if keys else "one group"]
            return _cut([*lines, *(f"  {aggregate_text(each)}" for each in stage.aggregates), "  count(*)"])
        case Paired():
            return _cut(["pairs where", *(f"  {left} = {right}" for left, right in stage.on)])


def _cut(lines: Iterable[str]) -> list[str]:
    return [line if len(line) <= _CHARACTERS_MAX else f"{line[: _CHARACTERS_MAX - 1]}…" for line in lines]


def _selected(stage: Stage) -> dict[str, str]:
    """The topics of a stage, and what the brokers select of each."""
    leaves: list[Leaf] = []
    if isinstance(stage, Events):
        leaves += stage.leaves
    elif isinstance(stage, Keyed):
        leaves += (leaf for branch in stage.branches for leaf in branch.leaves)
    found: dict[str, list[str]] = {}
    for leaf in leaves:
        found.setdefault(str(leaf.topic), []).append(leaf.where)
    return {
        topic: _cut([" | ".join(dict.fromkeys(texts))])[0] if all(texts) else ""
        for topic, texts in found.items()
    }


def _views(graph: TransformGraph, stage: Stage) -> list[list[str]]:
    """The texts of the views that show a stage."""
    here = [(name, plan) for name, plan in graph.plans.items() if plan.shown.stage == stage]
    if len(here) <= _VIEWS_MAX:
        return [_cut([name, *_top(plan)]) for name, plan in here]
    names = [name for name, _ in here[: _VIEWS_MAX - 1]]
    return [_cut([*names, f"and {len(here) - len(names)} more views"])]


def _top(plan: ViewPlan) -> list[str]:
    return [] if plan.top is None else [f"first {plan.top.k} {order_text(plan.top.order, plan.top.per)}"]


def _layers(boxes: list[_Box]) -> list[list[_Box]]:
    layers: list[list[_Box]] = [[] for _ in range(1 + max((box.layer for box in boxes), default=-1))]
    for box in boxes:
        layers[box.layer].append(box)
    return layers


def _order(layers: list[list[_Box]]) -> None:
    """Each box near the average place of its neighbours, going forth and back a few times."""
    for _ in range(4):
        for layer, previous in zip(layers[1:], layers[:-1], strict=True):
            _sort(layer, previous, "before")
        for layer, following in zip(reversed(layers[:-1]), reversed(layers[1:]), strict=True):
            _sort(layer, following, "behind")


def _sort(layer: list[_Box], neighbours: list[_Box], side: str) -> None:
    places = {id(box): at for at, box in enumerate(neighbours)}
    now = {id(box): at for at, box in enumerate(layer)}

    def wanted(box: _Box) -> float:
        connected = [places[id(each)] for each in getattr(box, side) if id(each) in places]
        return fmean(connected) if connected else float(now[id(box)])

    layer.sort(key=wanted)


def _place(layers: list[list[_Box]], lines: list[_Line]) -> tuple[float, float]:
    """Give every box its coordinates; returns the size of the picture."""
    heights = [sum(box.height + _BETWEEN_BOXES for box in layer) for layer in layers]
    tallest = max(heights, default=0.0)
    x: float = _MARGIN
    for number, (layer, height) in enumerate(zip(layers, heights, strict=True)):
        y = _MARGIN + (tallest - height) / 2
        width = max((box.width for box in layer), default=0.0)
        for box in layer:
            box.x, box.y, box.span = x, y, width
            y += box.height + _BETWEEN_BOXES
        labels = [len(line.label) for line in lines if line.label and line.through[0].layer == number]
        x += width + _BETWEEN_LAYERS + max(labels, default=0) * _CHARACTER
    return x - _BETWEEN_LAYERS + _MARGIN if layers else 2.0 * _MARGIN, tallest - _BETWEEN_BOXES + 2 * _MARGIN


def _drawn_line(line: _Line) -> str:
    first = line.through[0]
    x, y = first.x + first.width, first.middle
    path = f"M{x:.1f} {y:.1f}"
    for box in line.through[1:]:
        middle = (x + box.x) / 2
        path += f"C{middle:.1f} {y:.1f} {middle:.1f} {box.middle:.1f} {box.x:.1f} {box.middle:.1f}"
        x, y = box.x, box.middle
        if not box.kind:
            x += box.width
            path += f"L{x:.1f} {y:.1f}"
    return f'<path d="{path}" fill="none" stroke="#888888" stroke-width="1.3" marker-end="url(#end)"/>'


def _drawn_label(line: _Line) -> str:
    """In the middle of the line, on a white ground."""
    first, second = line.through[:2]
    x, y = (first.x + first.width + second.x) / 2, (first.middle + second.middle) / 2
    width = len(line.label) * _CHARACTER * 0.92 + 6
    left = x - width / 2
    return (
        f'<rect x="{left:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="17" fill="#ffffff" rx="3"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" font-size="11" fill="#4a78b5" text-anchor="middle">'
        f"{escape(line.label)}</text>"
    )


def _drawn_box(box: _Box) -> str:
    fill, border = _COLOURS[box.kind]
    bold = ' font-weight="bold"'
    texts = "".join(
        f'<text x="{box.x + _PADDING:.1f}" y="{box.y + _PADDING + 12 + at * _LINE:.1f}" xml:space="preserve"'
        f"{bold if at == 0 else ''}>{escape(line)}</text>"
        for at, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
        f'fill="{fill}" stroke="{border}"/>{texts}'
    )
