"""AUC and KS agree with scikit-learn, ties included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refvendor.metrics import auc, ks, ks_curve, roc
from sklearn.metrics import roc_auc_score, roc_curve


@st.composite
def judged(draw):
    size = draw(st.integers(2, 60))
    labels = draw(
        st.lists(st.integers(0, 1), min_size=size, max_size=size).filter(lambda v: len(set(v)) == 2)
    )
    scores = draw(
        st.lists(
            st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5001, 0.9, 1.0]), min_size=size, max_size=size
        )
    )
    return labels, scores


@given(judged())
def test_auc_and_ks_equal_scikit_learn(case):
    labels, scores = case
    assert auc(labels, scores) == pytest.approx(
        roc_auc_score(labels, scores),
        abs=1e-12,
    )
    false_rate, true_rate, _ = roc_curve(
        labels,
        scores,
        drop_intermediate=False,
    )
    assert ks(labels, scores) == pytest.approx(
        max(true_rate - false_rate),
        abs=1e-12,
    )
    ours = roc(labels, scores)
    assert np.allclose(ours[0], false_rate)
    assert np.allclose(ours[1], true_rate)


@given(judged(), st.integers(1, 12))
def test_the_curve_is_short_and_holds_the_largest_distance(case, points):
    curve = ks_curve(*case, points=points)
    assert 1 <= len(curve) <= points
    assert max(point["ks"] for point in curve) == pytest.approx(ks(*case)) or ks(*case) == 0
    thresholds = [point["threshold"] for point in curve]
    assert thresholds == sorted(thresholds, reverse=True)


@pytest.mark.parametrize(
    ("labels", "scores"),
    [
        ([], []),
        ([1], [0.5]),
        ([0, 0], [1, 2]),
        ([0, 1], [1]),
        ([0, 2], [1, 2]),
        ([0, 1], [1, np.nan]),
    ],
)
def test_what_cannot_be_judged_is_refused(labels, scores):
    with pytest.raises(ValueError, match="must"):
        auc(labels, scores)
