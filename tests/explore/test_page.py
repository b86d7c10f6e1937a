"""The page in a real browser: what people do on it, with mouse, finger and keys."""

import io
import json
import re
import shutil
from contextlib import ExitStack

import numpy as np
import pytest
from PIL import Image
from server import serving

import mocapsnet as mc
from mocapsnet.cli import SHIPPED

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers run as root, where Chromium has no sandbox; it opens nothing but our own page.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server():
    with serving(SHIPPED) as server:
        yield server


@pytest.fixture
def start():
    """Start a server of one's own; it outlives the pages on it."""
    with ExitStack() as stack:
        yield lambda *words: stack.enter_context(serving(*words))


@pytest.fixture
def open_page(browser, start):
    """Open an address; at the end nothing may have been complained about or asked for elsewhere."""
    contexts, complaints, asked, expected = [], [], [], []

    def open_page(server, hash="", complaint=None, wait=True, **options):
        context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce"} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on(
            "console",
            lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        expected.extend([complaint] if complaint else [])
        page.goto(server.address + hash)
        if wait:
            page.wait_for_selector("#seen-class")
            page.wait_for_selector("#flow circle")
            page.wait_for_selector("#sweep polyline", state="attached")
            page.wait_for_selector("#moved[data-drawn]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [said for said in complaints if not any(word in said for word in expected)] == []
    assert all(re.match(r"http://127\.0\.0\.1:\d+/|blob:|data:", url) for url in asked), asked


@pytest.fixture
def page(open_page, server):
    return open_page(server)


def pixels(page, name: str) -> str:
    return page.evaluate("(id) => document.getElementById(id).toDataURL()", name)


def changed(page, name: str, before: str) -> str:
    """The pixels of a canvas once they are others."""
    for _ in range(100):
        if (now := pixels(page, name)) != before:
            return now
        page.wait_for_timeout(50)
    pytest.fail(f"#{name} did not change")


def comes_back(page, name: str, before: str) -> None:
    for _ in range(100):
        if pixels(page, name) == before:
            return
        page.wait_for_timeout(50)
    pytest.fail(f"#{name} is not what it was")


def draw(page, *strokes) -> None:
    page.click("#tab-draw")
    page.click("#clear")
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=3)
        page.mouse.up()


def sees(page, name: str) -> None:
    page.wait_for_function("(name) => document.getElementById('seen-class')?.textContent === name", arg=name)


ONE = [(0.5, 0.15), (0.5, 0.85)]
CIRCLE = [(0.5 + 0.25 * np.sin(t), 0.5 - 0.35 * np.cos(t)) for t in np.linspace(0, 2 * np.pi, 24)]
SEVEN = [(0.25, 0.2), (0.75, 0.2), (0.45, 0.85)]


def test_the_page_opens_on_a_digit_that_is_seen_right(page):
    assert page.inner_text("#seen-class") == str(int(mc.data.load("mnist6k").test.labels[0]))
    assert "right" in page.inner_text("#verdict")
    assert page.locator("#grid button").count() == 40
    assert page.locator("#bars button").count() == 10
    assert SHIPPED in page.inner_text("#about")
    assert page.locator("#grid button[aria-pressed=true]").count() == 1


@pytest.mark.parametrize(
    ("strokes", "name"), [([ONE], "1"), ([CIRCLE], "0"), ([SEVEN], "7")], ids=["1", "0", "7"]
)
def test_a_drawn_digit_is_seen(page, strokes, name):
    before = pixels(page, "input")
    draw(page, *strokes)
    changed(page, "input", before)
    sees(page, name)


def test_a_test_image_of_a_class_seen_wrong_can_be_chosen(page):
    page.select_option("#filter-which", "wrong")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid button')].every((b) => b.classList.contains('wrong'))"
    )
    page.locator("#grid button").first.click()
    page.wait_for_selector("#verdict .wrong")
    page.select_option("#filter-which", "right")
    page.select_option("#filter-class", "3")
    page.wait_for_function(
        "() => document.querySelectorAll('#grid button').length > 30 && "
        "[...document.querySelectorAll('#grid button')].every((b) => b.title === '3, seen as 3')"
    )


def test_a_slider_changes_the_picture_and_reset_brings_it_back(page):
    before = pixels(page, "moved")
    slider = page.locator("#sliders input").nth(4)
    slider.fill("0.25")
    after = changed(page, "moved", before)
    assert page.locator("#sliders output").nth(4).inner_text() == "+0.25"
    page.select_option("#span", "1")
    slider.fill("-1")
    changed(page, "moved", after)
    page.click("#reset")
    page.wait_for_function("() => document.querySelector('#moved-note').textContent.endsWith('as it is')")
    comes_back(page, "moved", before)


def test_the_sheet_shows_every_dimension_and_both_pictures_download(page):
    page.click("#show-sheet")
    page.wait_for_function("() => document.getElementById('sheet-canvas').height > 300")
    page.wait_for_function("() => document.getElementById('sheet-note').textContent.includes('0.25')")
    for button, smallest in (("#save", 280), ("#save-sheet", 300)):
        with page.expect_download() as download:
            page.click(button)
        with Image.open(download.value.path()) as saved:
            assert saved.format == "PNG"
            assert min(saved.size) >= smallest
            assert len(saved.convert("RGB").getcolors(10**6)) > 20


def test_clicking_through_the_layers_shows_their_coupling(page):
    columns = page.locator("#flow .column")
    config = mc.load(SHIPPED).config
    titles = []
    for n in range(columns.count()):
        before = pixels(page, "heatmap")
        columns.nth(n).click(position={"x": 30, "y": 10})
        titles.append(page.inner_text("#heat-title"))
        if n != columns.count() - 1:
            changed(page, "heatmap", before)
    assert columns.count() == 2 * config["blocks"] + 2
    assert len(set(titles)) == columns.count()
    assert titles[0].startswith("Coupling into CapsLayer 1")
    assert titles[-1].startswith("Coupling into class capsules: 10 ×")
    page.locator("#heatmap").hover(position={"x": 400, "y": 10})
    assert "sends" in page.inner_text("#heat-note")


def test_a_class_capsule_shows_its_supporters_down_to_the_picture(page):
    before, edges = pixels(page, "primary"), page.locator("#flow .edge").count()
    assert edges > 2
    page.locator("#bars button").nth(3).click()
    changed(page, "primary", before)
    assert page.locator(".chosen-name").first.inner_text() == "3"
    assert page.locator("#bars button[aria-pressed=true] .name").inner_text() == "3"
    page.locator("#flow .class").nth(8).click()
    assert page.locator(".chosen-name").first.inner_text() == "8"


def test_turning_the_image_changes_the_lengths(page):
    before, bars = pixels(page, "input"), page.locator("#bars").inner_text()
    page.fill("#view-turn", "90")
    changed(page, "input", before)
    page.wait_for_function("(old) => document.getElementById('bars').innerText !== old", arg=bars)
    page.fill("#view-scale", "0.5")
    page.check("#mirror")
    page.wait_for_function("() => document.getElementById('sweep-note').textContent.includes('scale')")
    page.click("#view-reset")
    comes_back(page, "input", before)


def test_a_link_restores_what_is_on_the_screen(page, open_page, server):
    draw(page, SEVEN)
    sees(page, "7")
    page.locator("#bars button").nth(2).click()
    page.locator("#sliders input").nth(1).fill("0.2")
    page.fill("#view-turn", "20")
    page.locator("#flow .column").nth(1).click(position={"x": 30, "y": 10})
    page.wait_for_timeout(1500)
    names = ("input", "output", "moved", "primary", "heatmap")
    expected = {name: pixels(page, name) for name in names}
    words = page.inner_text("#bars"), page.inner_text("#heat-title"), page.inner_text("#sliders")
    again = open_page(server, "#" + page.url.partition("#")[2])
    again.wait_for_timeout(1500)
    assert {name: pixels(again, name) for name in names} == expected
    assert (again.inner_text("#bars"), again.inner_text("#heat-title"), again.inner_text("#sliders")) == words


NOTHING = {
    "no code": "%",
    "no state": "{}",
    "null": "null",
    "a script": "<script>",
    "numbers too large": json.dumps({"run": 9, "moves": [1e9], "layer": 99, "cls": 10}),
    "moves that are words": json.dumps({"moves": ["0.1"] * 16}),
    "a view of words": json.dumps({"view": {"turn": "20", "scale": True, "right": None}}),
    "a part of every object": json.dumps({"of": "toString"}),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_link_that_says_nothing_opens_the_page_as_it_is(open_page, server, name):
    page = open_page(server, "#" + NOTHING[name])
    assert page.inner_text("#seen-class") == "7"
    assert {*page.locator("#sliders output").all_inner_texts()} == {"+0.00"}
    assert page.is_hidden("#error")


def test_a_link_pasted_into_the_open_page_is_followed(page):
    page.evaluate("location.hash = encodeURIComponent(JSON.stringify({source: {index: 1}}))")
    sees(page, "2")


def test_a_link_to_an_image_that_is_not_here_opens_the_first(open_page, server):
    page = open_page(server, "#" + json.dumps({"source": {"index": 5000}}), complaint="status of 400")
    assert page.inner_text("#seen-class") == "7"


def test_an_uploaded_picture_is_seen_and_paper_is_turned_dark(page, tmp_path):
    digits = mc.data.load("mnist6k").test
    chosen = int((digits.labels == 2).nonzero()[0])
    Image.fromarray(255 - digits.images[chosen, 0].numpy()).resize((140, 140)).save(tmp_path / "two.png")
    page.click("#tab-upload")
    page.set_input_files("#file", tmp_path / "two.png")
    sees(page, "2")
    assert page.is_checked("#invert")


def test_a_file_that_is_no_picture_is_said_and_the_page_goes_on(open_page, server, tmp_path):
    page = open_page(server, complaint="status of 400")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    page.click("#tab-upload")
    page.set_input_files("#file", tmp_path / "broken.png")
    page.wait_for_selector("#error:visible")
    assert "no picture" in page.inner_text("#error")
    draw(page, ONE)
    sees(page, "1")
    assert page.is_hidden("#error")


def test_everything_can_be_reached_with_keys(page):
    def focused() -> str:
        return page.evaluate("document.activeElement.id || document.activeElement.getAttribute('class')")

    reached = set()
    for _ in range(140):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.closest('section')?.id ?? document.activeElement.id")
        )
    assert {"choose", "sees", "move", "view", "inside"} <= reached
    page.focus("#tab-test")
    page.keyboard.press("ArrowRight")
    assert focused() == "tab-draw"
    assert page.is_visible("#pad")
    page.keyboard.press("ArrowLeft")
    page.locator("#grid button").nth(1).focus()
    page.keyboard.press("Enter")
    sees(page, "2")
    page.locator("#bars button").nth(5).focus()
    page.keyboard.press("Space")
    assert page.locator(".chosen-name").first.inner_text() == "5"
    before = pixels(page, "moved")
    page.locator("#sliders input").nth(0).focus()
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    changed(page, "moved", before)
    page.locator("#flow .column").nth(2).focus()
    page.keyboard.press("Enter")
    assert page.inner_text("#heat-title").startswith("Coupling into block 1, layer 2")
    assert "column" in focused()


def test_a_phone_shows_it_all_and_takes_a_finger(open_page, server):
    page = open_page(server, viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    # From the first layer to the classes without scrolling.
    assert page.evaluate("(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(flow)") <= 0
    page.tap("#tab-draw")
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    session = page.context.new_cdp_session(page)
    for n in range(12):
        kind = "touchStart" if n == 0 else "touchMove"
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] * (0.15 + 0.06 * n)}
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    sees(page, "1")
    for button in page.locator("main button:visible, main select:visible").all():
        assert button.bounding_box()["height"] >= 24


@pytest.fixture(scope="module")
def two(runs):
    with serving(runs / "momentum", runs / "residual") as server:
        yield server


def test_two_runs_stand_side_by_side(two, open_page):
    page = open_page(two)
    assert page.locator("#runs button").all_inner_texts() == ["momentum", "residual"]
    assert page.locator("#others figcaption").all_inner_texts() == ["residual"]
    assert page.locator("#depth-chart polyline").count() == 6
    assert sorted(page.locator("#depth-chart .strong").all_text_contents()) == ["f", "velocity", "x"]
    assert page.inner_text("#depth-text").endswith("momentum (MoCapsNet, γ 0.9); residual (ResCapsNet).")
    lengths = [told.split() for told in page.locator("#bars .value").all_inner_texts()]
    page.locator("#runs button").nth(1).click()
    page.wait_for_function("() => document.getElementById('about').textContent.startsWith('residual')")
    assert page.locator("#bars .name").all_inner_texts() == ["ant", "bee", "cat", "dog"]
    # A run keeps its place and its colour, whichever is chosen.
    assert [told.split() for told in page.locator("#bars .value").all_inner_texts()] == lengths
    colours = (
        "(place) => [...document.querySelectorAll(place)].map((e) => getComputedStyle(e).backgroundColor)"
    )
    fills = page.evaluate(colours, "#bars button:first-child .fill")
    assert fills == page.evaluate(colours, "#runs .mark")
    assert len({*fills}) == 2


def test_a_third_run_has_its_own_name_picture_and_lengths(runs, open_page, start):
    server = start(runs / "momentum", runs / "residual", runs / "plain")
    page = open_page(server)
    reconstructions = {}
    for n, name in enumerate(["momentum", "residual", "plain"]):
        page.locator("#runs button").nth(n).click()
        page.wait_for_function(
            "(name) => document.getElementById('about').textContent.startsWith(name)", arg=name
        )
        assert page.inner_text("#output-note") == name
        others = page.locator("#others figcaption").all_inner_texts()
        assert {name, *others} == {"momentum", "residual", "plain"}
        reconstructions[name] = pixels(page, "output")
        assert page.inner_text("#verdict").startswith(f"{name} sees ")
    assert len({*reconstructions.values()}) == 3
    told = [server.ask("api/see", {"run": run, "index": 0})[1]["lengths"] for run in range(3)]
    for k, words in enumerate(page.locator("#bars .value").all_inner_texts()):
        assert words == " · ".join(f"{lengths[k]:.2f}" for lengths in told)


def test_a_network_without_a_trunk_says_so(runs, open_page, start):
    server = start(runs / "plain")
    page = open_page(server)
    assert page.inner_text("#depth-text").startswith("There is no trunk here")
    assert page.is_hidden("#depth-chart")
    assert page.locator("#flow .column").count() == 2


def test_the_words_of_the_depths_stand_at_the_first_run_that_has_a_trunk(runs, open_page, start):
    page = open_page(start(runs / "plain", runs / "residual", runs / "momentum"))
    words = page.locator("#depth-chart .strong")
    assert sorted(words.all_text_contents()) == ["f", "step", "x"]
    colours = "(words) => [...new Set(words.map((word) => word.style.fill))]"
    (colour,) = words.evaluate_all(colours)
    lines = page.locator("#depth-chart polyline").evaluate_all(
        "(lines) => lines.map((line) => line.getAttribute('stroke'))"
    )
    # The first run's lines, then the second's.
    assert {*lines[3:6]} != {*lines[6:]}
    painted = (
        "(colour) => { const e = document.createElement('i'); e.style.fill = colour; return e.style.fill; }"
    )
    assert page.evaluate(painted, lines[3]) == colour


def test_bars_of_named_classes_begin_at_one_line(two, open_page):
    page = open_page(two)
    tracks = [track.bounding_box() for track in page.locator("#bars .track").all()]
    assert len({(box["x"], box["width"]) for box in tracks}) == 1


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_a_hundred_classes_leave_the_layers_and_the_chosen_one_in_sight(runs, open_page, start, viewport):
    server = start(runs / "hundred")
    page = open_page(server, "#" + json.dumps({"cls": 90}), viewport=viewport)
    assert page.locator("#flow .class").count() == 24
    assert page.text_content("#flow .class.on text") == "90"
    assert "24 of 100" in page.locator("#flow text").all_text_contents()

    def inside(place, box):
        return box["y"] <= place["y"] and place["y"] + place["height"] <= box["y"] + box["height"]

    flow = page.locator("#flow").bounding_box()
    for circle in page.locator("#flow .ring").all():
        assert inside(circle.bounding_box(), flow)
    bar = page.locator("#bars button[aria-pressed=true]")
    assert inside(bar.bounding_box(), page.locator("#bars").bounding_box())
    assert page.evaluate("document.body.scrollHeight") < 7000


def test_the_page_looks_as_the_readme_shows_it(open_page, server, request):
    """Light, dark and on a phone; --screenshots FOLDER keeps what was looked at."""
    folder = request.config.getoption("--screenshots")
    state = json.dumps({"source": {"index": 1}, "moves": [0.0] * 16, "view": {"turn": 0}})
    looks = {"light": (DESK, "light"), "dark": (DESK, "dark"), "phone": (PHONE, "light")}
    backgrounds = set()
    for name, (viewport, scheme) in looks.items():
        page = open_page(server, "#" + state, viewport=viewport, color_scheme=scheme)
        page.wait_for_timeout(500)
        shot = page.screenshot(full_page=name != "phone")
        with Image.open(io.BytesIO(shot)) as picture:
            colours = picture.convert("RGB").getcolors(10**7)
        assert len(colours) > 200
        backgrounds.add(max(colours)[1])
        if folder:
            with Image.open(io.BytesIO(shot)) as picture:
                picture.convert("RGB").save(f"{folder}/explorer-{name}.png", optimize=True)
    assert len(backgrounds) == 2
