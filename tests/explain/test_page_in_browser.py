"""The page in a browser: every control, the keyboard, bad input, accessibility, small screens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

# A minute in all. The default tests open the page and compare its numbers with the textbook.
pytestmark = pytest.mark.slow


def plain(text: str) -> str:
    """The text with the signs of a keyboard."""
    return text.translate({0xA0: " ", 0x2212: "-", 0xD7: "x"})


def numbers(page: Page, grid: str, example: int = 0) -> list[str]:
    """The numbers that the cells of a grid show: "x(0, 1) = 3" gives "3"."""
    cells = page.locator(f'[data-grid="{grid}"][data-example="{example}"]')
    labels = cells.evaluate_all("all => all.map((cell) => cell.getAttribute('aria-label'))")
    return [plain(label).rpartition("= ")[2] for label in labels]


def choose(page: Page, field: str, value: str) -> None:
    page.locator(f'[data-field="{field}"][value="{value}"]').check(force=True)


def fill(page: Page, field: str, value: str) -> None:
    page.locator(f'[data-field="{field}"]').fill(value)
    page.locator(f'[data-field="{field}"]').press("Enter")


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def type_into(page: Page, cell: str, text: str) -> None:
    page.locator(f'[data-cell="{cell}"]').click()
    page.locator(".editor").fill(text)
    page.locator(".editor").press("Enter")


def complaint(page: Page) -> str:
    return page.locator("#complaint-text").inner_text() if page.is_visible("#complaint") else ""


def words(page: Page, selector: str = "#now") -> str:
    return plain(page.locator(selector).inner_text())


def test_it_opens_on_the_question(page: Page) -> None:
    assert numbers(page, "x") == ["1", "3", "2", "0.5"]
    assert (numbers(page, "y"), numbers(page, "g")) == (["3"], ["2.5"])
    assert numbers(page, "gx") == ["0", "2.5", "0", "0"]
    assert "goes to x(0, 1) alone: 1 x 2.5 = 2.5" in words(page)
    assert page.locator(".arrow.forward").count() == page.locator(".arrow.backward").count() == 1


def test_numbers_are_typed(page: Page) -> None:
    type_into(page, "x-0-2", "4")
    type_into(page, "g-0-0", "-1.5")
    assert (numbers(page, "y"), numbers(page, "gx")) == (["4"], ["0", "0", "-1.5", "0"])
    type_into(page, "x-0-0", "nan")
    assert (numbers(page, "y"), numbers(page, "gx")) == (["NaN"], ["-1.5", "0", "0", "0"])
    page.locator('[data-cell="x-0-3"]').click()
    page.locator(".editor").fill("9")
    page.locator(".editor").press("Escape")
    assert numbers(page, "x") == ["NaN", "3", "4", "0.5"]
    for typed, shown in [("123456", "1.23e5"), ("-0.000012", "-1.2e-5"), ("1/3", "0.333")]:
        type_into(page, "x-0-0", typed)
        assert numbers(page, "x")[0] == shown


def test_what_is_no_number_is_answered_with_a_sentence(page: Page) -> None:
    type_into(page, "x-0-0", "seven")
    assert complaint(page).startswith("“seven” is not a number.")
    assert numbers(page, "x")[0] == "1"
    type_into(page, "x-0-0", "7")
    assert (complaint(page), numbers(page, "y")) == ("", ["7"])


def test_a_drag_changes_a_number_and_is_undone_as_one(page: Page) -> None:
    box = page.locator('[data-cell="x-0-0"]').bounding_box()
    assert box
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 40, box["y"] + 20)
    page.mouse.move(box["x"] + 65, box["y"] + 20)
    page.mouse.up()
    assert numbers(page, "x")[0] == "6"
    page.click("#undo")
    assert numbers(page, "x")[0] == "1"


def test_randomise_undo_redo_and_reset(page: Page) -> None:
    press(page, "Lecture 4x4")
    before = numbers(page, "x"), numbers(page, "g")
    page.click("#randomise")
    page.click("#randomise-g")
    after = numbers(page, "x"), numbers(page, "g")
    assert after[0] != before[0]
    assert after[1] != before[1]
    page.click("#undo")
    page.keyboard.press("Control+z")
    assert (numbers(page, "x"), numbers(page, "g")) == before
    page.click("#redo")
    page.keyboard.press("Control+y")
    assert (numbers(page, "x"), numbers(page, "g")) == after
    page.click("#reset")
    assert numbers(page, "x") == ["1", "3", "2", "0.5"]


def test_a_matrix_is_pasted(page: Page) -> None:
    page.click("#paste")
    page.fill("#paste-text", "1, 2\n3")
    press(page, "Use it")
    assert "Row 2 has 1 numbers, row 1 has 2" in words(page, "#paste-error")
    press(page, "Cancel")
    for text in (
        "x=tensor([[1., 2.], [3., 4.]], dtype=torch.float64)",
        "np.array([[1, 2],\n[3, 4]])",
    ):
        press(page, "Reset")
        page.click("#paste")
        page.fill("#paste-text", text)
        press(page, "Use it")
        assert numbers(page, "x") == ["1", "2", "3", "4"]
    page.click("#paste")
    page.fill("#paste-text", "array([[1, 2, 9], [3, -inf, 5.], [0, 1, 2]])")
    press(page, "Use it")
    assert numbers(page, "x") == ["1", "2", "9", "3", "-∞", "5", "0", "1", "2"]
    page.evaluate(
        """() => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text", "4 5\\n6 7");
          const pasted = new ClipboardEvent("paste", { clipboardData, bubbles: true });
          document.body.dispatchEvent(pasted);
        }"""
    )
    assert numbers(page, "x") == ["4", "5", "6", "7"]


OPERATORS = {  # the value of [[1, 3], [2, 0.5]]
    "max": "3", "min": "0.5", "median": "1", "avg": "1.625", "lp": "3.775", "log_mean_exp": "2.074",
    "soft": "2.468", "mixed": "2.313",
}  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_can_be_chosen(page: Page, operator: str) -> None:
    choose(page, "operator", operator)
    assert numbers(page, "y") == [OPERATORS[operator]]
    assert complaint(page) == ""
    if operator == "lp":
        fill(page, "norm_type", "1")
        assert numbers(page, "y") == ["6.5"]
        page.locator('[data-field="mean"]').check()
        assert numbers(page, "y") == ["1.625"]
        fill(page, "norm_type", "-1")
        assert "norm_type" in complaint(page).lower()
    if operator == "log_mean_exp":
        fill(page, "r", "1000")
        assert numbers(page, "y") == ["2.999"]
    if operator == "mixed":
        fill(page, "alpha", "1")
        assert numbers(page, "y") == ["3"]
    if operator == "avg":
        fill(page, "divisor_override", "1")
        assert numbers(page, "y") == ["6.5"]
        fill(page, "divisor_override", "")
        assert numbers(page, "y") == ["1.625"]


def test_unpooling_continues_from_the_maxima_and_goes_back(page: Page) -> None:
    press(page, "Lecture 4x4")
    choose(page, "operator", "unpool")
    assert numbers(page, "x") == ["6", "8", "3", "4"]
    assert [y for y in numbers(page, "y") if y != "0"] == ["6", "8", "3", "4"]
    assert len(numbers(page, "y")) == 16
    assert words(page, "#now").startswith("x(0, 1) = 8 goes to one output")  # not to the last, a 0
    page.locator("#paste").click()
    page.get_by_label("indices").check(force=True)
    page.fill("#paste-text", "0 1\n2 3")
    press(page, "Use it")
    assert numbers(page, "y")[:5] == ["6", "8", "3", "4", "0"]
    choose(page, "operator", "max")
    assert len(numbers(page, "x")) == 16


def test_the_shape_of_windows_and_inputs(page: Page) -> None:
    press(page, "Lecture 4x4")
    for field, value, outputs in [
        ("kernel.0", "3", 2), ("kernel.1", "3", 1), ("stride.0", "1", 2), ("stride.1", "1", 4),
        ("padding.0.0", "1", 6), ("padding.1.1", "1", 9), ("dilation.1", "2", 3),
        ("rows", "6", 5), ("columns", "8", 25),
    ]:  # fmt: skip
        fill(page, field, value)
        assert (len(numbers(page, "y")), complaint(page)) == (outputs, ""), field
    assert len(numbers(page, "gx")) == 48
    assert page.locator("#stage .padding").count() == 1


def test_ceil_mode_adaptive_global_and_one_dimension(page: Page) -> None:
    fill(page, "rows", "3")
    page.locator('[data-field="ceil_mode"]').check()
    assert len(numbers(page, "y")) == 2
    choose(page, "windows", "adaptive")
    fill(page, "output_size.1", "3")
    assert len(numbers(page, "y")) == 6
    choose(page, "windows", "global")
    assert len(numbers(page, "y")) == 1
    choose(page, "dims", "1")
    assert numbers(page, "x") == ["1", "3"]
    assert page.locator('[data-field="kernel.0"]').is_hidden()
    choose(page, "dims", "2")
    assert complaint(page) == ""


def test_a_window_larger_than_the_input_is_refused(page: Page) -> None:
    fill(page, "kernel.1", "5")
    assert "larger than x" in complaint(page)
    assert page.locator('[data-field="kernel.1"]').get_attribute("aria-invalid") == "true"
    assert numbers(page, "y") == ["3"]
    press(page, "Close the message")
    assert complaint(page) == ""
    fill(page, "columns", "99")
    assert "1 to 16" in complaint(page)


def test_steps_forward_then_backward_with_a_running_sum(page: Page) -> None:
    press(page, "AlexNet 3x3 stride 2")
    page.click("#first")
    assert words(page).startswith("Nothing is computed yet")
    assert numbers(page, "y")[0] == "y(0, 0) not computed yet"
    for _ in range(13):
        page.click("#forth")
    assert numbers(page, "gx")[16] == "7"
    assert "gx(2, 2): 3 + 4 = 7" in words(page)
    page.click("#back")
    assert numbers(page, "gx")[16] == "3"
    page.locator("#position").fill("18")
    assert numbers(page, "gx")[16] == "12"
    page.click("#first")
    page.click("#last")
    assert page.locator("#last").is_disabled()


def test_play_ends_at_the_end(page: Page) -> None:
    page.click("#play")
    assert page.locator("#play").get_attribute("aria-label") == "Pause"
    page.wait_for_selector('#play[aria-label="Play"]')
    assert words(page, "#now-count").startswith("Step 2 of 2")


def test_pointing_at_an_output_and_at_an_input(page: Page) -> None:
    press(page, "AlexNet 3x3 stride 2")
    page.hover('[data-cell="y-0-4"]')
    assert page.locator("#stage .window").count() == 1
    assert words(page).startswith("y(1, 1) reads")
    page.hover('[data-cell="x-0-16"]')
    assert page.locator("#stage .window").count() == 4
    assert "is read by 4 windows" in words(page)
    assert page.locator(".arrow.backward").count() == 4
    page.hover("#title")
    page.click("#back")
    assert page.locator("#stage .window").count() == 1


def test_the_rules_for_ties(page: Page) -> None:
    type_into(page, "x-0-0", "3")
    for rule, gradient in [
        ("first", ["2.5", "0"]),
        ("split", ["1.25", "1.25"]),
        ("zero", ["0", "0"]),
    ]:
        choose(page, "ties", rule)
        assert numbers(page, "gx")[:2] == gradient
    page.locator('[data-field="ties"][value="all"]').click(force=True)
    assert "no subgradient" in complaint(page)
    assert page.locator('[data-field="ties"][value="zero"]').is_checked()


def test_a_window_without_inputs(page: Page) -> None:
    fill(page, "padding.1.0", "2")
    assert numbers(page, "y") == ["-∞", "3"]
    page.hover('[data-cell="y-0-0"]')
    assert "reads only padding" in words(page)


def test_the_matrix_is_lit_with_the_window(page: Page) -> None:
    press(page, "Lecture 4x4")
    page.hover('[data-cell="g-0-2"]')
    page.wait_for_selector(".band.row")
    page.hover('[data-cell="gx-0-5"]')
    page.wait_for_selector(".band.column")
    page.mouse.move(0, 0)  # a cell that is scrolled under the pointer would draw the matrix anew
    page.locator(".jacobian .frame").hover(position={"x": 5, "y": 5}, force=True)
    assert page.locator("#stage .window").count() == 1
    assert page.locator("#now-count").inner_text() == "Under the pointer"


def test_differences_agree_and_kinks_are_explained(page: Page) -> None:
    page.click("#tab-check")
    assert page.locator(".verdict.good").count() == 4
    type_into(page, "x-0-0", "3")
    assert page.locator(".verdict.kink").count() == 2
    assert "one of the subgradients" in words(page, ".slope figcaption")
    choose(page, "ties", "zero")
    assert "which is no subgradient" in words(page, ".slope figcaption")
    choose(page, "ties", "first")
    page.get_by_role("button", name="x(1,\u00a00)").click()
    assert "the gradient of x(1, 0)" in words(page, ".slope figcaption")


def test_the_table_of_differences_shows_the_chosen_input(page: Page) -> None:
    """Also after it was drawn again, as it is whenever the pointer moves over the picture."""
    press(page, "AlexNet 3x3 stride 2")
    page.click("#tab-check")
    chosen = """() => {
      const table = document.querySelector(".tall").getBoundingClientRect();
      const head = document.querySelector(".tall thead").getBoundingClientRect();
      const row = document.querySelector(".tall .chosen").getBoundingClientRect();
      return row.top >= head.bottom - 1 && row.bottom <= table.bottom + 1;
    }"""
    assert page.evaluate(chosen)  # x(2, 2), the 17th of 49 rows
    page.get_by_role("button", name="x(6,\u00a06)").click()
    assert page.evaluate(chosen)
    page.hover('[data-cell="x-0-0"]')
    page.locator(".chosen").get_by_role("button", name="x(0,\u00a00)").wait_for()
    assert page.evaluate(chosen)


def test_a_shift_tells_what_stays(page: Page) -> None:
    press(page, "Lecture 4x4")
    page.click("#tab-shift")
    press(page, "no shift")
    assert "4 of 4 outputs stay" in words(page, "#panel-shift .lead")
    press(page, "shift right")
    press(page, "shift right")
    assert "2 moved along" in words(page, "#panel-shift .lead")


def test_a_batch_and_the_mean_of_the_gradients(page: Page) -> None:
    page.click("#tab-batch")
    press(page, "Use a batch of two")
    assert len(numbers(page, "gx", 1)) == 4
    press(page, "1. Forward")
    assert page.locator(".gradient").count() == 0
    press(page, "2. Backward, each example")
    assert page.locator(".gradient").count() == 4
    press(page, "3. The mean")
    shown = page.locator(".flow-row .gradient svg").evaluate_all(
        """all => all.map((svg) =>
          [...svg.querySelectorAll("text")].map((text) => Number(text.textContent)))"""
    )
    assert np.allclose(np.mean(shown[:2], axis=0), shown[2], atol=6e-4)
    page.get_by_label("filter weight (1, 1)").fill("0.5")
    page.get_by_label("filter weight (1, 1)").press("Enter")
    assert complaint(page) == ""
    page.get_by_label("filter weight (1, 1)").fill("x")
    page.get_by_label("filter weight (1, 1)").press("Enter")
    assert "not a number" in complaint(page)
    fill(page, "columns", "16")  # the image before the filter would have 17
    assert "make x smaller than 16" in words(page, "#panel-batch")


def test_the_code_gives_the_numbers_of_the_page(page: Page) -> None:
    press(page, "AlexNet 3x3 stride 2")
    page.click("#tab-code")
    for library in ["PyTorch", "JAX", "NumPy"]:
        press(page, library)
        assert "poolgrad.max_pool2d" in page.locator("#code").inner_text()
    names: dict[str, np.ndarray] = {}
    exec(page.locator("#code").inner_text(), names)
    assert numbers(page, "gx") == [f"{v:g}" for v in names["gx"].ravel()]
    page.click("#copy-code")
    page.get_by_text("Copied").wait_for()


def test_the_address_holds_the_state(page: Page, open_page: Callable[..., Page]) -> None:
    type_into(page, "x-0-0", "inf")
    page.wait_for_url("**#*")
    page.wait_for_timeout(400)
    again = open_page("#" + page.url.split("#")[1])
    assert numbers(again, "x") == ["∞", "3", "2", "0.5"]
    nonsense = open_page("#nonsense")
    assert "Fragment" in complaint(nonsense)
    assert numbers(nonsense, "x") == ["1", "3", "2", "0.5"]


def test_the_tour_has_seven_steps_that_change_the_picture(page: Page) -> None:
    seen = set()
    for step in ["Forward", "Who won", "Backward", "Average", "Overlap", "Ties", "Batch"]:
        page.click("#tour-next")
        assert page.locator('#tour [aria-current="step"]').inner_text().endswith(step)
        seen.add((words(page, "#tour-text"), page.locator("#stage").inner_html()))
    assert len({text for text, _ in seen}) == len({picture for _, picture in seen}) == 7
    page.click("#tour-next")
    assert page.locator("#tour [aria-current]").count() == 0


def test_every_preset(page: Page) -> None:
    for preset in page.locator("#presets button").all():
        preset.click()
        assert complaint(page) == ""
        assert words(page)
    page.click("#presets >> text=NaN")
    assert "A NaN in a window is its result" in words(page)
    page.click("#presets >> text=AlexNet")
    assert "x(2, 2) = 9 is read by 4 windows" in words(page).replace("\N{NO-BREAK SPACE}", " ")
    assert words(page, "#now-count") == "After all 18 steps"


def test_the_keyboard_is_enough(page: Page) -> None:
    page.keyboard.press("ArrowLeft")
    assert words(page, "#now-count").startswith("Step 1 of 2")
    page.keyboard.press("ArrowRight")
    assert words(page, "#now-count").startswith("Step 2 of 2")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.cell") == "x-0-0":
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    assert numbers(page, "x") == ["1", "3", "2", "8"]
    assert page.evaluate("document.activeElement.dataset.cell") == "x-0-3"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.cell") == "y-0-0"
    page.locator("#tab-matrix").focus()
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-check")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")
    page.wait_for_selector('#play[aria-label="Pause"]')
    page.keyboard.press("Space")
    page.wait_for_selector('#play[aria-label="Play"]')


STATES: dict[str, list[str]] = {
    "opening": [], "average": ["#tour-3"], "overlap": ["#tour-4", "#tab-check"],
    "ties": ["#tour-5"], "batch": ["#tour-6"],
    "shift": ["#presets button:nth-child(2)", "#tab-shift"],
    "padding": ["#presets button:nth-child(5)", "#tab-code"], "paste": ["#paste"],
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Callable[..., Page], state: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page(color_scheme=scheme)
    for click in STATES[state]:
        page.click(click)
    results = axe.Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("state", STATES)
def test_screens_of_360_pixels(open_page: Callable[..., Page], state: str, tmp_path: Path) -> None:
    page = open_page(width=360)
    for click in STATES[state]:
        page.click(click)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    folder = Path(os.environ.get("POOLGRAD_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{state}-360.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.screenshot(path=folder / f"{state}-1280.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_dark_and_light_print_and_motion(open_page: Callable[..., Page]) -> None:
    page = open_page(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate(background) != dark
    motion = "getComputedStyle(document.querySelector('.arrow .line')).animationName"
    assert page.evaluate(motion) == "none"
    moving = open_page(reduced_motion="no-preference")
    assert moving.evaluate(motion) != "none"
    moving.emulate_media(media="print")
    assert moving.evaluate(motion) == "none"  # else an arrow is printed half drawn
    page.emulate_media(media="print")
    assert page.locator("#controls").is_hidden()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    press(page, "Lecture 4x4")
    page.click("#tab-code")
    page.emulate_media(media="print")
    assert page.locator("#code").is_visible()
    assert page.locator("button:visible").count() == 0


def test_every_step_is_announced(page: Page) -> None:
    press(page, "NaN")
    assert page.locator("#now").get_attribute("aria-live") == "polite"
    page.click("#first")
    said = {words(page)}
    while not page.locator("#forth").is_disabled():
        page.click("#forth")
        said.add(words(page))
    assert len(said) == 9


RANDOM_USE = """
async ([seed, steps]) => {
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  const pick = (all) => all[Math.floor(random() * all.length)];
  const visible = (element) => element.getClientRects().length;
  const seen = (selector) => pick([...document.querySelectorAll(selector)].filter(visible));
  const values = ["", "0", "1", "2", "3", "5", "-1", "1.5", "nan", "inf", "1e9", "no"];
  const bubbles = true;
  const change = (field) => {
    if (field.type === "radio" || field.type === "checkbox") return field.click();
    field.value = pick(values);
    field.dispatchEvent(new Event("change", { bubbles }));
  };
  const key = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles }));
  const point = (cell) => cell.dispatchEvent(new PointerEvent("pointerover", { bubbles }));
  const actions = [
    () => change(seen("[data-field]")),
    () => change(seen("[data-field], [role=tabpanel] input")),
    () => seen("button:not(:disabled, #copy-code, #share, #paste)").click(),
    () => point(seen("[data-cell]")),
    () => key(pick(["ArrowLeft", "ArrowRight", " "])),
  ];
  for (let step = 0; step < steps; step++) {
    pick(actions)();
    if (step % 10 === 0) await new Promise((done) => setTimeout(done));
  }
}
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_breaks_under_random_use(page: Page, seed: int) -> None:
    page.evaluate(RANDOM_USE, [seed, 60])
    assert words(page)
    page.click("#reset")
    assert numbers(page, "y") == ["3"]


@pytest.mark.parametrize("seed", range(10, 20))
def test_nothing_breaks_under_long_random_use(page: Page, seed: int) -> None:
    page.evaluate(RANDOM_USE, [seed, 600])
    page.click("#reset")
    assert numbers(page, "y") == ["3"]
