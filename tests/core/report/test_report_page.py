"""The report: what it says is what the marts say, it needs nothing but itself, and it copes with little
data."""

import csv
import io
import json
import re
import shutil
import struct
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest
from built_marts import build_models
from fake_replays import fake_problem

from cabs_core.base.errors import PoolError, ResultError
from cabs_core.report import build_leaderboard, build_report, findings
from cabs_core.report.data import PoolData, read_mart
from cabs_core.report.evidence import load_evidence
from cabs_core.report.names import label
from cabs_core.report.sections import efficiency, encoders, utility
from cabs_core.report.tables import PageTable, estimate, number, percent, words


class Outline(HTMLParser):
    """Collects what the tests ask about, and checks that tags close in order."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.addresses, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.stack == [], f"unclosed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.addresses += [v for k, v in attrs if k in ("href", "src", "srcset", "action")]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.stack and self.stack.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag):
        return sum(t == tag for t, _ in self.tags)


@pytest.fixture(scope="module")
def outline(pages):
    return Outline(pages[1].path.read_text(encoding="utf-8"))


def csv_table(report, name):
    """Rows of a table beside the page, as dictionaries."""
    with (report.path.parent / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_page_is_well_formed_and_needs_no_other_file(outline):
    for address in outline.addresses:
        assert address.startswith(("data:", "#", "../index.html", "verdict.")), address
    names = {t for t, _ in outline.tags}
    assert not names & {"iframe", "object", "embed", "img", "base"}
    policy = next(a["content"] for t, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "eval" not in policy


def test_every_table_has_a_caption_or_summary_and_every_figure_a_text_and_its_data(outline, pages):
    page = pages[1].path.read_text(encoding="utf-8")
    figures = re.findall(r'<figure class="chart".*?</figure>', page, flags=re.S)
    keys = {re.search(r'data-chart="(\w+)"', f).group(1) for f in figures}
    assert keys == {"overview", "frontiers", "regret", "rho", "shares", "calibration"}
    for figure in figures:
        assert re.search(r'class="drawing" role="img" aria-label="[^"]{30,}"', figure)
        spec = json.loads(
            re.search(r'<script type="application/json">(.*?)</script>', figure, flags=re.S).group(1)
        )
        assert spec["width"] == "container" and "vega-lite" in spec["$schema"]
        titles = re.findall(r'"title": ?"([^"]{4,})"', json.dumps(spec))
        assert any("USD" in t or "(" in t or "score" in t or "share" in t for t in titles), titles
        assert len(re.findall(r"<tr>", figure.split('class="data"')[1])) > 2
    tables = re.findall(r'<figure class="table".*?</figure>', page, flags=re.S)
    assert len(tables) >= 8 and all("<caption>" in t for t in tables)


def test_one_library_and_no_more_than_the_page_may_weigh(pages):
    page = pages[1].path.read_text(encoding="utf-8")
    assert page.count('id="vega"') == 1 and len(page.encode()) < 2_500_000


def test_synthetic_data_are_labelled_on_page_markdown_and_leaderboard(pages):
    _, report, leaderboard = pages
    assert "Synthetic data" in report.path.read_text() and "**Synthetic data.**" in report.markdown
    assert "(synthetic)" in leaderboard.path.read_text() and report.summary["synthetic"] is True


def test_logged_traffic_is_estimated_or_refused_with_the_reason(pages):
    _, report, _ = pages
    page = report.path.read_text(encoding="utf-8")
    section = re.search(r'<section id="logged">.*?</section>', page, flags=re.S).group()
    text = " ".join(Outline(section).text)
    estimated = ("0.400 to 0.600", "+0.100", "90 scored decisions on 60 prompts")
    for words_of_row in (*estimated, "the log is too short", "no replay of it"):
        assert words_of_row in text, words_of_row
    assert 'href="#logged"' in page
    rows = csv_table(report, "logged")
    assert [row["Policy"] for row in rows] == [label("hier_mix"), label("lin_ucb")]
    assert float(rows[0]["utility: DR"]) == 0.5 and rows[1]["utility: DR"] == ""


def test_ranking_says_what_the_marts_say(pages):
    artifacts, report, _ = pages
    board = read_mart(artifacts, "mart_policy_leaderboard", "one").set_index("policy")
    real = board[board["rank"].notna()].sort_values("rank")
    best, second = real.index[:2]
    pair = PoolData("one", artifacts).pair(best, second)
    assert report.summary["best_policy"] == best and report.summary["runner_up"] == second
    text = report.path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert f"the best router is {label(best)}, with a mean utility of {real.iloc[0]['utility']:.3f}" in text
    low, high = (f"{pair[k]:+.3f}".replace("-", "−") for k in ("low", "high"))
    noise = "significant" if pair["significant_adjusted"] else "within the noise"
    lead = f"{label(second)}, is +{pair['difference']:.3f} (95 % interval {low} to {high}, {noise})"
    assert lead in text


def test_best_value_of_every_column_is_bold_once(pages):
    artifacts, report, _ = pages
    rows = list(csv.DictReader((report.path.parent / "tables/utility.csv").open()))
    board = read_mart(artifacts, "mart_utility_by_regime", "one")
    for regime in ("low", "medium", "high", "overall"):
        best = board[(board["regime"] == regime) & (board["rank"] == 1)].iloc[0]
        row = next(r for r in rows if r["Policy"] == label(best["policy"]))
        assert float(row[f"utility: {regime.capitalize()}"]) == best["utility"]
        assert float(row[f"utility: {regime.capitalize()} SE"]) == pytest.approx(best["utility_se"], abs=6e-4)
    page = report.path.read_text()
    table = page[page.index('id="table-utility"') :].split("</table>")[0]
    bold = re.findall(r'class="n best"[^>]*data-v="([^"]+)"', table)
    for regime in ("low", "medium", "high", "overall"):
        best = board[(board["regime"] == regime) & (board["rank"] == 1)]["utility"].iloc[0]
        assert bold.count(str(best)) == 1


def test_a_significant_loss_is_bold_but_not_in_the_colour_of_the_best(pages):
    page = pages[1].path.read_text()
    sure, best = (re.findall(rf'<td class="n {name}"[^>]*>([^<]*)', page) for name in ("sure", "best"))
    assert sure and all(text[0] in "-−" for text in sure)
    assert best and not any(text[0] in "-−" for text in best)


def test_paper_figures_stand_beside_ours(pages):
    rows = {row["Policy"]: row for row in csv_table(pages[1], "utility")}
    assert float(rows["CABS-D linear"]["paper (all-MiniLM-L6-v2): High"]) == 0.3981
    assert rows["Hier-mix"]["paper (all-MiniLM-L6-v2): High"] == ""
    assert any(name.startswith("paper, utility") for name in csv_table(pages[1], "coupled")[0])


def test_images_are_small_png_files_on_disk_and_in_memory(pages):
    _, report, _ = pages
    assert len(report.images) == 6
    for name, image in report.images.items():
        assert image.startswith(b"\x89PNG") and len(image) < 100_000
        width, height = struct.unpack(">II", image[16:24])
        assert width >= 400 and height >= 200
        assert (report.path.parent / f"{name}.png").read_bytes() == image


def test_tables_are_also_csv(pages):
    folder = pages[1].path.parent / "tables"
    names = {p.stem for p in folder.glob("*.csv")}
    of_marts = "utility coupled presets efficiency latency arms encoders solver oracles tuning"
    assert names >= set(of_marts.split())
    for name in names:
        rows = list(csv.reader((folder / f"{name}.csv").open(encoding="utf-8")))
        assert len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])}, name
        assert len(set(rows[0])) == len(rows[0]) and all(rows[0]), f"{name}: {rows[0]}"
        assert not {"nan", "None", "inf"} & {cell for row in rows for cell in row}, name


@pytest.mark.slow
def test_from_marts_alone_the_page_lacks_what_needs_queries_or_files_of_stages_and_nothing_else(
    pages, tmp_path
):
    artifacts, report, _ = pages
    shutil.copytree(artifacts / "marts", tmp_path / "marts", ignore=shutil.ignore_patterns("*.duckdb"))
    bare = build_report("one", tmp_path)
    assert set(report.images) - set(bare.images) == {"shares", "calibration"}
    whole_files, bare_files = ({p.name for p in (r.path.parent / "tables").iterdir()} for r in (report, bare))
    lacking = {name.partition(".")[0] for name in whole_files - bare_files}
    assert lacking == set("tasks propensities oracles oracle_arms tuning budgets".split())
    assert bare_files <= whole_files
    for name in bare_files:
        parts = [(r.path.parent / "tables" / name).read_bytes() for r in (report, bare)]
        assert parts[0] == parts[1], name
    verdict, full = (json.loads((r.path.parent / "verdict.json").read_text()) for r in (bare, report))
    assert verdict["facts"]["router"] == full["facts"]["router"]
    Outline(bare.path.read_text(encoding="utf-8"))


def test_replays_of_another_problem_are_not_taken_for_evidence(pages, tmp_path):
    data = PoolData("one", pages[0])
    assert load_evidence(data) is not None
    fake_problem(60, 5, seed=9).save(tmp_path / "test")
    assert load_evidence(data, problem=tmp_path) is None


def test_encoders_are_compared_in_words_and_with_paired_differences(pages):
    artifacts, report, _ = pages
    mart = read_mart(artifacts, "mart_encoder_robustness")
    mart = mart[mart["regime"] == "overall"].set_index(["pool", "policy"])
    rows = {row["Policy"]: row for row in csv_table(report, "encoders")}
    row, twin = rows["Hier-mix"], mart.loc[("two", "hier_mix")]
    assert float(row["MiniLM minus: TF-IDF + SVD"]) == pytest.approx(-twin["difference"])
    assert float(row["MiniLM minus: TF-IDF + SVD SE"]) == pytest.approx(twin["difference_se"], abs=6e-4)
    page = report.path.read_text(encoding="utf-8")
    assert "TF-IDF + SVD instead of MiniLM" in page
    mirrored = csv.DictReader(io.StringIO(encoders(PoolData("two", artifacts)).csv()))
    row = next(row for row in mirrored if row["Policy"] == "Hier-mix")
    assert float(row["TF-IDF + SVD minus: MiniLM"]) == pytest.approx(twin["difference"])


@pytest.mark.slow
def test_page_is_the_same_when_built_again_and_elsewhere(pages, tmp_path):
    artifacts, report, _ = pages
    again = build_report("one", artifacts, tmp_path / "page")
    assert again.path == tmp_path / "page/index.html"
    assert again.path.read_bytes() == report.path.read_bytes() and again.images == report.images


def test_leaderboard_links_to_every_pool(pages):
    artifacts, _, leaderboard = pages
    outline = Outline(leaderboard.path.read_text())
    links = {a for a in outline.addresses if a.endswith("index.html")}
    assert links == {"one/index.html", "two/index.html"}
    assert (leaderboard.path.parent / "one/index.html").is_file()
    rows = csv_table(leaderboard, "leaderboard")
    board = read_mart(artifacts, "mart_policy_leaderboard")
    assert {r["Policy"] for r in rows} == {label(p) for p in board["policy"]}
    for row in rows:
        lines = board[board["policy"].map(label) == row["Policy"]].set_index("pool")
        ranks = lines["rank"].dropna()
        texts = (f"{ranks[p]:.0f}" if p in ranks.index else "–" for p in ("one", "two"))
        assert row["Rank in each pool"] == (", ".join(texts) if len(ranks) else "–")
        if len(ranks):
            assert float(row["Mean rank"]) == ranks.mean() and float(row["First in"]) == (ranks == 1).sum()
        if lines["gap_closed"].notna().any():
            figures = [float(row[name]) for name in ("Regret gap closed", "least", "most")]
            assert figures == pytest.approx([lines["gap_closed"].agg(f) for f in ("mean", "min", "max")])


def test_oracle_and_tuning_tables(pages):
    heads = csv_table(pages[1], "oracles")
    assert [row["Candidate"] for row in heads] == ["blend (in use)", "ridge"]
    figures = ("Validation", "Test", "Minus in use", "Minus in use SE")
    assert [float(heads[1][name]) for name in figures] == [0.21, 0.2036, 0.001, 0.0004]
    arms = csv_table(pages[1], "oracle_arms")
    assert [(row["Model"], row["Mean score"], row["Score R²"]) for row in arms] == [
        ("model-0", "0.5", ""),
        ("model-1", "0.25", ""),
    ]
    options = {row["Policy"]: row["Chosen options"] for row in csv_table(pages[1], "tuning")}
    assert options["LinUCB"] == "as preset"
    assert options["CABS-D linear (tuned)"] == 'eta = 0.3, experts = [["lin_ts", {}]]'


# ---- little data, hostile data, no data


@pytest.mark.slow
def test_one_policy_one_rho_one_trial(small):
    report = build_report("lone", small, profile_link="profile.html")
    page = report.path.read_text(encoding="utf-8")
    Outline(page)
    assert report.summary["best_policy"] == "random" and "runner_up" not in report.summary
    assert report.summary["verdict"] in page and "random" in report.summary["verdict"].lower()
    for absent in ("RQ1", "Oracle quality", "Tuning on", "Encoder robustness", "What one decision"):
        assert absent not in page  # what a pool does not have is not on its page
    assert '<a href="profile.html">Profile of the data</a>' in page and '<a href="../index.html">' in page


@pytest.mark.slow
def test_a_single_query(small):
    report = build_report("query", small)
    page = report.path.read_text(encoding="utf-8")
    Outline(page)
    for text in (page.partition('<script type="text/plain"')[0], report.markdown):
        assert not re.search(r"\bnan\b", text, flags=re.I)


@pytest.mark.slow
def test_equal_winners_share_the_first_place_and_a_static_winner_is_set_beside_the_best_online_router(small):
    report = build_report("equal", small)
    text = report.path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "CARROT and Kernel" in text
    online = re.search(r"the best router that learns is (\w+): −0\.\d+ \(95 % interval", text).group(1)
    assert f"over the runner-up, {online}, is +0." in text
    verdict = json.loads((report.path.parent / "verdict.json").read_text())
    assert verdict["best_that_learns"]["difference"] < 0.0


def test_only_upper_bounds_cannot_be_ranked(small):
    with pytest.raises(ResultError, match="no real router"):
        build_report("bounds", small)
    assert "No ranking: no real router" in build_leaderboard(small).path.read_text()


@pytest.mark.slow
def test_text_from_pool_and_table_is_escaped(small):
    report, board = build_report("hostile", small), build_leaderboard(small)
    for path in (report.path, board.path):
        text = path.read_text()
        assert "<script>alert" not in text and "&lt;script&gt;" in text
        Outline(text)
    assert "'=cmd()" in (report.path.parent / "tables/arms.csv").read_text()


def test_no_marts_and_unknown_pool(tmp_path, pages):
    with pytest.raises(ResultError, match="SQL marts"):
        build_report("one", tmp_path)
    with pytest.raises(ResultError, match=r"'three'.*one, two.*cabs run --pool three"):
        build_report("three", pages[0])
    with pytest.raises(PoolError):
        build_report("../escape", pages[0])


def test_empty_leaderboard(tmp_path):
    build_models(tmp_path, "mart_policy_leaderboard", "mart_off_policy")
    board = build_leaderboard(tmp_path)
    assert "No replays yet" in board.path.read_text() and board.summary == {"pools": 0, "policies": 0}


def test_a_damaged_mart_is_named(tmp_path):
    (tmp_path / "marts").mkdir()
    (tmp_path / "marts/stg_pools.parquet").write_bytes(b"no")
    with pytest.raises(ResultError, match=r"stg_pools\.parquet cannot be read"):
        build_report("one", tmp_path)


# ---- small parts


def test_cells():
    assert estimate(0.25, 0.0004).small == "± 0.0004" and estimate(0.25, 0.0006).small == "± 0.001"
    assert estimate(0.25, 0.0).small == "± 0.000" and estimate(0.25, 0.012).small == "± 0.012"
    assert estimate(0.12345, 0.0042).text == "0.123" and estimate(0.12345, 0.0042).small == "± 0.004"
    assert number(-0.0001, 3, signed=True).text == "0.000" and number(-1.5, 1).text == "−1.5"
    assert number(-0.0001, 3).text == "0.000" and number(-0.4, 0, prefix="$").text == "$0"
    assert number(None).text == "–" and number(float("nan")).raw == "" and percent(-0.001).text == "0 %"
    assert percent(0.256, 1).text == "25.6 %" and words(None).text == "–"


def test_a_name_is_no_formula():
    table = PageTable(
        "k", "c", ["[9pt] x", "=1+1"], [[words("*star"), words("+cmd")], [words("(a)"), words("\t=1")]]
    )
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert rows == [["[9pt] x", "'=1+1"], ["*star", "'+cmd"], ["(a)", "'\t=1"]]


MANY = (
    "knn ridge carrot lin_ts lin_ucb cabs_c_linear hier_mix square_cb epsilon_greedy kernel_ridge best_single"
)


@pytest.mark.parametrize(
    ("points", "holders"),
    [
        ({"knn": 2}, "all belong to {knn} (2)."),
        ({"knn": 3, "ridge": 2, "carrot": 1}, "all belong to {knn} (3), {ridge} (2) and {carrot} (1)."),
        (
            dict.fromkeys(MANY.split(), 1) | {"knn": 3, "ridge": 2, "carrot": 2},
            "the policies with the most are {knn} (3), {ridge} (2) and {carrot} (2).",
        ),
    ],
)
def test_the_frontier_is_ascribed_to_those_who_hold_it(points, holders):
    front = [policy for policy, count in points.items() for _ in range(count)]
    marts = {
        "aiq": pd.DataFrame({"policy": ["knn"], "kind": ["static"], "aiq": [0.5], "aiq_se": [0.01]}),
        "pareto_frontier": pd.DataFrame({"policy": front, "on_pool_frontier": True}),
    }
    text = findings.rq3(SimpleNamespace(mart=marts.__getitem__, reference="knn"))
    expected = f"{len(front)} settings of ρ are not dominated by any other; "
    assert text.endswith(expected + holders.format_map({policy: label(policy) for policy in points}))


def test_a_pool_without_the_reference_is_compared_with_nothing(small):
    """A column of dashes says nothing."""
    data = PoolData("unreferenced", small)
    assert not [
        name for table in (utility(data), efficiency(data)) for name in table.headers if "LinUCB" in name
    ]
    assert "Full-feedback gap closed" not in efficiency(data).headers
    page = build_report("unreferenced", small).path.read_text(encoding="utf-8")
    assert "Relative to LinUCB" not in page and "to LinUCB that sees" not in page
