import re
import xml.etree.ElementTree as ET

import pytest

from lmrc.methods.catalog import METHODS
from lmrc.report import figures
from lmrc.report.summary import Spread, summarize_methods

LIGHT, DARK = "#fdfdfb", "#131416"  # the page's paper


@pytest.fixture
def accuracy(records):
    return figures.accuracy_over_tasks(summarize_methods(records))


def svg_of(figure):
    return figures.to_svg(figure, name="it", description='shows "a" & b')


def texts(svg):
    return ["".join(text.itertext()) for text in ET.fromstring(svg).findall(".//{*}text")]


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_lines_and_bands_are_the_means_and_deviations(records, accuracy):
    (axes,) = accuracy.axes
    for line, summary in zip(axes.lines, summarize_methods(records), strict=True):
        assert list(line.get_xdata()) == [1, 2, 3]
        assert list(line.get_ydata()) == [100 * spread.mean for spread in summary.accuracy]
    assert len(axes.collections) == 2


def test_one_seed_has_no_band(records):
    alone = [record for record in records if record.seed == 0]
    figure = figures.accuracy_over_tasks(summarize_methods(alone))
    assert not figure.axes[0].collections


def test_the_legend_gives_the_average_incremental_accuracy(accuracy):
    assert "steady: 89.6 ± 2.9" in texts(svg_of(accuracy))


@pytest.mark.parametrize("length", [4, 12, 24, 48, 96])
def test_the_legend_stays_within_the_figure(length):
    names = ["LMRC", "LM", "own." * (length // 4), "Fine-tuning"]
    spreads = [Spread(0.5, 0.1)] * 2
    curves = [figures.Curve(name, figures.line_style(0), [1, 2], spreads) for name in names]
    figure = figures.over_tasks(curves, ylabel="share")
    figures.to_png(figure)
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_many_long_names_leave_the_panel_as_high_as_it_is_with_few():
    """Else what is written beside it would be cut off."""

    def height(n):
        names = [f"LMRC with a long name, number {i}" for i in range(n)]
        spreads = [Spread(0.5, 0.1)] * 2
        curves = [figures.Curve(name, figures.line_style(0), [1, 2], spreads) for name in names]
        figure = figures.over_tasks(curves, ylabel="accuracy over all seen classes (%)")
        figures.to_png(figure)
        return figure.axes[0].get_window_extent().height

    assert height(9) == pytest.approx(height(3), rel=0.05)


def test_what_was_never_measured_is_no_line():
    there = figures.Curve("there", figures.line_style(0), [1, 2], [Spread(0.5, None)] * 2)
    missing = figures.Curve("missing", figures.line_style(1), [1, 2], [None, None])
    shown = texts(svg_of(figures.over_tasks([there, missing], ylabel="share")))
    assert "there" in shown
    assert "missing" not in shown


def test_every_built_in_method_has_a_line_style_of_its_own():
    assert len(figures.LINE_STYLES) >= len(METHODS)


def test_methods_differ_in_colour_marker_and_dashes():
    for part in zip(*figures.LINE_STYLES, strict=True):
        assert len(set(part)) == len(figures.LINE_STYLES)
    assert len({figures.line_style(index) for index in range(40)}) == 40


@pytest.mark.parametrize("paper", [LIGHT, DARK, "#ffffff"])
@pytest.mark.parametrize("style", figures.LINE_STYLES)
def test_lines_stand_out_on_light_and_dark_paper(style, paper):
    assert contrast(style.colour, paper) >= 3


def test_the_svg_takes_the_ink_of_the_page(accuracy):
    svg = svg_of(accuracy)
    assert figures.INK not in svg
    inks = {
        re.search(r"fill: ([^;]+)", text.get("style"))[1]
        for text in ET.fromstring(svg).findall(".//{*}text")
    }
    assert inks == {"currentColor"}
    assert "#000000" not in svg
    assert "#ffffff" not in svg


def test_the_svg_can_stand_beside_others_in_a_page(accuracy):
    svg = svg_of(accuracy)
    root = ET.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert all(name.startswith("it-") for name in ids)
    used = re.findall(r'(?:href="|url\()#([^")]+)', svg)
    assert used
    assert set(used) <= set(ids)
    assert root.get("aria-label") == 'shows "a" & b'
    assert root.find(".//{*}style") is None
    assert root.find(".//{*}image") is None


def test_equal_records_give_equal_bytes(records, accuracy):
    again = figures.accuracy_over_tasks(summarize_methods(records))
    assert svg_of(again) == svg_of(accuracy)


def test_the_svg_file_has_an_ink_for_light_and_for_dark(accuracy):
    file = figures.svg_file(svg_of(accuracy))
    assert ET.fromstring(file.encode()).tag.endswith("svg")
    light, dark = re.findall(r":root\{color:(#\w+)\}", file)
    assert contrast(light, "#ffffff") >= 4.5
    assert contrast(dark, "#111111") >= 4.5
    assert "prefers-color-scheme:dark" in file


def test_the_png_is_an_image(accuracy):
    assert figures.to_png(accuracy).startswith(b"\x89PNG")


def test_task_confusion_shows_shares_of_each_row():
    figure = figures.task_confusion([[3, 1], [0, 0]], ["a b", "c d"], title="LM")
    shown = texts(svg_of(figure))
    assert {"LM", "a b", "c d", "75", "25"} <= set(shown)
    assert shown.count("0") == 2  # a task that has not come: nothing to divide by


def test_dollars_in_names_are_dollars():
    figure = figures.task_confusion([[3, 1], [0, 4]], [r"$\q$", "$5 $9"])
    assert {r"$\q$", "$5 $9"} <= set(texts(svg_of(figure)))


def test_confusion_of_many_tasks_has_no_numbers():
    tasks = 25
    counts = [[int(i == j) for j in range(tasks)] for i in range(tasks)]
    shown = texts(svg_of(figures.task_confusion(counts, [f"task {i}" for i in range(tasks)])))
    assert "100" not in shown
    assert "task 3" not in shown


def test_numbers_on_heat_are_readable_on_light_and_dark_pages():
    for paper, ink in ((LIGHT, "#1b1c1e"), (DARK, "#e8e6e1")):
        mixed = [
            round(
                figures.HEAT_OPACITY * int(figures.HEAT[i : i + 2], 16)
                + (1 - figures.HEAT_OPACITY) * int(paper[i : i + 2], 16)
            )
            for i in (1, 3, 5)
        ]
        assert contrast("#{:02x}{:02x}{:02x}".format(*mixed), ink) >= 4.5


def test_the_users_settings_of_matplotlib_stay(records):
    import matplotlib

    with matplotlib.rc_context({"font.size": 31.0}):
        figure = figures.accuracy_over_tasks(summarize_methods(records))
        figures.to_png(figure)
        assert matplotlib.rcParams["font.size"] == 31.0
    assert figure.axes[0].xaxis.label.get_fontsize() == 9.5


def test_a_pdf_has_its_fonts_embedded(accuracy):
    pdf = figures.to_pdf(accuracy)
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_a_single_method_has_a_baseline(records):
    (summary,) = summarize_methods(r for r in records if r.method == "steady")
    (axes,) = figures.accuracy_over_tasks([summary]).axes
    first = summary.runs[0][-1].task_confusion
    newest = 100 * sum(first[2]) / sum(map(sum, first))
    assert axes.lines[1].get_label() == "the newest task alone"
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(newest)
