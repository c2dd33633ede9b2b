"""The pages in a real browser: no errors, nothing runs out of the page, light and dark, desktop and phone."""

import shutil

import pytest

pytestmark = pytest.mark.e2e
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no Chromium found: install it to run this test")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, pages):
    """open(which, size, scheme) -> page; fails at the end if the page logged anything or asked for another file."""
    opened, problems = [], []

    def visit(which="report", size="desktop", scheme="light", **options):
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else problems.append(r.url))
        page.goto((pages[1] if which == "report" else pages[2]).path.as_uri())
        opened.append(context)
        return page

    yield visit
    for context in opened:
        context.close()
    assert problems == []


@pytest.mark.parametrize("which", ["report", "leaderboard"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_and_follows_the_scheme(visit, which, size, scheme):
    page = visit(which, size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
    small = page.evaluate(
        """[...document.querySelectorAll('svg.plot text')].filter(t => {
            const svg = t.closest('svg');
            return parseFloat(getComputedStyle(t).fontSize) * svg.clientWidth / svg.viewBox.baseVal.width < 8.5;
        }).map(t => t.textContent)"""
    )
    assert small == []  # plot text stays readable


@pytest.mark.parametrize("size", SIZES)
def test_text_contrast_in_the_dark(visit, size):
    page = visit("report", size, "dark")
    colours = page.evaluate(
        "['body', 'figcaption', 'td.muted', 'a'].map(s => getComputedStyle(document.querySelector(s)).color)"
    )
    for colour in colours:
        red, green, blue = (int(v) for v in colour.removeprefix("rgb(").removesuffix(")").split(","))
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue > 120


def test_legend_shows_and_hides_lines_in_all_panels(visit):
    page = visit()
    box = page.locator('fieldset[data-for="regret"] label', has_text="Kernel").locator("input")
    lines = page.locator(f'[data-chart="regret"] g[data-series="{box.get_attribute("data-series")}"]')
    assert lines.count() == 3 and not lines.first.is_visible()
    box.check()
    assert all(lines.nth(i).is_visible() for i in range(3))
    box.uncheck()
    assert not lines.first.is_visible()


def test_reading_a_point_off_the_plot(visit):
    page = visit()
    plot = page.locator('[data-chart="rho"] svg')
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    for share in (0.3, 0.4, 0.5, 0.6):
        page.mouse.move(box["x"] + box["width"] * 0.53, box["y"] + box["height"] * share)
        tip = page.locator('[data-chart="rho"] .tip')
        if tip.is_visible():
            break
    assert " at " in tip.inner_text()
    page.mouse.move(1, 1)
    assert not tip.is_visible()


def test_sorting_a_table(visit):
    page = visit()
    heads = page.locator("#table-utility thead tr:last-child th")
    names = heads.all_inner_texts()
    heads.nth(names.index("Low")).locator("button").click()

    def column():
        cells = page.locator("#table-utility tbody tr td").evaluate_all(
            f"cells => cells.filter(c => c.cellIndex === {names.index('Low')}).map(c => Number(c.dataset.v))"
        )
        return cells

    first = column()
    assert first == sorted(first, reverse=True)
    heads.nth(names.index("Low")).locator("button").click()
    assert column() == sorted(first)
    assert heads.nth(names.index("Low")).get_attribute("aria-sort") == "ascending"


def test_everything_is_there_without_scripts_and_in_print(visit, tmp_path):
    page = visit(java_script_enabled=False)
    assert (
        page.locator("svg.plot").count() == 6
        and page.locator('[data-chart="regret"] path.line').first.is_visible()
    )
    page.emulate_media(media="print", color_scheme="dark")
    pdf = page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000
    assert not page.locator("nav").is_visible()
