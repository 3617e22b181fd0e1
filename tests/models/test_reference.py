import math
from dataclasses import replace

import numpy as np
import pytest

from models.errors import ShapeMismatch
from models.reference import attention, self_attention
from models.spec import AttentionSpec
from models.weights import AttentionWeights
from tests.contract.layers import LAYERS, draw_sequence, make_layer

B = {
    "query": np.array([[[1.0, 0.0], [0.0, 1.0]]]),
    "key": np.array([[[1.0, 0.0], [1.0, 1.0]]]),
    "value": np.array([[[1.0, 2.0], [3.0, 4.0]]]),
}


def frequency_by_hand(rope, pair, width, n):
    """Radians per token of one pair, in a sequence of n tokens."""
    frequency, scaling = rope.base ** (-2 * pair / width), rope.scaling
    if scaling is None:
        return frequency
    waves = 2 * math.pi / frequency
    match scaling.type:
        case "linear":
            return frequency / scaling.factor
        case "llama3":
            original, low, high = scaling.original_max_positions, scaling.low_freq_factor, scaling.high_freq_factor
            slowed = frequency / scaling.factor
            if waves > original / low:
                return slowed
            if waves < original / high:
                return frequency
            smooth = (original / waves - low) / (high - low)
            return (1 - smooth) * slowed + smooth * frequency
        case "yarn":
            bounds = [
                width * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.base))
                for turns in (scaling.beta_fast, scaling.beta_slow)
            ]
            low, high = max(bounds[0], 0), min(bounds[1], width - 1)
            assert not scaling.truncate
            slow = min(max((pair - low) / (high - low), 0), 1)
            return slow * frequency / scaling.factor + (1 - slow) * frequency
        case "dynamic":
            longer = max(1, scaling.factor * n / scaling.original_max_positions - (scaling.factor - 1))
            return (rope.base * longer ** (width / (width - 2))) ** (-2 * pair / width)
        case "longrope":
            beyond = n > scaling.original_max_positions
            return frequency / (scaling.long_factor if beyond else scaling.short_factor)[pair]


def growth_by_hand(rope):
    """What turned numbers are multiplied by."""
    match rope.scaling and rope.scaling.type:
        case "yarn":
            return 0.1 * math.log(rope.scaling.factor) + 1
        case "longrope":
            return rope.scaling.attention_factor
        case _:
            return 1


def turned_by_hand(numbers, place, rope, n):
    """A head's numbers at one place of n, turned pair by pair."""
    width = len(numbers) if rope.rotary_dim is None else rope.rotary_dim
    turned, growth = list(numbers), growth_by_hand(rope)
    for pair in range(width // 2):
        frequency = frequency_by_hand(rope, pair, width, n)
        a, b = (pair, pair + width // 2) if rope.pairing == "half" else (2 * pair, 2 * pair + 1)
        cos, sin = growth * math.cos(place * frequency), growth * math.sin(place * frequency)
        turned[a] = numbers[a] * cos - numbers[b] * sin
        turned[b] = numbers[b] * cos + numbers[a] * sin
    return turned


def bucket_by_hand(gap, relative):
    """T5's bucket of a distance column minus row, both ways."""
    each = relative.num_buckets // 2
    exact, away = each // 2, abs(gap)
    start = each if gap > 0 else 0
    if away < exact:
        return start + away
    share = math.log(away / exact) / math.log(relative.max_distance / exact)
    return start + min(each - 1, exact + int(share * (each - exact)))


def normalised_by_hand(heads, norm, weight):
    """Numbers over their root mean square, per head or over all heads of a token."""
    found = [[list(numbers) for numbers in head] for head in heads]
    for i in range(len(heads[0])):
        for h, head in enumerate(heads):
            over = head[i] if norm.scope == "head" else [x for other in heads for x in other[i]]
            root = math.sqrt(sum(x * x for x in over) / len(over) + norm.eps)
            start = 0 if norm.scope == "head" else h * len(head[i])
            found[h][i] = [x / root * float(weight[start + c]) for c, x in enumerate(head[i])]
    return found


def place_bias_by_hand(entry, h, gap):
    """What the position scheme adds to head h's score at a distance column minus row."""
    position, heads = entry.spec.position, entry.spec.num_heads
    if position.scheme == "alibi":
        assert heads == 3  # two slopes of the power below, then the first of the power above
        return -[2.0**-4, 2.0**-8, 2.0**-2][h] * abs(gap)
    if position.scheme == "relative":
        return float(entry.weights.relative_bias[bucket_by_hand(gap, position)][h])
    return 0.0


def by_hand(entry, inputs, *, mask=None, bias=None, is_causal=False, scale=None):
    """Weights (h, n, n) and outputs (n, h * value_dim) in loops over Python floats: not one product of arrays."""
    spec, tensors = entry.spec, entry.weights.tensors()
    n, scale = len(inputs), spec.effective_scale if scale is None else scale

    def project(name, heads, width):
        matrix, shift = tensors[name], tensors.get(f"{name}_bias")
        return [
            [
                [
                    sum(float(inputs[i][d]) * float(matrix[d][h * width + c]) for d in range(spec.embed_dim))
                    + (0.0 if shift is None else float(shift[h * width + c]))
                    for c in range(width)
                ]
                for i in range(n)
            ]
            for h in range(heads)
        ]

    query = project("query", spec.num_heads, spec.head_dim)
    key = project("key", spec.kv_heads, spec.head_dim)
    value = project("value", spec.kv_heads, spec.v_dim)
    if spec.query_key_norm is not None:
        query = normalised_by_hand(query, spec.query_key_norm, tensors["query_norm"])
        key = normalised_by_hand(key, spec.query_key_norm, tensors["key_norm"])
    if spec.position.scheme == "rope":
        query, key = (
            [[turned_by_hand(numbers, i, spec.position, n) for i, numbers in enumerate(head)] for head in heads]
            for heads in (query, key)
        )
    weights, outputs = [], [[] for _ in range(n)]
    for h in range(spec.num_heads):
        served = h // (spec.num_heads // spec.kv_heads)  # neighbours share a key/value head
        weights.append([])
        for i in range(n):
            exps = []
            for j in range(n):
                score = scale * sum(query[h][i][c] * key[served][j][c] for c in range(spec.head_dim))
                if spec.logit_softcap is not None:
                    score = spec.logit_softcap * math.tanh(score / spec.logit_softcap)
                score += place_bias_by_hand(entry, h, j - i)
                if bias is not None:
                    score += float(bias[i][j] if bias.ndim == 2 else bias[h][i][j])
                seen = (mask is None or mask[i][j]) and (j <= i or not is_causal)
                seen = seen and (spec.window is None or abs(i - j) < spec.window)
                exps.append(math.exp(score) if seen else 0.0)
            total = sum(exps)
            row = [e / total if total else 0.0 for e in exps]
            weights[h].append(row)
            outputs[i] += [sum(row[j] * value[served][j][c] for j in range(n)) for c in range(spec.v_dim)]
    return np.array(weights), np.array(outputs)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_oracle_equals_loops_over_python_floats(layer, is_causal, masked, biased):
    """Everything is held against the oracle, so the oracle is held against the formula itself."""
    entry = LAYERS[layer]
    for n in (1, 2, 5):
        for seed in range(3):
            sequence = draw_sequence(entry, n, seed, masked=masked, biased=biased)
            options = {"is_causal": is_causal, "scale": 0.7 if seed == 2 else None}
            mask, bias = sequence.attn_mask, sequence.attn_bias

            weights, outputs = by_hand(entry, sequence.inputs, mask=mask, bias=bias, **options)
            trace = self_attention(
                sequence.inputs, entry.weights, entry.spec, attn_mask=mask, attn_bias=bias, **options
            )

            np.testing.assert_allclose(trace.weights, weights, rtol=0, atol=1e-13)
            np.testing.assert_allclose(trace.outputs, outputs, rtol=0, atol=1e-12)


def test_base_case_b_step_by_step():
    """Trap table, case B: every intermediate has the value worked out by hand."""
    trace = attention(**B)

    root, e = 2**-0.5, math.exp(2**-0.5)
    np.testing.assert_array_equal(trace.raw_scores, [[[1, 1], [0, 1]]])
    np.testing.assert_allclose(trace.scaled_scores, [[[root, root], [0, root]]], rtol=1e-15)
    np.testing.assert_array_equal(trace.masked_scores, trace.scaled_scores)
    np.testing.assert_allclose(trace.softmax_max, [[[root], [root]]], rtol=1e-15)
    np.testing.assert_allclose(trace.softmax_exp, [[[1, 1], [1 / e, 1]]], rtol=1e-15)
    np.testing.assert_allclose(trace.softmax_sum, [[[2], [1 + 1 / e]]], rtol=1e-15)
    np.testing.assert_allclose(trace.weights, [[[0.5, 0.5], [0.33024, 0.66976]]], atol=5e-6)
    np.testing.assert_allclose(trace.outputs, [[2, 3], [2.33952, 3.33952]], atol=5e-6)


@pytest.mark.parametrize(("n", "means"), [(1, [1]), (2, [1, 1.5]), (5, [1, 1.5, 2, 2.5, 3])])
def test_base_case_c_is_the_mean_of_what_is_visible(n, means):
    """Trap table, case C: queries and keys of zeros, values 1..n, causal."""
    zeros = np.zeros((1, n, 1))

    trace = attention(zeros, zeros, np.arange(1.0, n + 1)[None, :, None], is_causal=True)

    np.testing.assert_allclose(trace.outputs[:, 0], means, rtol=1e-15)


def test_a_row_that_sees_nothing_is_exactly_zero():
    """No NaN on the way: warnings are errors here. Its scores stay -inf, its maximum is 0."""
    trace = attention(**B, attn_mask=np.array([[1, 1], [0, 0]], bool))

    assert np.isneginf(trace.masked_scores[0, 1]).all()
    for name in ("softmax_max", "softmax_exp", "softmax_sum", "weights"):
        assert (getattr(trace, name)[0, 1] == 0).all(), name
    np.testing.assert_array_equal(trace.outputs, [[2, 3], [0, 0]])


def test_causality_and_mask_may_leave_a_row_nothing():
    """Each allows something; together they allow row 0 nothing."""
    trace = attention(**B, attn_mask=np.array([[0, 1], [1, 1]], bool), is_causal=True)

    assert (trace.weights[0, 0] == 0).all()
    np.testing.assert_allclose(trace.weights[0, 1].sum(), 1, rtol=1e-15)


def test_the_bias_is_added_to_scaled_scores_before_the_mask():
    """Scaled first: a bias of ln 3 is a factor of 3. Masked last: no bias can reveal a column."""
    zeros = np.zeros((1, 2, 4))
    bias = np.array([[np.log(3), 0], [0, 1e300]])

    trace = attention(zeros, zeros, zeros, attn_bias=bias, attn_mask=np.array([[1, 1], [1, 0]], bool), scale=1e-3)

    np.testing.assert_allclose(trace.scaled_scores[0], bias)
    np.testing.assert_allclose(trace.weights[0], [[0.75, 0.25], [1, 0]], rtol=1e-15)


def test_a_bias_per_head_reaches_its_head():
    """(h, n, n): heads must not be swapped."""
    zeros = np.zeros((2, 1, 1)).repeat(2, axis=1)
    bias = np.zeros((2, 2, 2))
    bias[1, :, 0] = np.log(3)

    trace = attention(zeros, zeros, zeros, attn_bias=bias)

    np.testing.assert_allclose(trace.weights, [[[0.5, 0.5]] * 2, [[0.75, 0.25]] * 2], rtol=1e-15)


def test_scores_of_any_size_give_a_softmax():
    """The maximum is taken off first, so exp(1000) is never asked for; differences alone count."""
    one = np.ones((1, 2, 1))

    trace = attention(one, np.array([[[1000.0], [1000.0 + math.log(3)]]]), one, scale=1.0)

    np.testing.assert_allclose(trace.weights[0, 0], [0.25, 0.75], rtol=1e-12)


def test_the_default_scale_is_that_of_the_paper():
    """1/sqrt of the width of a key, not of an embedding or a value."""
    entry = make_layer("m", embed_dim=9, head_dim=4, value_dim=3)
    x = draw_sequence(entry, 3, 0).inputs

    trace = self_attention(x, entry.weights, entry.spec)

    np.testing.assert_allclose(trace.scaled_scores, trace.raw_scores / 2, rtol=1e-15)


def test_a_causal_layer_is_causal_whatever_is_asked():
    """A decoder's layer has no other meaning."""
    entry = make_layer("m", embed_dim=4, head_dim=2, is_causal=True)

    trace = self_attention(draw_sequence(entry, 4, 0).inputs, entry.weights, entry.spec, is_causal=False)

    assert (trace.weights[0][~np.tri(4, dtype=bool)] == 0).all()


def test_shared_heads_are_repeated_each_not_tiled():
    """Trap 42: 4 query and 2 key/value heads, v = 10, 20 give [10, 10, 20, 20]."""
    spec = AttentionSpec(name="m", embed_dim=1, num_heads=4, num_kv_heads=2, head_dim=1)
    weights = AttentionWeights(*(np.array([row], np.float32) for row in ([1, 1, 1, 1], [1, 1], [10, 20])))

    trace = self_attention(np.ones((1, 1)), weights, spec)

    np.testing.assert_array_equal(trace.outputs, [[10, 10, 20, 20]])
    np.testing.assert_array_equal(trace.value[:, 0, 0], [10, 10, 20, 20])


def test_heads_stand_side_by_side_in_the_outputs():
    """Row i holds head 0's value, then head 1's: not interleaved, not heads of rows."""
    value = np.arange(12.0).reshape(2, 3, 2)

    trace = attention(np.zeros((2, 3, 1)), np.zeros((2, 3, 1)), value, attn_mask=np.eye(3, dtype=bool))

    np.testing.assert_array_equal(trace.outputs, [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]])


def test_the_names_of_the_contract_find_their_tensors():
    """`scores` are the masked ones."""
    trace = attention(**B, is_causal=True)

    assert trace.tensor("scores") is trace.masked_scores
    for name in ("outputs", "weights", "query", "key", "value"):
        assert trace.tensor(name) is getattr(trace, name)


def test_float32_inputs_are_computed_in_float64():
    """Rounding once, at the end, is what makes it an oracle."""
    entry = LAYERS["projecting"]

    trace = self_attention(draw_sequence(entry, 4, 0).inputs, entry.weights, entry.spec)

    assert all(getattr(trace, name).dtype == np.float64 for name in trace.__slots__)
    np.testing.assert_allclose(trace.weights.sum(axis=-1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": np.zeros((1, 2, 3))}, "do not fit one another"),
        ({"key": np.zeros((1, 3, 2))}, "do not fit one another"),
        ({"value": np.zeros((2, 2, 2))}, "do not fit one another"),
        ({"attn_mask": np.ones((2, 3), bool)}, r"attn_mask has shape \(2, 3\), expected \(2, 2\)"),
        ({"attn_mask": np.ones((1, 2, 2), bool)}, r"attn_mask has shape \(1, 2, 2\)"),
        ({"attn_mask": np.ones((2,), bool)}, r"attn_mask has shape \(2,\)"),
        ({"attn_bias": np.zeros((3, 2, 2))}, r"attn_bias has shape \(3, 2, 2\), expected \(2, 2\) or \(1, 2, 2\)"),
        ({"attn_bias": np.zeros((2,))}, r"attn_bias has shape \(2,\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, says):
    """Trap 23: broadcasting would make an answer of a mistake."""
    with pytest.raises(ShapeMismatch, match=says):
        attention(**{**B, **change})


@pytest.mark.parametrize("shape", [(0, 7), (3, 6), (7,), (1, 3, 7)])
def test_inputs_that_do_not_fit_the_layer_are_refused(shape):
    """One sequence of at least one token, as wide as the layer."""
    entry = LAYERS["odd"]

    with pytest.raises(ShapeMismatch, match=r"expected \(n >= 1, 7\)"):
        self_attention(np.zeros(shape), entry.weights, entry.spec)


def test_the_output_projection_is_carried_not_applied():
    """`outputs` are the heads' values side by side, as `AttentionWeights` says."""
    entry = LAYERS["odd"]
    x = draw_sequence(entry, 4, 0).inputs
    more = replace(entry.weights, output=np.ones((3, 7), np.float32), output_bias=np.ones(7, np.float32))

    np.testing.assert_array_equal(
        self_attention(x, more, entry.spec).outputs, self_attention(x, entry.weights, entry.spec).outputs
    )
