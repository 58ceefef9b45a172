"""Reports as pictures: SVG without scripts, foreign fonts or links, whatever the content of the report."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from gateway.data.reports import Report, Scalar, Series
from gateway.data.table_warnings import replace_unprintable
from gateway.errors import NotFound, counted

MOST_POINTS = 400  # of a line; of more points only every nth is drawn
MOST_BARS = 20
MOST_LINES = 12
# Numbers from here on are skipped, and below the inverse drawn as 0: axes cannot show them.
LARGEST = 1e50
LONGEST_LABEL = 60  # characters
VALUES = "values"  # name under which the single values of a report are requested as bars
_MOST_NAMED = 20  # names in an error
_MOST_DOTTED = 50  # points of a line whose points have dots
_TICKS = 5  # approximate number on an axis

# Sizes in the picture's units, which are pixels unless it is scaled.
WIDTH = 640
HEIGHT = 480
_LEFT = 90
_RIGHT = 30
_ABOVE = 104
_BELOW = 64
_NAMES = 190  # width of the bars' names
_LONGEST_NAME = 24  # characters of the name of a bar or a colour
_KEYS_PER_ROW = 3
_COLOURS = (
    "#1f5fa8",
    "#d9822b",
    "#3a8f4d",
    "#b03a48",
    "#6b4fa0",
    "#8a6d3b",
    "#c2569c",
    "#5f6b76",
)


class _Column(NamedTuple):
    """Numbers to draw, with None for a missing one."""

    name: str
    values: Sequence[float | None]


def names(report: Report) -> tuple[str, ...]:
    """Return the names that `picture` accepts for a report: of its tables, then of its single values."""
    drawable = [series.name for series in report.series if _columns(series)]
    if _numbers(report):
        drawable.append(VALUES)
    return tuple(drawable)


def picture(
    report: Report,
    title: str,
    name: str | None = None,
) -> bytes:
    """Draw a table of a report or its single values; without a name the first of them.

    Raises `NotFound` if there is nothing to draw under this name.
    """
    if report.problem:
        raise NotFound(f"the report {report.problem}", reason="NO_REPORT")
    drawable = names(report)
    if not drawable:
        raise NotFound("there is no number in this report that could be drawn", reason="NO_PLOT")
    if name is None:
        name = drawable[0]
    if name not in drawable:
        listed = ", ".join(map(repr, drawable[:_MOST_NAMED]))
        text = f"nothing named {name[:100]!r} can be drawn; series is one of {listed}"
        raise NotFound(text, reason="NO_PLOT")
    for series in report.series:
        if series.name == name and _columns(series):
            return _series_picture(series, title)
    return _values_picture(report, title)


def _values_picture(report: Report, title: str) -> bytes:
    numbers = _numbers(report)
    hidden = len(numbers) - MOST_BARS
    note = counted(hidden, "value") if hidden > 0 else ""
    return _bars(title, note, list(numbers), [_Column("", list(numbers.values()))])


def _series_picture(series: Series, title: str) -> bytes:
    if series.name:
        title = f"{title}: {series.name}"
    is_sorted = _is_sorted(series)
    limit = MOST_POINTS if is_sorted else MOST_BARS
    note = ""
    if series.left_out or len(series.points) > limit:
        note = f"of {counted(len(series.points) + series.left_out, 'point')}"
    if is_sorted:
        return _lines(title, note, series)
    labels = [_label(point[0]) for point in series.points]
    return _bars(title, note, labels, _columns(series))


# ---------------------------------------------------------------- numbers


def _number(value: Scalar) -> float | None:
    """Return a value as a number that an axis can show; None for any other."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if abs(value) >= LARGEST:
        return None
    if abs(value) < 1 / LARGEST:
        return 0.0
    return float(value)


def _numbers(report: Report) -> dict[str, float]:
    """Return the single values that are numbers, by name."""
    numbers = {}
    for name, value in report.values.items():
        number = _number(value)
        if number is not None:
            numbers[name] = number
    return numbers


def _columns(series: Series) -> list[_Column]:
    """Return the columns with numbers, except the first of several, over which the others are drawn."""
    first = 1 if len(series.columns) > 1 else 0
    columns = []
    for index in range(first, len(series.columns)):
        values = [_number(point[index]) for point in series.points]
        if any(value is not None for value in values):
            columns.append(_Column(series.columns[index], values))
    return columns[:MOST_LINES]


def _is_sorted(series: Series) -> bool:
    """Return whether the first column is monotonic, so that the others are lines over it."""
    if len(series.columns) < 2 or len(series.points) < 2:
        return False
    xs = []
    for point in series.points:
        x = _number(point[0])
        if x is None:
            return False
        xs.append(x)
    return xs in (sorted(xs), sorted(xs, reverse=True))


# ---------------------------------------------------------------- pictures


@dataclass(frozen=True)
class _Axis:
    """The positions of numbers on an edge of the picture."""

    low: float  # the number at the start
    high: float  # the number at the end
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a number."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + (self.end - self.start) * share, 2)

    def ticks(self) -> list[float]:
        """Return some five round numbers on the axis."""
        rough_step = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough_step))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough_step)
        first = math.ceil(self.low / step)
        limit = self.high + step * 1e-9
        ticks = [number * step for number in range(first, first + 12)]
        return [tick for tick in ticks if tick <= limit]


def _axis(
    values: Iterable[float],
    start: float,
    end: float,
) -> _Axis:
    """Return the axis that shows all these numbers."""
    numbers = list(values)
    low = min(numbers)
    high = max(numbers)
    smallest_range = max(abs(low), abs(high), 1 / LARGEST) * 1e-6
    if high - low < smallest_range:  # one value, or nearly so
        if low == 0:
            return _Axis(0.0, 1.0, start, end)
        low, high = low - 1000 * smallest_range, high + 1000 * smallest_range
    return _Axis(low, high, start, end)


def _present(columns: Sequence[_Column]) -> Iterator[float]:
    """Yield all numbers of some columns."""
    for column in columns:
        for value in column.values:
            if value is not None:
                yield value


def _lines(
    title: str,
    note: str,
    series: Series,
) -> bytes:
    """Draw the columns of a table as lines over its first one."""
    step = math.ceil(len(series.points) / MOST_POINTS)
    last = len(series.points) - 1
    chosen = sorted({*range(0, last + 1, step), last})
    over = [_number(series.points[index][0]) or 0.0 for index in chosen]
    columns = _columns(series)
    x = _axis(over, _LEFT, WIDTH - _RIGHT)
    y = _axis(_present(columns), HEIGHT - _BELOW, _ABOVE)
    drawing = _Drawing(title)
    for tick in y.ticks():
        drawing.rule(_LEFT, y.at(tick), WIDTH - _RIGHT, y.at(tick))
        drawing.text(f"{tick:.6g}", _LEFT - 8, y.at(tick) + 4, "end")
    for tick in x.ticks():
        drawing.rule(x.at(tick), HEIGHT - _BELOW, x.at(tick), HEIGHT - _BELOW + 5)
        drawing.text(f"{tick:.6g}", x.at(tick), HEIGHT - _BELOW + 20)
    drawing.text(_label(series.columns[0], note), (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 12)
    for colour, column in zip(cycle(_COLOURS), columns, strict=False):
        line = []
        for position, index in zip(over, chosen, strict=True):
            value = column.values[index]
            if value is not None:
                line.append((x.at(position), y.at(value)))
        drawing.line(line, colour, dots=len(chosen) <= _MOST_DOTTED)
        drawing.key(column.name, colour)
    return drawing.as_svg()


def _bars(
    title: str,
    note: str,
    labels: Sequence[str],
    columns: Sequence[_Column],
) -> bytes:
    """Draw a group of bars per row, with a bar per column."""
    columns = [_Column(column.name, column.values[:MOST_BARS]) for column in columns]
    labels = labels[:MOST_BARS]
    x = _axis([0.0, *_present(columns)], _NAMES, WIDTH - _RIGHT)
    drawing = _Drawing(title)
    for tick in x.ticks():
        drawing.rule(x.at(tick), _ABOVE, x.at(tick), HEIGHT - _BELOW)
        drawing.text(f"{tick:.6g}", x.at(tick), HEIGHT - _BELOW + 20)
    drawing.text(note, (_NAMES + WIDTH - _RIGHT) / 2, HEIGHT - 12)
    slot = (HEIGHT - _ABOVE - _BELOW) / len(labels)
    thickness = 0.8 * slot / len(columns)
    for row, label in enumerate(labels):
        top = _ABOVE + slot * (row + 0.1)
        name = _label(label)[:_LONGEST_NAME]
        drawing.text(name, _NAMES - 8, top + 0.4 * slot + 4, "end")
        for number, (colour, column) in enumerate(zip(cycle(_COLOURS), columns, strict=False)):
            value = column.values[row]
            if value is not None:
                bar_top = top + number * thickness
                drawing.bar(x.at(0.0), x.at(value), bar_top, thickness, colour, f"{value:.6g}")
    if len(columns) > 1:
        for colour, column in zip(cycle(_COLOURS), columns, strict=False):
            drawing.key(column.name, colour)
    return drawing.as_svg()


class _Drawing:
    """The elements of a picture; their text is escaped by the library that writes XML."""

    def __init__(self, title: str) -> None:
        attributes = {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(WIDTH),
            "height": str(HEIGHT),
            "viewBox": f"0 0 {WIDTH} {HEIGHT}",
            "font-family": "sans-serif",
            "font-size": "13",
        }
        self._root = Element("svg", attributes)
        self._keys = 0
        SubElement(self._root, "title").text = _label(title)
        self._add("rect", width=WIDTH, height=HEIGHT, fill="white")
        self.text(_label(title), WIDTH / 2, 26, font_size=17)

    def _add(self, tag: str, **attributes: Any) -> Element:
        """Add an element; the underscores of attributes become hyphens."""
        texts = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
        return SubElement(self._root, tag, texts)

    def text(
        self,
        text: str,
        x: float,
        y: float,
        anchor: str = "middle",
        *,
        fill: str = "#222222",
        **attributes: Any,
    ) -> None:
        """Write text from, around or up to a point, depending on the anchor."""
        element = self._add(
            "text",
            x=x,
            y=round(y, 2),
            text_anchor=anchor,
            fill=fill,
            **attributes,
        )
        element.text = text

    def rule(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
    ) -> None:
        """Draw a thin line of the grid."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="#dddddd")

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        *,
        dots: bool,
    ) -> None:
        """Draw a line through points, optionally with a dot at each."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self._add("polyline", points=path, fill="none", stroke=colour, stroke_width=2)
        if dots:
            for x, y in points:
                self._add("circle", cx=x, cy=y, r=3, fill=colour)

    def bar(
        self,
        zero: float,
        end: float,
        top: float,
        thickness: float,
        colour: str,
        text: str,
    ) -> None:
        """Draw a bar with its number, inside it if there is room."""
        width = round(abs(end - zero), 2)
        self._add(
            "rect",
            x=min(zero, end),
            y=round(top, 2),
            width=width,
            height=round(thickness, 2),
            fill=colour,
        )
        right = max(zero, end)
        y = top + thickness / 2 + 4
        if thickness < 9:
            return
        if width > 60:
            self.text(text, right - 6, y, "end", fill="white")
        else:
            self.text(text, right + 6, y, "start")

    def key(self, name: str, colour: str) -> None:
        """Write the meaning of a colour below the title, three in a row."""
        row, column = divmod(self._keys, _KEYS_PER_ROW)
        x = _LEFT + column * (WIDTH - _LEFT - _RIGHT) / _KEYS_PER_ROW
        y = 44 + row * 18
        self._add("rect", x=round(x, 2), y=y - 10, width=11, height=11, fill=colour)
        self.text(_label(name)[:_LONGEST_NAME], round(x + 17, 2), y, "start")
        self._keys += 1

    def as_svg(self) -> bytes:
        """Return the picture."""
        return bytes(tostring(self._root, encoding="utf-8", xml_declaration=True))


def _label(*parts: Scalar) -> str:
    """Join values to a label of at most `LONGEST_LABEL` characters that XML can contain."""
    text = " ".join(str(part) for part in parts if part not in (None, ""))
    return replace_unprintable(text)[:LONGEST_LABEL]
