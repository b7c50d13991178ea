"""Writes the report of a comparison: one HTML file that opens offline, and its pictures as PNGs."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from poolgrad.lab.compare.figures import (
    NARROW,
    WIDE,
    Canvas,
    Style,
    choose_styles,
    drawing,
    key_of,
)
from poolgrad.lab.compare.findings import (
    COSTS,
    compare_with_papers,
    find_baseline,
    has_interval,
    number,
    signed,
    sort_by_score,
    verdict_of,
    with_interval,
)
from poolgrad.lab.compare.maps import (
    COLUMNS,
    Strip,
    draw_image,
    draw_sheet,
    draw_strip,
    group_by_image,
    to_png,
)
from poolgrad.lab.compare.pictures import (
    draw_costs,
    draw_differences,
    draw_learning,
    draw_shifts,
    draw_together,
)
from poolgrad.lab.compare.results import Comparison, Estimate, Summary
from poolgrad.lab.folder import write_atomic
from poolgrad.lab.segment.pictures import draw_masks

# Names of the pictures and of the PNG files, and the functions that draw them.
_PICTURES: dict[str, Callable[..., tuple[Canvas, str] | None]] = {
    "differences": draw_differences,
    "consistency": draw_together,
    "shifts": draw_shifts,
    "learning": draw_learning,
    "costs": draw_costs,
}
_COMPARED = {"differences", "consistency"}  # empty for a single method


@dataclass(frozen=True)
class _Chart:
    """A chart as the page shows it: for wide and for narrow windows."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class _Map:
    """A small picture of the page."""

    source: str
    alt: str


@dataclass(frozen=True)
class _TestImage:
    """A test image and the maps of every method."""

    image: _Map
    label: str
    rows: list[tuple[Style, str, list[_Map]]]


def write_report(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `report.html` and its pictures.

    The page holds everything it shows: no request, no script. Its charts are drawn for wide and for
    narrow windows and take the colours of the light or the dark theme.

    Parameters
    ----------
    comparison : Comparison
        What the report shows. Missing parts (no shifts, no costs, no examples, a single seed, NaN)
        are left out or printed as a dash.
    folder : Path
        Where to write; it must exist. Files of the same names are replaced.

    Returns
    -------
    list of Path
        The files: `report.html`, then the PNGs of the charts, `maps-1.png` and so on, and
        `masks.png` of a segmentation.

    Raises
    ------
    LabError
        If the system refuses to write a file; the message names it and the reason.
    """
    comparison = _printable(comparison)
    styles = choose_styles(comparison)
    summaries = sort_by_score(comparison)
    charts: dict[str, _Chart] = {}
    pngs: dict[str, bytes] = {}
    images = []
    ranks = {s.method: i for i, s in reversed(list(enumerate(summaries)))}
    with drawing():
        for name, draw in _PICTURES.items() if summaries else ():
            if name in _COMPARED and len(summaries) < 2:
                continue
            drawn = [draw(comparison, summaries, styles, width) for width in (WIDE, NARROW)]
            if drawn[0] is None or drawn[1] is None:
                continue
            (wide, alt), (narrow, _) = drawn[0], drawn[1]
            charts[name] = _Chart(
                Markup(wide.svg(f"{name}-wide", alt)), Markup(narrow.svg(f"{name}-narrow", alt))
            )
            pngs[f"{name}.png"] = wide.png()
        for i, group in enumerate(group_by_image(comparison.examples), 1):
            group.sort(key=lambda example: ranks.get(example.method, len(ranks)))
            strips = [draw_strip(example) for example in group]
            rows = [_style_of(strip.example.method, styles) for strip in strips]
            images.append(_test_image(strips, rows))
            pngs[f"maps-{i}.png"] = draw_sheet(strips, [style.label for style in rows])
        labels = {s.method: _style_of(s.method, styles).label for s in summaries}
        masks = draw_masks(comparison.examples, labels)
        if masks is not None:
            pngs["masks.png"] = masks
    page = _render(comparison, summaries, styles, charts, images, masks, list(pngs))
    paths = []
    # The page is written last, after its pictures.
    for name, content in {**pngs, "report.html": page.encode()}.items():
        write_atomic(folder / name, content)
        paths.append(folder / name)
    return [paths[-1], *paths[:-1]]


def _render(
    comparison: Comparison,
    summaries: list[Summary],
    styles: dict[tuple[str, str], Style],
    charts: dict[str, _Chart],
    images: list[_TestImage],
    masks: bytes | None,
    pngs: list[str],
) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": signed,
        "interval": _interval,
    }
    icons = {}
    for i, (key, style) in enumerate(styles.items()):
        canvas = Canvas(16, 16)
        canvas.mark(8, 8, style, 8)
        icons[key] = Markup(canvas.svg(f"icon-{i}", ""))
    environment.globals["signed"] = signed
    baseline = find_baseline(comparison)
    name = styles[key_of(baseline)].label if baseline else comparison.baseline
    first = comparison.runs[0] if comparison.runs else None
    scores = next(iter(first.scores.values()), ()) if first else ()
    return environment.get_template("report.html").render(
        comparison=comparison,
        icons=icons,
        baseline=name,
        verdicts={key_of(s): verdict_of(s, baseline) for s in summaries},
        summaries=summaries,
        styles=styles,
        several_heads=len({s.head for s in summaries}) > 1,
        charts=charts,
        images=images,
        masks=_uri(masks) if masks else None,
        map_columns=COLUMNS,
        claims=compare_with_papers(comparison),
        costs=COSTS,
        extras=list(dict.fromkeys(name for s in summaries for name in s.extra)),
        extra_title=_extra_title,
        consistency=any(s.circular_consistency or s.cropped_consistency for s in summaries),
        test_images=len(scores),
        seeds=sorted({s.seeds for s in summaries}),
        intervals=any(has_interval(s.score) for s in summaries),
        pngs=pngs,
        version=version("poolgrad"),
    )


def _interval(estimate: Estimate, form: Callable[[float], str] = number) -> str:
    """The interval alone; empty where there is none."""
    return with_interval(estimate, form).partition(" ")[2]


def _extra_title(name: str) -> str:
    return name.replace("_", " ").replace("iou", "IoU")


def _style_of(method: str, styles: dict[tuple[str, str], Style]) -> Style:
    """The style of a method, with its first head; examples do not name one."""
    found = next((style for key, style in styles.items() if key[0] == method), None)
    return found or Style(method, "#595959", "o", "-", True)


def _test_image(strips: list[Strip], rows: list[Style]) -> _TestImage:
    first = strips[0].example
    image = _Map(_uri(to_png(draw_image(first))), f"test image {first.label}".strip())
    return _TestImage(
        image,
        first.label,
        [
            (
                style,
                strip.example.predicted,
                [
                    _Map(_uri(to_png(pixels)), f"{style.label}: {column}")
                    for column, pixels in zip(COLUMNS, strip.maps, strict=True)
                ],
            )
            for strip, style in zip(strips, rows, strict=True)
        ],
    )


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


# File names can hold control characters and unpaired surrogates, which HTML and UTF-8 cannot.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def _printable(value: Any) -> Any:
    """The same value, with every character in its texts that a page cannot hold replaced."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [_printable(part) for part in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _printable(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **changed)
    return value
