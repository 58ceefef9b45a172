"""A report as a picture: SVG without script, foreign fonts or links, whatever stands in the report."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from gateway.data.reports import Report, Scalar, Series
from gateway.errors import NotFound, counted

MOST_POINTS = 400
"""points of a line that are drawn; of more every nth"""
MOST_BARS = 20
MOST_LINES = 12
LARGEST = 1e50
"""numbers from here on are skipped, and taken as 0 below its inverse: axes cannot be drawn for them"""
LONGEST_LABEL = 60
VALUES = "values"
"""the name by which the single values of a report are requested as bars"""

WIDTH, HEIGHT = 640, 480
"""of the picture, in its own units: pixels, unless it is scaled"""
_LEFT, _RIGHT, _ABOVE, _BELOW = 90, 30, 104, 64
_NAMES = 190
"""how much room the names of bars have"""
_NAME = 24
_KEYS = 3
"""keys of colours in a line"""
_COLOURS = ("#1f5fa8", "#d9822b", "#3a8f4d", "#b03a48", "#6b4fa0", "#8a6d3b", "#c2569c", "#5f6b76")


def names(report: Report) -> tuple[str, ...]:
    """Return by which names `picture` draws something of a report: its tables, then its single values."""
    found = [series.name for series in report.series if _columns(series)]
    return (*found, VALUES) if _numbers(report) else tuple(found)


def picture(
    report: Report,
    title: str,
    name: str | None = None,
) -> bytes:
    """Draw a table of a report, or its single values; without a name the first of them. Raises `NotFound`."""
    if report.problem:
        raise NotFound(f"the report {report.problem}", reason="NO_REPORT")
    known = names(report)
    if not known:
        raise NotFound("there is no number in this report that could be drawn", reason="NO_PLOT")
    wanted = known[0] if name is None else name
    if wanted not in known:
        shown = ", ".join(repr(n) for n in known[:20])
        raise NotFound(
            f"nothing named {wanted[:100]!r} can be drawn; series is one of {shown}",
            reason="NO_PLOT",
        )
    series = next((s for s in report.series if s.name == wanted and _columns(s)), None)
    if series is None:
        numbers = _numbers(report)
        left = counted(len(numbers) - MOST_BARS, "value") if len(numbers) > MOST_BARS else ""
        return _bars(title, left, [n for n, _ in numbers], [("", [v for _, v in numbers])])
    heading = f"{title}: {series.name}" if series.name else title
    sorted_ = _sorted(series)
    cut = series.left_out or len(series.points) > (MOST_POINTS if sorted_ else MOST_BARS)
    left = f"of {counted(len(series.points) + series.left_out, 'point')}" if cut else ""
    if sorted_:
        return _lines(heading, left, series)
    return _bars(heading, left, [_word(p[0]) for p in series.points], _columns(series))


def _number(value: Scalar) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    size = abs(value)
    return None if size >= LARGEST else float(value) if size >= 1 / LARGEST else 0.0


def _numbers(report: Report) -> list[tuple[str, float]]:
    numbers = ((name, _number(value)) for name, value in report.values.items())
    return [(name, number) for name, number in numbers if number is not None]


def _columns(series: Series) -> list[tuple[str, list[float | None]]]:
    """Return the columns with numbers, but for the one over which they are drawn."""
    first = 1 if len(series.columns) > 1 else 0
    columns = []
    for at in range(first, len(series.columns)):
        values = [_number(point[at]) for point in series.points]
        if any(value is not None for value in values):
            columns.append((series.columns[at], values))
    return columns[:MOST_LINES]


def _sorted(series: Series) -> bool:
    """Whether the first column never falls, or never rises, so that the others are lines over it."""
    if len(series.columns) < 2 or len(series.points) < 2:
        return False
    xs = [x for point in series.points if (x := _number(point[0])) is not None]
    return len(xs) == len(series.points) and xs in (sorted(xs), sorted(xs, reverse=True))


@dataclass(frozen=True)
class _Axis:
    """Where numbers lie on a line of the picture."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return round(
            self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low), 2
        )

    def ticks(self) -> list[float]:
        """Return some five round numbers on the line."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, first + 12) if n * step <= self.high + step * 1e-9]


def _axis(
    values: Iterable[float],
    start: float,
    end: float,
) -> _Axis:
    found = list(values)
    low, high = min(found), max(found)
    room = max(abs(low), abs(high), 1 / LARGEST) * 1e-6
    if high - low < room:  # one value, or as good as one
        low, high = (low - 1000 * room, high + 1000 * room) if low else (0.0, 1.0)
    return _Axis(low, high, start, end)


def _lines(
    title: str,
    left: str,
    series: Series,
) -> bytes:
    every = -(-len(series.points) // MOST_POINTS)
    chosen = sorted({*range(0, len(series.points), every), len(series.points) - 1})
    over = [_number(series.points[at][0]) or 0.0 for at in chosen]
    columns = _columns(series)
    x = _axis(over, _LEFT, WIDTH - _RIGHT)
    y = _axis(
        (v for _, values in columns for v in values if v is not None), HEIGHT - _BELOW, _ABOVE
    )
    drawing = _Drawing(title)
    for tick in y.ticks():
        drawing.rule(_LEFT, y.at(tick), WIDTH - _RIGHT, y.at(tick))
        drawing.text(f"{tick:.6g}", _LEFT - 8, y.at(tick) + 4, "end")
    for tick in x.ticks():
        drawing.rule(x.at(tick), HEIGHT - _BELOW, x.at(tick), HEIGHT - _BELOW + 5)
        drawing.text(f"{tick:.6g}", x.at(tick), HEIGHT - _BELOW + 20)
    drawing.text(_word(series.columns[0], left), (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 12)
    for colour, (name, values) in zip(cycle(_COLOURS), columns, strict=False):
        line = [
            (x.at(o), y.at(v))
            for o, at in zip(over, chosen, strict=True)
            if (v := values[at]) is not None
        ]
        drawing.line(line, colour, dots=len(chosen) <= 50)
        drawing.key(name, colour)
    return drawing.done()


def _bars(
    title: str,
    left: str,
    labels: Sequence[str],
    columns: Sequence[tuple[str, Sequence[float | None]]],
) -> bytes:
    shown = [(name, values[:MOST_BARS]) for name, values in columns]
    x = _axis(
        [0.0, *(v for _, values in shown for v in values if v is not None)], _NAMES, WIDTH - _RIGHT
    )
    drawing = _Drawing(title)
    for tick in x.ticks():
        drawing.rule(x.at(tick), _ABOVE, x.at(tick), HEIGHT - _BELOW)
        drawing.text(f"{tick:.6g}", x.at(tick), HEIGHT - _BELOW + 20)
    drawing.text(left, (_NAMES + WIDTH - _RIGHT) / 2, HEIGHT - 12)
    count = min(len(labels), MOST_BARS)
    slot = (HEIGHT - _ABOVE - _BELOW) / count
    thick = 0.8 * slot / len(shown)
    for row in range(count):
        top = _ABOVE + slot * (row + 0.1)
        drawing.text(_word(labels[row])[:_NAME], _NAMES - 8, top + 0.4 * slot + 4, "end")
        for at, (colour, (_, values)) in enumerate(zip(cycle(_COLOURS), shown, strict=False)):
            value = values[row]
            if value is not None:
                drawing.bar(x.at(0.0), x.at(value), top + at * thick, thick, colour, f"{value:.6g}")
    if len(shown) > 1:
        for colour, (name, _) in zip(cycle(_COLOURS), shown, strict=False):
            drawing.key(name, colour)
    return drawing.done()


class _Drawing:
    """The elements of a picture; their text is escaped by the library that writes XML."""

    def __init__(self, title: str) -> None:
        of = {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(WIDTH),
            "height": str(HEIGHT),
        }
        of |= {
            "viewBox": f"0 0 {WIDTH} {HEIGHT}",
            "font-family": "sans-serif",
            "font-size": "13",
        }
        self._root = Element("svg", of)
        SubElement(self._root, "title").text = _word(title)
        self._add(
            "rect",
            width=WIDTH,
            height=HEIGHT,
            fill="white",
        )
        self.text(_word(title), WIDTH / 2, 26, font_size=17)
        self._keys = 0

    def _add(self, tag: str, **of: Any) -> Element:
        return SubElement(self._root, tag, {k.replace("_", "-"): str(v) for k, v in of.items()})

    def text(
        self,
        words: str,
        x: float,
        y: float,
        anchor: str = "middle",
        **of: Any,
    ) -> None:
        self._add(
            "text",
            x=x,
            y=round(y, 2),
            text_anchor=anchor,
            **{"fill": "#222222", **of},
        ).text = words

    def rule(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
    ) -> None:
        self._add(
            "line",
            x1=x1,
            y1=y1,
            x2=x2,
            y2=y2,
            stroke="#dddddd",
        )

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        dots: bool,
    ) -> None:
        way = " ".join(f"{x},{y}" for x, y in points)
        self._add(
            "polyline",
            points=way,
            fill="none",
            stroke=colour,
            stroke_width=2,
        )
        for x, y in points if dots else ():
            self._add(
                "circle",
                cx=x,
                cy=y,
                r=3,
                fill=colour,
            )

    def bar(
        self,
        zero: float,
        end: float,
        top: float,
        thick: float,
        colour: str,
        words: str,
    ) -> None:
        width = round(abs(end - zero), 2)
        self._add(
            "rect",
            x=min(zero, end),
            y=round(top, 2),
            width=width,
            height=round(thick, 2),
            fill=colour,
        )
        if thick >= 9 and width > 60:
            self.text(words, max(zero, end) - 6, top + thick / 2 + 4, "end", fill="white")
        elif thick >= 9:
            self.text(words, max(zero, end) + 6, top + thick / 2 + 4, "start")

    def key(self, name: str, colour: str) -> None:
        """Say in the next line under the title's what a colour stands for."""
        place = _LEFT + self._keys % _KEYS * (WIDTH - _LEFT - _RIGHT) / _KEYS
        y = 44 + self._keys // _KEYS * 18
        self._add(
            "rect",
            x=round(place, 2),
            y=y - 10,
            width=11,
            height=11,
            fill=colour,
        )
        self.text(_word(name)[:_NAME], round(place + 17, 2), y, "start")
        self._keys += 1

    def done(self) -> bytes:
        return bytes(tostring(self._root, encoding="utf-8", xml_declaration=True))


def _word(*parts: Scalar) -> str:
    """Return text that XML can carry, cut to a label's length."""
    text = " ".join(str(part) for part in parts if part not in (None, ""))
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)[
        :LONGEST_LABEL
    ]
