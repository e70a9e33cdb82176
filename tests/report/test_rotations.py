"""The report of `rotations`."""

from dataclasses import replace

from lmrc.report.page import assemble, build


def test_rotations_show_accuracy_against_seconds(description, steady):
    slow = [
        replace(r, method="slow", record=replace(r.record, train_seconds=6.0, test_seconds=2.0))
        for r in steady
    ]
    run = replace(description, experiment="rotations", headline="", recipe={"methods": ["a", "b"]})
    contents = build(run, [*steady, *slow])
    # No seconds: other processes may have run at the same time.
    assert contents.headline == "steady: 89.6 %; slow: 89.6 % average incremental accuracy."
    assert "of runs that may have shared the machine" in assemble(run, contents)
    (axes,) = contents.drawings["cost"].figure.axes  # of training: testing is too short to time
    points = [line for line in axes.lines if line.get_marker() in ("<", ">")]
    assert sorted({float(line.get_xdata()[0]) for line in points}) == [4.5, 18.0]
    assert {round(float(line.get_ydata()[0]), 1) for line in points} == {89.6, 75.0}
    assert "| slow | 89.6 ± 2.9 | 75.0 ± 0.0 | 18 | 2.00 |" in contents.markdown


def test_one_seed_has_no_error_bars(description, steady):
    """Their caps would be a cross in each hollow mark."""
    run = replace(description, experiment="rotations", headline="", recipe={"methods": ["a"]})

    def marks(records):
        axes = build(run, records).drawings["cost"].figure.axes[0]
        return {line.get_marker() for line in axes.lines}

    assert "_" in marks(steady)
    assert marks([r for r in steady if r.seed == 0]) <= {"<", "None", ""}
