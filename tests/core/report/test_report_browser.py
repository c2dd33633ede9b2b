"""The pages in a real browser: no errors, nothing runs out of the page, light and dark, desktop and phone."""

from functools import partial

import numpy as np
import pytest
from fake_replays import fake_pool, fake_problem
from log_inputs import log_inputs

pytestmark = pytest.mark.e2e
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A profile page."""
    from cabs_core.data.outcomes import Outcomes, make_splits
    from cabs_core.report.profile.page import write_profile

    problem, pool = fake_problem(n=200), fake_pool("one")
    n = len(problem.scores)
    outcomes = Outcomes(
        query_ids=problem.query_ids,
        prompts=[f"prompt {i} " + "w" * (i % 50) for i in range(n)],
        tasks=np.array([f"task {i % 3}" for i in range(n)]),
        arms=problem.arms,
        scores=problem.scores,
        costs=problem.costs,
    )
    path = tmp_path_factory.mktemp("profile") / "profile.html"
    return write_profile(
        outcomes, make_splits(outcomes, pool.split), pool, path, links=(("Report", "index.html"),)
    )


@pytest.fixture(scope="module")
def log(pages, tmp_path_factory):
    """The page of a pool whose source is a log, without scores of a part of its calls."""
    from cabs_core.data.outcomes import Outcomes
    from cabs_core.report import build_logged_report
    from cabs_core.report.pool_answer import answer_of_pool

    artifacts, problem = pages[0], fake_problem(n=90)
    n, k = problem.scores.shape
    table = Outcomes(
        query_ids=problem.query_ids,
        prompts=[f"prompt {i}" for i in range(n)],
        tasks=problem.tasks,
        arms=problem.arms,
        scores=problem.scores,
        costs=problem.costs,
        answered=np.eye(k)[np.arange(n) % k],
        report={"origin": "log.jsonl", "without_score": 30},
    )
    folder = tmp_path_factory.mktemp("log")
    table.save(folder / "outcomes")
    about = {"title": "A log", "description": "", "policy": "hier_mix", "rho": 500.0}
    answered = partial(answer_of_pool, log_inputs(table))
    return build_logged_report(
        "one", artifacts, folder, outcomes=folder / "outcomes", answered=answered, **about
    ).path


@pytest.fixture
def visit(browser, pages, request):
    """open(which, size, scheme) -> page; fails at the end if the page logged anything or asked for another
    file."""
    opened, problems = [], []
    built = {"report": pages[1].path, "leaderboard": pages[2].path}

    def visit(which="report", size="desktop", scheme="light", **options):
        width, height = SIZES[size]
        path = built.get(which) or request.getfixturevalue(which)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else problems.append(r.url))
        page.goto(path.as_uri())
        opened.append(context)
        return page

    yield visit
    for context in opened:
        context.close()
    assert problems == []


def draw(page, figures="figure.chart"):
    """Scroll to these figures, so that they come near and are drawn."""
    for figure in page.locator(figures).all():
        figure.scroll_into_view_if_needed()
    from playwright.sync_api import expect  # not `wait_for_function`, whose polling the page's policy forbids

    expect(page.locator(f"{figures}:not([data-ready])")).to_have_count(0, timeout=60_000)


#: places whose content is wider than they are, the text of figures aside
SIDEWAYS = """[...document.querySelectorAll('figure.table > .scroll, pre')]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel || e.textContent)"""


@pytest.mark.parametrize("which", ["report", "leaderboard", "profile", "log"])
@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_page_fits_and_follows_the_scheme(visit, axe, which, size, scheme):
    page = visit(which, size, scheme)
    draw(page)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(SIDEWAYS) == [], "every column is to be seen"
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
    small = page.evaluate(
        """[...document.querySelectorAll('.drawing svg text')]
            .filter(t => t.getBoundingClientRect().height < 9 && t.textContent).map(t => t.textContent)"""
    )
    assert small == []  # plot text stays readable
    if which != "leaderboard":
        fills = page.evaluate(
            "[...document.querySelectorAll('.drawing svg text')].map(t => getComputedStyle(t).fill)"
        )
        # the page's colours reach the drawing
        assert fills and not any(f in ("rgb(0, 0, 0)", back, "none") for f in fills)
    assert axe(page) == []


def test_every_drawing_is_there_before_any_script_and_in_print(visit, tmp_path):
    page = visit(java_script_enabled=False)
    assert page.locator(".drawing > svg").count() == 6 and page.locator(".drawing > svg").first.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    pdf = page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000
    assert not page.locator("nav").is_visible() and not page.locator(".controls").is_visible()


@pytest.mark.parametrize("which", ["report", "leaderboard"])
def test_tables_keep_their_headers_in_print(visit, which):
    """Headers are buttons that sort: hidden buttons, or ones that Chromium does not repeat on the next page,
    lose them."""
    page = visit(which)
    page.emulate_media(media="print")
    bare = page.evaluate(
        """[...document.querySelectorAll('figure.table thead th')].filter(h => {
            const text = document.createRange(); text.selectNodeContents(h);
            const button = h.querySelector('button');
            return h.textContent.trim() && (!text.getBoundingClientRect().height
              || button && getComputedStyle(button).display !== 'contents');
        }).map(h => h.textContent)"""
    )
    assert bare == [] and page.locator("figure.table thead button").count() > 3


REGRET = 'figure[data-chart="regret"]'


def test_the_legend_shows_and_hides_a_line(visit):
    page = visit()
    draw(page, REGRET)
    figure = page.locator(REGRET)
    count = "f => f.querySelectorAll('.drawing .mark-symbol path').length"
    before = figure.evaluate(count)
    box = figure.locator(".legend label", has_text="Kernel").locator("input")
    box.focus()
    page.keyboard.press("Space")  # by keyboard alone
    page.wait_for_function(f"({count})(document.querySelector('{REGRET}')) > {before}")
    page.keyboard.press("Space")
    page.wait_for_function(f"({count})(document.querySelector('{REGRET}')) === {before}")


def test_a_choice_changes_what_is_drawn(visit):
    page = visit()
    draw(page, REGRET)
    figure = page.locator(REGRET)
    before = figure.locator(".drawing").inner_html()
    figure.get_by_label("absolute").check()
    drawing = f"document.querySelector('{REGRET} .drawing')"
    page.wait_for_function(f"before => {drawing}.innerHTML !== before", arg=before)


def test_reading_a_point_off_the_plot(visit):
    page = visit()
    draw(page, 'figure[data-chart="rho"]')
    figure = page.locator('figure[data-chart="rho"]')
    point = figure.locator(".drawing .mark-symbol path").first
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    assert "cost sensitivity" in tip.inner_text()


def test_sorting_a_table(visit):
    page = visit()
    draw(page)  # a figure that is drawn while the page scrolls would move the button away from the click
    heads = page.locator("#table-utility thead tr:last-child th")
    names = heads.all_inner_texts()
    place = names.index("Low")

    def column():
        return page.locator("#table-utility tbody tr td").evaluate_all(
            f"cells => cells.filter(c => c.cellIndex === {place}).map(c => Number(c.dataset.v))"
        )

    heads.nth(place).locator("button").click()
    first = column()
    assert first == sorted(first, reverse=True)
    heads.nth(place).locator("button").click()
    assert column() == sorted(first)
    assert heads.nth(place).get_attribute("aria-sort") == "ascending"
