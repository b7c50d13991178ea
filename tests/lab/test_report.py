"""The report of a comparison holds every result, says first what it means, and needs no network."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from lab.comparisons import CLASSIFIERS, MORE, SEGMENTERS, fabricated, one_seed, with_failures
from poolgrad.lab import LabError
from poolgrad.lab.compare.figures import NARROW, WIDE, choose_styles, spread_labels
from poolgrad.lab.compare.findings import (
    compare_with_papers,
    find_baseline,
    number,
    signed,
    verdict_of,
)
from poolgrad.lab.compare.maps import draw_strip
from poolgrad.lab.compare.pictures import draw_costs
from poolgrad.lab.compare.report import write_report
from poolgrad.lab.compare.results import Comparison, Estimate

if TYPE_CHECKING:
    from playwright.sync_api import Browser

VOID = {"meta", "link", "img", "br", "hr", "input"}
NAN = float("nan")
DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


class Page(HTMLParser):
    """The elements and the text of a page whose tags must match."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(content)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "svg" not in self.open and data.strip():
            self.words.append(data.strip())
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1] += f" {data.strip()}"

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def row(self, method: str) -> list[str]:
        """The cells of the first row whose header begins with the method."""
        return next(cells for cells in self.rows if cells[0].split()[:1] == [method])


def report_of(comparison: Comparison, folder: Path) -> tuple[str, Page]:
    paths = write_report(comparison, folder)
    assert paths[0] == folder / "report.html"
    assert {path.name for path in folder.iterdir()} == {path.name for path in paths}
    for path in paths[1:]:
        with Image.open(io.BytesIO(path.read_bytes())) as picture:
            assert picture.format == "PNG"
            assert np.asarray(picture.convert("L")).std() > 5  # something is drawn
    content = paths[0].read_text(encoding="utf-8")
    return content, Page(content)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str, Page]:
    comparison = with_failures()
    comparison = replace(comparison, examples=comparison.examples[:8])
    return comparison, *report_of(comparison, tmp_path_factory.mktemp("usual"))


def test_the_sentence_comes_first_then_the_warnings(usual: Any) -> None:
    comparison, _, page = usual
    main = page.words[page.words.index(f"Which downsampling for {comparison.data}?", 1) + 1 :]
    assert main[0] == comparison.sentence
    shown = [words for words in main if words in comparison.warnings]
    assert shown == comparison.warnings
    assert main.index(shown[-1]) < main.index("Results")


def test_it_needs_no_network_and_no_script(usual: Any) -> None:
    _, content, page = usual
    assert "//" not in re.sub(r"base64,[\w+/=]+", "", content).replace("// ", "")
    assert not re.search(r"https?:|@import|<script|\son\w+=", content)
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href"):
            if name in attributes:
                assert (attributes[name] or "").startswith(("data:", "#")), (tag, attributes)
    identifiers = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    wanted = re.findall(r"(?:url\(|href=\")#([\w-]+)", content)
    assert set(wanted) <= set(identifiers)  # SVG's own references and the links of the contents


def test_all_pictures_have_texts(usual: Any) -> None:
    comparison, _, page = usual
    images = [a for tag, a in page.elements if tag == "img"]
    charts = [a for tag, a in page.elements if tag == "svg" and "aria-hidden" not in a]
    assert len(images) == 1 + 5 * 8
    assert len(charts) == 2 * 5
    assert all(a["alt"] for a in images)
    for chart in charts:
        assert all(s.method in (chart["aria-label"] or "") for s in comparison.summaries)


def test_the_table_has_every_number(usual: Any) -> None:
    comparison, _, page = usual
    for summary in comparison.summaries:
        cells = page.row(summary.method)
        assert summary.title in cells[0]
        assert f"{summary.score.mean:.3f} [{summary.score.low:.3f}" in cells[1]
        verdict = verdict_of(summary, find_baseline(comparison))
        assert cells[2].endswith(str(verdict))
        assert f"{summary.circular_consistency.mean:.3f}" in cells[3]
        assert f"{summary.cropped_consistency.mean:.3f}" in cells[4]
        cost = summary.cost
        assert cells[5].strip() == f"{cost.step_ms:.1f}"
        assert cells[7].replace("\xa0", "").strip() == f"{cost.saved_bytes / 1e3:.0f}"
        assert cells[9].replace("\xa0", "").strip() == str(cost.parameters)
    assert "▼ worse" in page.row("strided")[2]
    assert "≈ not distinguishable" in page.row("blur")[2]
    assert page.row("max")[2].strip() == "baseline"


def test_failures_papers_and_protocol_are_told(usual: Any) -> None:
    comparison, _, page = usual
    for failure in comparison.failures:
        assert failure.reason in page.text
    for name, fact in comparison.facts.items():
        assert f"{name} {fact}" in page.text
    for claim in compare_with_papers(comparison):
        assert claim.here in page.text
        assert claim.paper in page.text


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('$x$')</script>\"&\x07\udcff" + "long" * 40
    comparison = fabricated(methods=["max", "avg"])
    example = replace(comparison.examples[0], label=evil, predicted=evil)
    comparison = replace(
        comparison,
        data=evil,
        sentence=evil,
        warnings=[evil],
        facts={evil: evil},
        examples=[example],
        summaries=[
            replace(s, title=evil, method=evil if s.method == "avg" else s.method)
            for s in comparison.summaries
        ],
    )
    content, page = report_of(comparison, tmp_path)
    assert "<script" not in content
    assert evil.replace("\x07\udcff", "\ufffd" * 2) in page.text


def test_segmentation_has_boundaries_and_no_shifts(tmp_path: Path) -> None:
    _, page = report_of(fabricated("segment"), tmp_path)
    assert all(page.row(method) for method in SEGMENTERS)
    assert "boundary IoU" in page.text
    assert "circular" not in page.text
    assert not (tmp_path / "shifts.png").exists()
    assert (tmp_path / "consistency.png").exists()
    assert "▲ better" in page.row("dilated")[2]
    assert "SegNet" in page.text


def test_one_seed_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    comparison = one_seed(fabricated(methods=["max", "avg"], seeds=1, examples=[]))
    _, page = report_of(comparison, tmp_path)
    assert page.row("avg")[2].endswith("? no interval")
    assert "[" not in page.row("avg")[1]
    assert "nan" not in page.text.lower()


def test_one_method_alone(tmp_path: Path) -> None:
    _, page = report_of(fabricated(methods=["avg"], seeds=1, examples=[]), tmp_path)
    assert page.row("avg")[2].strip() == "baseline"
    assert not (tmp_path / "differences.png").exists()


def test_costs_that_were_not_measured_are_dashes(tmp_path: Path) -> None:
    comparison = fabricated(methods=["max", "avg", "blur"], examples=[])
    first, second, third = comparison.summaries
    assert first.cost is not None
    lacking = replace(first.cost, step_ms=NAN, step_spread=NAN, peak_bytes=0)
    summaries = [replace(first, cost=lacking), replace(second, cost=None), third]
    _, page = report_of(replace(comparison, summaries=summaries), tmp_path)
    assert page.row("max")[5].strip() == DASH
    assert {cell.strip() for cell in page.row("avg")[5:]} == {DASH}
    nothing = replace(comparison, summaries=[replace(s, cost=None) for s in summaries])
    report_of(nothing, empty(tmp_path))
    assert not (tmp_path / "costs.png").exists()


def empty(folder: Path) -> Path:
    for path in folder.iterdir():
        path.unlink()
    return folder


def test_without_a_finished_run_the_failures_remain(tmp_path: Path) -> None:
    nothing = replace(with_failures(), summaries=[], runs=[], examples=[])
    _, page = report_of(nothing, tmp_path)
    assert "the loss became NaN in epoch 4" in page.text
    assert "Results" not in page.words


def test_numbers_that_are_none_do_not_stop_the_pictures(tmp_path: Path) -> None:
    comparison = fabricated(methods=["max", "avg"], examples=[])
    first, second = comparison.summaries
    lost = replace(second, score=Estimate(NAN, NAN, NAN), difference=Estimate(NAN, NAN, NAN))
    runs = [replace(run, curves=[], shifts=None) for run in comparison.runs]
    _, page = report_of(replace(comparison, summaries=[lost, first], runs=runs), tmp_path)
    assert page.row("avg")[1].strip() == DASH
    assert page.rows.index(page.row("max")) < page.rows.index(page.row("avg"))


def test_a_baseline_that_failed_and_several_heads(tmp_path: Path) -> None:
    comparison = fabricated(methods=["max", "blur"], heads=("avg", "gem"), examples=[])
    styles = choose_styles(comparison)
    assert [style.label for style in styles.values()] == [
        "max, avg", "max, gem", "blur, avg", "blur, gem",
    ]  # fmt: skip
    _, page = report_of(comparison, tmp_path)
    assert "Differences to max, avg" in page.text
    orphans = [s for s in comparison.summaries if s.method == "blur"]
    alone = replace(comparison, summaries=[replace(s, difference=None) for s in orphans])
    assert find_baseline(alone) is None
    _, page = report_of(alone, empty(tmp_path))
    assert "? not compared" in page.text


def test_sixteen_methods_are_told_apart() -> None:
    comparison = fabricated(methods=[*CLASSIFIERS, *MORE], seeds=1, images=20, examples=[])
    styles = choose_styles(comparison).values()
    assert len({style.marker for style in styles}) == 16
    assert len({(style.colour, style.dashes, style.filled) for style in styles}) == 16
    assert len({style.colour for style in list(styles)[:8]}) == 8


def test_numbers_of_costs_have_room() -> None:
    comparison = fabricated(methods=["max", "avg"], seeds=1, examples=[])
    first, second = comparison.summaries
    assert first.cost is not None
    noisy = replace(first, cost=replace(first.cost, step_spread=9 * first.cost.step_ms))
    styles = choose_styles(comparison)
    for width in (WIDE, NARROW):
        drawn = draw_costs(comparison, [noisy, second], styles, width)
        assert drawn is not None
        for axes in drawn[0].figure.axes:
            assert all(t.get_position()[0] < 0.7 * axes.get_xlim()[1] for t in axes.texts)


def test_labels_move_apart() -> None:
    moved = spread_labels([50, 10, 10, 10, 99], 12, 0, 100)
    assert np.diff(np.sort(moved)).min() >= 12 - 1e-9
    assert moved.min() >= 0
    assert moved.max() <= 100
    assert moved[0] == 50
    crowd = spread_labels([5.0] * 20, 12, 0, 100)
    assert np.allclose(np.sort(crowd), 12 * np.arange(20))


def test_papers_are_compared_as_it_came_out() -> None:
    comparison = fabricated(examples=[])
    blur, aps, lifts = compare_with_papers(comparison)
    assert (blur.outcome, aps.outcome) == ("agrees", "agrees")
    assert "all 810 pairs" in aps.here
    assert lifts.outcome in ("agrees", "unclear")

    def worse(estimate: Estimate | None) -> Estimate | None:
        return estimate and Estimate(0.5, 0.49, 0.51)

    changed = [
        replace(s, cropped_consistency=worse(s.cropped_consistency)) if s.method == "blur" else s
        for s in comparison.summaries
    ]
    run = next(run for run in comparison.runs if run.method == "aps")
    assert run.shifts is not None
    run.shifts.circular_agreement[3] = 0.75
    blur, aps, _ = compare_with_papers(replace(comparison, summaries=changed))
    assert (blur.outcome, aps.outcome) == ("differs", "differs")
    assert "Possible reasons" in blur.here
    assert "1 of 810 pairs" in aps.here
    assert [c.outcome for c in compare_with_papers(fabricated(methods=["avg"], examples=[]))] == [
        "not tested"
    ] * 3


def test_numbers() -> None:
    assert [number(v) for v in (0.9996, -0.0001, 1234.5, math.inf)] == [
        "1.000", "0.000", "1\xa0234", DASH,
    ]  # fmt: skip
    signs = [signed(v) for v in (0.0004, -0.0004, -0.02, NAN)]
    assert signs == ["0.000", "0.000", f"{MINUS}0.020", DASH]


def test_maps_frame_the_winners_and_survive_what_is_not_a_number() -> None:
    example = fabricated(methods=["max"]).examples[0]
    strip = draw_strip(example)
    assert example.winners is not None
    row, column = example.winners[2, 3]
    share = strip.maps[2]
    assert share[8 * row, 8 * column].tolist() == [0xD5, 0x5E, 0x00]
    assert share[8 * row + 4, 8 * column + 4].tolist() != [0xD5, 0x5E, 0x00]
    returned = strip.maps[4]
    assert returned.shape == (16, 16, 3)
    assert (returned[example.share == 0] == returned[example.share == 0][0]).all()
    broken = replace(
        example,
        before=np.full((16, 16), NAN),
        arriving=np.zeros((8, 8)),
        returned=np.full((16, 16), np.inf),
        share=np.zeros((16, 16)),
        winners=None,
    )
    assert all(pixels.dtype == np.uint8 for pixels in draw_strip(broken).maps)
    large = replace(example, before=np.ones((1000, 600)), share=np.ones((1000, 600)), winners=None)
    assert draw_strip(large).maps[0].shape == (250, 150, 3)


def test_coloured_images_of_any_shape(tmp_path: Path) -> None:
    comparison = fabricated(methods=["max", "avg"])
    image = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
    examples = [
        replace(e, image=image, before=np.ones((12, 20)), after=np.ones((6, 10)), winners=None)
        for e in comparison.examples[:2]
    ]
    report_of(replace(comparison, examples=examples), tmp_path)
    assert (tmp_path / "maps-1.png").exists()
    assert not (tmp_path / "maps-2.png").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"missing.*cannot be written: No such file"):
        write_report(fabricated(methods=["avg"], examples=[]), tmp_path / "missing")


@pytest.mark.slow
@pytest.mark.parametrize("make", [with_failures, lambda: fabricated("segment")])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(
    browser: Browser, tmp_path: Path, make: Callable[[], Comparison], width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    path = write_report(make(), tmp_path)[0]
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url))
    page.goto(path.as_uri())
    assert [url for url in problems if not url.startswith("data:")] == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    shown = page.locator(".wide, .narrow").locator("visible=true")
    assert shown.count() == page.locator(".chart").count()
    labels = page.evaluate(
        """() => [...document.querySelectorAll(".chart svg")].filter((svg) => svg.clientWidth)
          .flatMap((svg) => [...svg.querySelectorAll("text")].map((text) => [
            text.textContent, text.getBoundingClientRect().left, text.getBoundingClientRect().right,
          ]))"""
    )
    assert labels
    assert [label for label in labels if label[1] < 0 or label[2] > width] == []
    results = axe.run(page)
    assert results.violations_count == 0, results.generate_report()
    context.close()
