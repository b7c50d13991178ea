"""`poolgrad.explain` and its command: what the page begins with, and errors that name the limit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from frontend_calls import torch

import poolgrad
from poolgrad.explainer import Explanation, build

if TYPE_CHECKING:
    from playwright.sync_api import Page

X = np.array([[1.0, 3.0], [2.0, 0.5]])
MOST_BYTES = 150_000


def test_the_page_is_one_small_file() -> None:
    page = build()
    assert len(page.encode()) <= MOST_BYTES
    assert "default-src 'none'" in page  # a browser makes no request, whatever the scripts do
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[^>]*>", page) == [
        '<link rel="icon" href="data:,">'
    ]


def test_a_function_and_its_pullback_make_the_same_state() -> None:
    x = np.arange(50.0).reshape(2, 1, 5, 5)
    arguments: dict[str, Any] = {"stride": 2, "padding": ((0, 1), (1, 0)), "ties": "split"}
    y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 3, **arguments)
    state = poolgrad.explain(x, poolgrad.max_pool2d, 3, cotangent=2 * y, **arguments).state
    assert state == poolgrad.explain(x, pullback, cotangent=2 * y).state
    assert state == {
        "operator": "max", "dims": 2, "x": x[:, 0].tolist(), "cotangent": (2 * y[:, 0]).tolist(),
        "kernel": [3, 3], "stride": [2, 2], "dilation": [1, 1], "padding": [[0, 1], [1, 0]],
        "ceil_mode": False, "ties": "split",
    }  # fmt: skip


def test_arrays_of_any_library_and_layout() -> None:
    last = poolgrad.explain(X[..., None], poolgrad.avg_pool2d, 2, channels_last=True)
    assert last.state == poolgrad.explain(X.tolist(), poolgrad.avg_pool2d, 2).state
    line = poolgrad.explain(X[0], poolgrad.lp_pool1d, np.inf, 2, cotangent=[2.0]).state
    assert line is not None
    assert (line["x"], line["kernel"], line["cotangent"]) == ([[[1.0, 3.0]]], [1, 2], [[[2.0]]])
    assert line["norm_type"] == np.inf
    if torch is not None:
        tensor = torch.tensor(X, dtype=torch.bfloat16, requires_grad=True)
        assert poolgrad.explain(tensor, poolgrad.avg_pool2d, 2).state == last.state


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ((np.zeros((17, 3)), poolgrad.max_pool2d, 2), "x must be at most 16 x 16 .*got 17 x 3"),
        ((np.zeros(40), poolgrad.max_pool1d, 2), "x must be at most 16 .*got 40"),
        ((np.zeros((3, 2, 2)), poolgrad.max_pool2d, 2), "1 to 2 planes to be shown, got 3"),
        ((np.zeros((2, 2, 2)), poolgrad.max_pool3d, 2), "one or two axes to be explained, got 3"),
        ((np.zeros((9, 9)), poolgrad.max_pool2d, 2, 1, 9), "padding must be at most 8"),
        ((X, poolgrad.max_pool2d, 3), "kernel_size 3 is larger than x"),
        ((X, poolgrad.stochastic_pool2d, 2), "one of the operators max, .*got stochastic"),
        ((X, np.max), "fun must be a pooling function of poolgrad.*or a pullback"),
        (
            (X * 1j, poolgrad.max_pool2d, 2),
            "x must be a real number or an array of real numbers, got complex128",
        ),
        (([[1.0], [2.0, 3.0]], poolgrad.max_pool2d, 2), "x must be"),
        ((X[None], poolgrad.vjp(poolgrad.max_pool2d, X, 2)[1]), "shape of the pullback's input"),
        ((X, poolgrad.vjp(poolgrad.max_pool2d, X, 2)[1], 2), "fun is a pullback"),
    ],
)
def test_what_the_page_does_not_show(call: tuple[Any, ...], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        poolgrad.explain(*call)


def test_a_cotangent_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"cotangent must have the shape of the output, \(1, 1\)"):
        poolgrad.explain(X, poolgrad.max_pool2d, 2, cotangent=X)


def test_the_page_begins_with_the_state(open_page: Callable[..., Page]) -> None:
    x = np.array([[np.nan, 1.0], [-np.inf, 0.25]])
    content = poolgrad.explain(x, poolgrad.min_pool2d, 1, cotangent=x).html
    page = open_page(content=content)
    label = "all => all.map((cell) => cell.getAttribute('aria-label').split('= ')[1])"
    assert page.locator('[data-grid="y"]').evaluate_all(label) == ["NaN", "1", "\u2212∞", "0.25"]


def test_a_notebook_shows_the_page_in_a_frame(open_page: Callable[..., Page]) -> None:
    shown = poolgrad.explain(X, poolgrad.max_pool2d, 2, cotangent=2.5)._repr_html_()
    page = open_page(content=f"<!DOCTYPE html><p data-cell>A notebook</p>{shown}")
    frame = page.frame_locator("iframe")
    cell = frame.locator('[data-cell="gx-0-1"]')
    cell.wait_for()
    assert frame.locator("#share").is_hidden()
    assert (cell.get_attribute("aria-label") or "").endswith("2.5")


def test_a_notebook_shows_a_widget_that_follows_the_page() -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    explained = poolgrad.explain(X, poolgrad.max_pool2d, 2, cotangent=2.5)
    formatters = pytest.importorskip("IPython.core.formatters")
    data, _ = formatters.DisplayFormatter().format(explained)
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<iframe" in data["text/html"]  # for readers without widgets
    widget = explained._widget
    assert widget is not None
    assert explained._repr_mimebundle_() is not None
    assert explained._widget is widget
    assert widget.page == explained.html
    widget.set_state({"state": {"x": [[["nan", 1], ["-inf", 0.25]]], "operator": "min"}})
    assert explained.state is not None
    np.testing.assert_array_equal(explained.state["x"], [[[np.nan, 1], [-np.inf, 0.25]]])
    assert repr(explained) == "<Explanation of min pooling>"
    explained.state = {"x": [[[np.inf]]]}
    assert widget.state == {"x": [[["inf"]]]}


def test_a_notebook_without_anywidget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolgrad.explainer.find_spec", lambda name: None)
    assert Explanation()._repr_mimebundle_() == {}


# What Jupyter gives to the widget: `changes` are what the kernel would see.
WIDGET = """<!DOCTYPE html><p data-cell>A notebook</p><div id="el"></div>
<script type="module">
%s
const values = %s;
const listeners = new Set();
window.changes = [];
window.kernel = (state) => { values.state = state; listeners.forEach((listen) => listen()); };
const model = {
  get: (name) => values[name],
  set: (name, value) => { values[name] = value; listeners.forEach((listen) => listen()); },
  save_changes: () => window.changes.push(values.state),
  on: (_, listen) => listeners.add(listen),
  off: (_, listen) => listeners.delete(listen),
};
window.leave = render({ model, el: document.getElementById("el") });
</script>"""


def test_the_widget_and_the_page_keep_one_state(open_page: Callable[..., Page]) -> None:
    explained = poolgrad.explain(X, poolgrad.max_pool2d, 2, cotangent=2.5)
    source = (Path(poolgrad.explainer.__file__).parent / "widget.js").read_text()
    values = json.dumps({"page": explained.html, "state": explained.state})
    source = source.replace("export default { render };", "")
    page = open_page(content=WIDGET % (source, values.replace("</", "<\\/")))
    frame = page.frame_locator("iframe")
    frame.locator('[data-field="operator"][value="avg"]').check()
    page.wait_for_function("window.changes.length > 0")
    assert page.evaluate("window.changes")[-1]["operator"] == "avg"
    page.evaluate("""kernel({ x: [[["nan", 7]]], kernel: [1, 2], operator: "min" })""")
    label = "cell => cell.getAttribute('aria-label')"
    frame.locator('[data-cell="y-0-0"][aria-label$="NaN"]').wait_for()
    assert frame.locator('[data-cell="x-0-1"]').evaluate(label).endswith("7")
    page.evaluate("kernel(null)")
    frame.locator('[data-cell="g-0-0"][aria-label$="2.5"]').wait_for()
    page.evaluate("kernel({ kernel: [9, 9] })")
    frame.locator("#complaint").wait_for()
    assert "is larger than x" in frame.locator("#complaint-text").inner_text()
    page.evaluate("leave()")


# The command


def run(arguments: list[str]) -> Any:
    testing = pytest.importorskip("typer.testing", reason="the lab extra is not installed")
    from poolgrad.cli.commands import app

    environment = {"COLUMNS": "500", "NO_COLOR": "1"}
    return testing.CliRunner().invoke(app, ["explain", *arguments], env=environment)


def start(page: Path) -> Any:
    return json.loads(page.read_text().partition('id="start">')[2].partition("</script>")[0])


def test_the_command_writes_and_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))
    out = tmp_path / "page.html"
    done = run(["--out", str(out)])
    assert (done.exit_code, opened) == (0, [out.as_uri()])
    assert str(out) in done.stdout
    assert start(out) is None  # its own opening
    windows = ["--kernel", "3", "--stride", "2,1", "--padding", "1", "--ties", "split"]
    done = run(["--out", str(out), "--no-open", "--ceil-mode", *windows])
    assert (done.exit_code, len(opened)) == (0, 1)
    state = start(out)
    assert (state["kernel"], state["stride"], state["ties"]) == ([3, 3], [2, 1], "split")
    assert (state["padding"], state["ceil_mode"]) == ([[1, 1], [1, 1]], True)


def write(path: Path, array: np.ndarray) -> str:
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".csv":
        np.savetxt(path, array, delimiter=",")
    else:
        image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
        image.fromarray(array.astype(np.uint8)).save(path)
    return str(path)


@pytest.mark.parametrize("kind", ["npy", "csv", "png"])
def test_a_file_is_shown_and_cropped(tmp_path: Path, kind: str) -> None:
    out, array = tmp_path / "page.html", np.arange(20.0 * 6).reshape(20, 6)
    small = write(tmp_path / f"small.{kind}", array[:4])
    assert run(["--data", small, "--out", str(out), "--no-open", "--pool", "avg"]).exit_code == 0
    assert start(out)["x"] == [array[:4].tolist()]
    large = write(tmp_path / f"large.{kind}", array)
    refused = run(["--data", large, "--out", str(out), "--no-open"])
    assert refused.exit_code == 2
    assert "has 20 x 6 numbers, but the page shows at most 2 planes of 16 x 16" in refused.stderr
    assert run(["--data", large, "--crop", "--out", str(out), "--no-open"]).exit_code == 0
    assert start(out)["x"] == [array[2:18].tolist()]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--data nowhere.npy", "nowhere.npy cannot be read: No such file"),
        ("--data ragged.csv", "ragged.csv cannot be read: "),
        ("--data words.csv", "words.csv cannot be read: could not convert string"),
        ("--data words.png", "words.png cannot be read: it is neither a .npy or .csv file nor an"),
        ("--data words.npy", "words.npy cannot be read: it is not an array that numpy.save wrote"),
        ("--data empty.csv", "empty.csv must hold numbers along one axis or more"),
        ("--pool typo", "--pool must be one of max, min, "),
        ("--kernel 2,x", "--kernel must be an integer, one for each axis such as 3,2, got '2,x'"),
        ("--padding no", "--padding must be an integer, one for each axis"),
        ("--kernel 9 --data small.npy", "kernel_size 9 is larger than x, which has size 2"),
        ("--pool avg --ties zero", "avg_pool2d() has no argument 'ties'"),
        ("--ties all", 'ties="all" would give every winner the full gradient'),
        ("--out missing/page.html --no-open", "--out missing/page.html cannot be written"),
    ],
)
def test_bad_options_are_answered_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("small.npy", X)
    Path("ragged.csv").write_text("1,2\n3\n")
    Path("words.csv").write_text("one,two\n")
    Path("words.png").write_text("no image")
    Path("words.npy").write_text("no array")
    Path("empty.csv").write_text("\n")
    done = run(["--no-open", *arguments.split()])
    assert done.exit_code == 2
    assert error in done.stderr
    assert done.stderr.startswith("poolgrad: ")
    assert not Path("explain.html").exists()


def test_a_table_of_a_spreadsheet(tmp_path: Path) -> None:
    table, out = tmp_path / "table.csv", tmp_path / "page.html"
    table.write_bytes(b"\xef\xbb\xbf1,2\r\n3,4\r\n")
    assert run(["--data", str(table), "--out", str(out), "--no-open"]).exit_code == 0
    assert start(out)["x"] == [[[1.0, 2.0], [3.0, 4.0]]]


def test_an_image_that_pillow_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    photo = write(tmp_path / "photo.png", np.zeros((8, 8)))
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 10)
    done = run(["--data", photo, "--no-open"])
    assert done.exit_code == 2
    assert "photo.png cannot be read: Image size (64 pixels) exceeds limit" in done.stderr


def test_adaptive_windows_have_a_default(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run(["--pool", "adaptive_avg", "--out", str(out), "--no-open"])
    assert (done.exit_code, start(out)["output_size"]) == (0, [2, 2])


def test_the_opening_needs_no_state() -> None:
    assert Explanation().html == build(None)
