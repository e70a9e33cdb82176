"""Parts of a page."""

from dataclasses import replace

import pytest

from lmrc.methods.catalog import METHODS
from lmrc.report import page
from lmrc.report.figures import line_style
from lmrc.report.html import over_seeds
from lmrc.report.page import BUILDERS, assemble, build, render
from lmrc.report.summary import summarize_methods

pytestmark = pytest.mark.usefixtures("undrawn")


def test_names_break_after_dots_and_underscores_and_in_camel_case(description, records):
    own = "nearest_mean.NearestMeanClassifier"
    mine = [replace(r, method=own) for r in records if r.method == "steady"]
    html = page.render(replace(description, recipe={"methods": [own]}), mine)
    parts = "nearest_<wbr>mean.<wbr>Nearest<wbr>Mean<wbr>Classifier"
    assert f"</span>{parts}</span></th>" in html
    assert f'<th scope="col">{parts}</th>' in html
    assert f"<dt>methods</dt><dd>{parts}</dd>" in html


def test_captions_say_how_many_seeds_there_are(records):
    methods = list(dict.fromkeys(record.method for record in records))
    uneven = [r for r in records if r.seed == 0 or r.method == methods[0]]
    alone = [r for r in records if r.seed == 0]
    assert over_seeds(summarize_methods(records)).endswith("over 2 seeds")
    assert over_seeds(summarize_methods(uneven)).endswith("over 1 to 2 seeds")
    assert over_seeds(summarize_methods(alone)) == "one seed"


@pytest.mark.parametrize("experiment", sorted({*BUILDERS, "incremental"}))
def test_a_method_has_one_colour_on_every_page(experiment, description, renamed, colours_of):
    run = replace(description, experiment=experiment)
    for shown in (["LM", "LMRC"], ["Fine-tuning", "my.own.Method", "LMRC", "LM"], ["LM"]):
        found = set(colours_of(render(run, renamed(*shown))))
        assert len(found) == len(shown)  # one colour each, in all tables
        assert ("LM", line_style(list(METHODS).index("lm")).colour) in found
        assert len({colour for _, colour in found}) == len(shown)


def test_the_lines_have_the_colours_of_the_tables(description, renamed, colours_of):
    contents = build(description, renamed("LM", "my.own.Method", "LMRC"))
    lines = contents.drawings["accuracy"].figure.axes[0].lines
    drawn = {(line.get_label().split(":")[0], line.get_color()) for line in lines}
    assert drawn == set(colours_of(assemble(description, contents)))
