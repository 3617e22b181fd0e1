"""Where a token stands, made into numbers: rotations of queries and keys, or a bias of the scores. NumPy float64."""

import math

import numpy as np

from models.spec import DynamicScaling, LinearScaling, Llama3Scaling, LongropeScaling, Relative, Rope, YarnScaling
from models.types import F32, F64, Array


def rope_frequencies(rope: Rope, head_dim: int, n: int) -> F64:
    """How fast each pair of a query's numbers turns from one token to the next.

    Args:
        rope: the scheme.
        head_dim: width of a query; `rope.rotary_dim` numbers of it turn, all of them by default.
        n: tokens of the sequence, for the scalings that depend on it.

    Returns:
        Radians per token, (rotary_dim / 2,).

    Source:
        Su et al. 2021, arXiv:2104.09864; linear scaling: Chen et al. 2023, arXiv:2306.15595; llama3: section 4 of the
        Llama 3.1 model card's code; YaRN: Peng et al. 2023, arXiv:2309.00071, section 3.2 to 3.4, and for dynamic NTK
        its section 3.3; LongRoPE: Ding et al. 2024, arXiv:2402.13753.
    """
    width = head_dim if rope.rotary_dim is None else rope.rotary_dim
    plain = rope.base ** (-np.arange(0, width, 2, dtype=np.float64) / width)  # (width / 2,)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case YarnScaling() as scaling:
            return _yarn(plain, scaling, rope.base, width)
        case DynamicScaling() as scaling:
            longer = max(1.0, scaling.factor * n / scaling.original_max_positions - (scaling.factor - 1))
            return plain * longer ** dynamic_powers(width)
        case LongropeScaling() as scaling:
            slower = scaling.long_factor if n > scaling.original_max_positions else scaling.short_factor
            return plain / np.array(slower, np.float64)


def dynamic_powers(width: int) -> F64:
    """How much of dynamic scaling each pair takes, (width / 2,): 0 for the fastest, all of it (-1) for the slowest.

    Frequencies times (how much too long) ** power: the same as a base that grows with the power width / (width - 2).
    """
    powers: F64 = -np.arange(0, width, 2, dtype=np.float64) / (width - 2)
    return powers


def rope_growth(rope: Rope) -> float:
    """What rotated queries and keys are multiplied by: 1 but for YaRN and LongRoPE."""
    match rope.scaling:
        case YarnScaling(growth=growth):
            return growth
        case LongropeScaling(attention_factor=growth):
            return growth
        case _:
            return 1.0


def _llama3(plain: F64, scaling: Llama3Scaling) -> F64:
    """Slow pairs are slowed by `factor`, fast ones are not, those between are mixed smoothly."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)  # over the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = np.clip((turns - low) / (high - low), 0, 1)  # of the unslowed frequency
    return (1 - share) * plain / scaling.factor + share * plain


def _yarn(plain: F64, scaling: YarnScaling, base: float, width: int) -> F64:
    """Pairs that turn fewer than `beta_slow` times over the original context are slowed, those over `beta_fast` not."""

    def pair(turns: float) -> float:
        """The (fractional) pair that turns so often over the original context."""
        return width * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)  # share of the slowed frequency
    mixed: F64 = plain / scaling.factor * ramp + plain * (1 - ramp)
    return mixed


def rotate(x: F64, rope: Rope) -> F64:
    """Turn each pair of numbers of each token by its angle.

    Args:
        x: queries or keys, (heads, n, head_dim).
        rope: the scheme. Pairs are (i, i + rotary_dim / 2) if `half`, (2i, 2i + 1) if `interleaved`.

    Returns:
        The same shape; numbers beyond `rotary_dim` as they were.
    """
    frequencies, growth = rope_frequencies(rope, x.shape[-1], x.shape[-2]), rope_growth(rope)
    half = len(frequencies)
    angles = np.arange(x.shape[-2])[:, None] * frequencies  # (n, rotary_dim / 2)
    cos, sin = growth * np.cos(angles), growth * np.sin(angles)
    turned = x.copy()
    if rope.pairing == "half":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


def alibi_slopes(heads: int) -> F64:
    """How much each head dislikes distance, (heads,): a geometric sequence.

    For a number of heads that is no power of two, the slopes of the next smaller power come first, then every other one
    of the next larger power's.

    Source:
        Press et al. 2022, arXiv:2108.12409, and its reference code for other numbers of heads.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes: F64 = np.exp2(-8 / power * np.arange(1, power + 1, dtype=np.float64))
    if power < heads:
        more: F64 = np.exp2(-4 / power * np.arange(1, 2 * (heads - power), 2, dtype=np.float64))
        slopes = np.concatenate([slopes, more])
    return slopes


def relative_buckets(relative: Relative) -> Array:
    """The bucket of each distance j - i from -max_distance to max_distance, int64, (2 * max_distance + 1,).

    Near distances have buckets of their own, farther ones share them logarithmically, and all from `max_distance` on
    are in the last. Computed in float32, as the models that were trained with it compute it: at some distances the last
    bit decides.

    Source:
        Raffel et al. 2020, arXiv:1910.10683, section 2.1, and its reference code.
    """
    distances = np.arange(-relative.max_distance, relative.max_distance + 1)
    buckets, offset = relative.num_buckets, np.zeros_like(distances)
    if relative.bidirectional:
        buckets //= 2
        offset = (distances > 0) * buckets
        away = np.abs(distances)
    else:
        away = np.maximum(-distances, 0)
    exact = buckets // 2
    ratio = np.maximum(away, 1).astype(np.float32) / np.float32(exact)
    spread = np.log(ratio) / np.float32(math.log(relative.max_distance / exact)) * np.float32(buckets - exact)
    far = np.minimum(exact + spread.astype(np.int64), buckets - 1)
    result: Array = offset + np.where(away < exact, away, far)
    return result


def relative_bias(relative: Relative, table: F32) -> F32:
    """The bias of each distance from -max_distance to max_distance, (2 * max_distance + 1, heads).

    Args:
        relative: the scheme.
        table: bias by bucket, (num_buckets, heads).
    """
    picked: F32 = table[relative_buckets(relative)]
    return picked


def distances(n: int) -> Array:
    """J - i for each row i and column j, (n, n)."""
    places = np.arange(n)
    found: Array = places[None, :] - places[:, None]
    return found
