"""What boosted trees are made of: rows that are read, bins, gains of splits, sums in one
plaintext.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.components import hetero_secureboost as secureboost
from refvendor.components.encrypted_trees import Slot
from refvendor.components.split_search import (
    FRACTION_BITS,
    SplitRule,
    bin_features,
    find_candidates,
    gains,
    left_sums,
)
from refvendor.components.training import read_rows
from refvendor.contract import BadParameters, Table
from training_data import (
    a_task,
    labels_of,
    no_log,
    random_tables,
)


@settings(max_examples=50, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 5000),
)
def test_a_slot_holds_the_sums_of_any_gradients(data, rows):
    slot, top = Slot(rows), 1 << FRACTION_BITS
    g = data.draw(st.sampled_from([-top, top, 0, 12345]))
    h = data.draw(st.sampled_from([0, top // 4, 17]))
    (joined,) = slot.join(
        np.array([g]),
        np.array([h]),
    )
    assert 0 <= joined * rows < 1 << slot.bits
    sums = slot.separate([joined * rows])
    assert sums.count[0] == rows
    assert sums.g[0] == rows * g
    assert sums.h[0] == rows * h


def test_a_split_with_a_side_that_is_too_small_gains_nothing():
    bins = bin_features(
        ["a"],
        np.arange(6.0)[:, np.newaxis],
        32,
    )
    rows = np.arange(6)
    g = np.array([-3, -3, -3, 3, 3, 3], np.int64) << FRACTION_BITS
    h = np.full(6, 1 << 20, np.int64)
    sums = left_sums(
        bins,
        find_candidates(bins, [0], rows),
        rows,
        g,
        h,
    )
    unrestricted = gains(
        sums,
        6,
        int(g.sum()),
        int(h.sum()),
        SplitRule(),
    )
    restricted = gains(
        sums,
        6,
        int(g.sum()),
        int(h.sum()),
        SplitRule(min_leaf_rows=3),
    )
    assert np.isfinite(unrestricted).all()
    assert unrestricted.argmax() == 2
    assert np.isfinite(restricted).tolist() == [False, False, True, False, False]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=60
    ),
    bin_num=st.integers(2, 9),
)
def test_bins_are_few_ordered_and_never_empty(values, bin_num):
    column = np.array(values)[:, np.newaxis]
    bins = bin_features(["a"], column, bin_num)
    cuts, codes = bins.cuts[0], bins.codes[:, 0]
    assert len(cuts) < bin_num
    assert np.all(np.diff(cuts) > 0)
    for value, code in zip(values, codes, strict=True):
        assert code == (0 if np.isnan(value) else sum(value > cut for cut in cuts))
    if not np.isnan(column).all():
        assert set(codes) >= set(range(1, len(cuts) + 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.header.__setitem__(0, "key"), "id: train_data has no column 'id'"),
        (lambda t: t.header.__setitem__(1, "outcome"), "label: train_data has no column 'y'"),
        (lambda t: t.header.__setitem__(2, "g1"), "column names occur twice: g1"),
        (lambda t: t.rows[3].__setitem__(0, "person-00000"), "1 rows repeat another row's id"),
        (lambda t: t.rows[3].__setitem__(1, "2"), "label: column 'y' must hold two classes"),
        (lambda t: t.rows[3].__setitem__(1, ""), "label: column 'y' must hold two classes"),
        (
            lambda t: [row.__setitem__(1, "1") for row in t.rows],
            "label: column 'y' must hold two classes",
        ),
        (
            lambda t: t.rows[3].__setitem__(2, "secret"),
            "1 cells of column 'g0' are not finite numbers",
        ),
        (
            lambda t: t.rows[3].__setitem__(2, "inf"),
            "1 cells of column 'g0' are not finite numbers",
        ),
        (lambda t: t.rows[3].pop(), "1 rows do not have 4 cells"),
        (lambda t: t.rows.clear(), "train_data: has no rows"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused_by_column_not_by_value(change, words):
    guest, _ = random_tables(20, 2, 2)
    change(guest)
    common = secureboost.read_parameters(a_task({}), no_log).common
    with pytest.raises(BadParameters) as caught:
        read_rows(guest, common, True, no_log)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "person" not in str(caught.value)


def test_labels_of_minus_one_and_one_and_text_columns_are_understood():
    guest, _ = random_tables(20, 2, 2)
    expected = labels_of(guest)
    for row in guest.rows:
        row[1] = "-1.0" if row[1] == "0" else "1"
        row += ["a town", "77"]
    guest.header += ["town", "extend_sid"]
    warned: list[str] = []
    common = secureboost.read_parameters(a_task({}), no_log).common
    rows = read_rows(
        guest, common, True, lambda level, message, **fields: warned.append(f"{level} {fields}")
    )
    assert np.array_equal(rows.label_values, expected)
    assert rows.names == ["g0", "g1"]
    assert warned == ["warning {'column': 'town'}"]


def test_a_table_of_ids_alone_names_the_parameter_that_made_it():
    guest, _ = random_tables(20, 2, 2)
    ids_alone = Table(guest.header[:1], [row[:1] for row in guest.rows])
    common = secureboost.read_parameters(a_task({}), no_log).common
    with pytest.raises(BadParameters) as caught:
        read_rows(ids_alone, common, True, no_log)
    assert (
        "label: the table has no column 'y', only id. "
        "Did Intersection write ids alone (only_output_key: true)?" in str(caught.value)
    )
