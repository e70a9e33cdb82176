"""The report of softmax-suppression."""

from dataclasses import replace

import pytest

from lmrc.report.page import assemble, build, render

pytestmark = pytest.mark.usefixtures("undrawn")


def test_probabilities_within_a_head_have_no_common_sum(description, records, cells_of):
    means = 2 * [[0.25, 0.75, 0.5, 0.5]] + 2 * [[0.5, 0.5, 0.125, 0.875]]
    within = {"kind": "probability within a head", "classes": [0, 1, 2, 3], "means": means}
    heads = [replace(r, extra={"outputs": within}) for r in records if r.method == "steady"]
    run = replace(description, experiment="softmax-suppression", headline="", findings=[])
    contents = build(run, heads)
    html = assemble(run, contents)
    row = cells_of(html, "steady (within each head)")
    assert row[1:3] == ["class 0", "0.25 ± 0.00"]
    assert "new classes take:" not in html  # old and new classes share no probability
    assert "sum to 1." not in html.replace("each task sum to 1", "")
    assert "steady (probability within each head)" in html
    assert contents.headline.startswith("Old classes after two new ones: steady ")


def test_positions_have_no_class_names_where_orders_differ(description, records, cells_of):
    def outputs(*classes):
        means = [[0.1, 0.2, 0.3, 0.4]] * 4
        return {"outputs": {"kind": "probability", "classes": list(classes), "means": means}}

    steady = [r for r in records if r.method == "steady"]
    first = [replace(r, extra=outputs(0, 1, 2, 3)) for r in steady]
    run = replace(description, experiment="softmax-suppression", headline="")
    heads = cells_of(render(run, first), "method")
    assert heads[2:6] == ["class 0", "class 1", "class 2", "class 3"]
    other = [replace(r, method="other", extra=outputs(4, 1, 2, 3)) for r in steady]
    heads = cells_of(render(run, [*first, *other]), "method")
    assert heads[2:6] == ["old 1", "old 2", "new 1", "new 2"]


def test_the_share_that_new_classes_take_is_that_of_old_samples(description, records):
    means = [[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.4, 0.2], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    outputs = {"kind": "probability", "classes": [0, 1, 2, 3], "means": means}
    steady = [replace(r, extra={"outputs": outputs}) for r in records if r.method == "steady"]
    run = replace(description, experiment="softmax-suppression", headline="", findings=[])
    findings = " ".join(build(run, steady).findings)
    assert "new classes take: steady 65 %." in findings  # (0.7 + 0.6) / 2
