"""Flame graphs as SVG: each function is as wide as its share of the time, above its caller."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

_WIDTH = 1200  # pixels
_ROW = 17
_TITLE = 28
_LETTER = 6.6  # average width of a letter
_NARROWEST = 2.0  # functions below this width are left out
_NARROWEST_TEXT = 36.0
# Colours of packages; the first one with which a function's name begins counts.
_COLOURS = {
    "gateway.domain": "#e8a33d",
    "gateway.store": "#d9704a",
    "gateway.": "#f0c75e",
    "adapter.": "#9fc26b",
    "engines.": "#7fb7a3",
    "sqlalchemy": "#d98880",
    "uvicorn": "#85aed6",
    "starlette": "#85aed6",
    "fastapi": "#85aed6",
    "pydantic": "#b6a1d6",
}
_OTHER_COLOUR = "#d5d5d5"


@dataclass
class Frame:
    """A function below its callers, and the functions that it calls."""

    name: str
    seconds: float = 0.0  # including those of `callees`
    callees: dict[str, "Frame"] = field(default_factory=dict)

    def by_width(self) -> list["Frame"]:
        """Return the callees, the widest first."""
        return sorted(self.callees.values(), key=lambda frame: -frame.seconds)


def tree(seconds_by_stack: Mapping[str, float]) -> Frame:
    """Return the tree of stacks, whose functions are separated by semicolons."""
    root = Frame("all")
    for stack, seconds in seconds_by_stack.items():
        root.seconds += seconds
        frame = root
        for name in stack.split(";"):
            frame = frame.callees.setdefault(name, Frame(name))
            frame.seconds += seconds
    return root


def flame_graph(root: Frame, title: str) -> str:
    """Return the flame graph of a tree as an SVG document."""
    scale = _WIDTH / root.seconds
    boxes = list(_boxes(root, 0.0, 0, scale))
    height = _TITLE + _ROW * (1 + max(box.depth for box in boxes))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-size="14">{escape(title)}</text>',
    ]
    for box in boxes:
        lines += box.lines(height - _ROW * (box.depth + 1), root.seconds)
    return "\n".join([*lines, "</svg>", ""])


@dataclass(frozen=True)
class _Box:
    """A function's place in the picture."""

    frame: Frame
    left: float  # pixels
    depth: int  # rows from below
    width: float  # pixels

    def lines(self, top: float, total: float) -> Iterator[str]:
        """Yield the lines of the SVG document; ``total``: seconds of the whole picture."""
        name = escape(self.frame.name)
        milliseconds = self.frame.seconds * 1000
        share = self.frame.seconds / total
        yield f"<g><title>{name}: {milliseconds:.2f} ms, {share:.1%}</title>"
        yield (
            f'<rect x="{self.left:.1f}" y="{top}" width="{self.width:.1f}" height="{_ROW - 1}" '
            f'fill="{_colour(self.frame.name)}"/>'
        )
        if self.width >= _NARROWEST_TEXT:
            text = escape(_shortened(self.frame.name, self.width))
            yield f'<text x="{self.left + 3:.1f}" y="{top + 12}">{text}</text>'
        yield "</g>"


def _boxes(
    frame: Frame,
    left: float,
    depth: int,
    scale: float,
) -> Iterator[_Box]:
    """Yield the places of a function and of all that it calls, without narrow ones.

    ``scale``: pixels per second.
    """
    width = frame.seconds * scale
    if width < _NARROWEST:
        return
    yield _Box(frame, left, depth, width)
    for callee in frame.by_width():
        yield from _boxes(callee, left, depth + 1, scale)
        left += callee.seconds * scale


def _colour(name: str) -> str:
    for package, colour in _COLOURS.items():
        if name.startswith(package):
            return colour
    return _OTHER_COLOUR


def _shortened(name: str, width: float) -> str:
    """Return what fits of a function's name: all of it, its end, or the beginning of its end."""
    letters = int((width - 6) / _LETTER)
    parts = name.split(".")
    for text in (name, ".".join(parts[-2:]), parts[-1]):
        if len(text) <= letters:
            return text
    return parts[-1][:letters]
