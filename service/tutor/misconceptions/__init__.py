"""The named mistakes: one file each. To add one, write the file and name it here."""

from importlib import import_module

from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import STEPS

FILES = (
    "proj_transposed", "proj_wx", "proj_swap_qk", "proj_swap_kv", "proj_swap_qv", "proj_none", "proj_no_bias",
    "proj_cell_slip",
    "score_qtk", "score_kqt", "score_qqt", "score_kkt", "score_qvt", "score_elementwise", "score_no_transpose",
    "score_cosine",
    "scale_none", "scale_dk", "scale_sqrt_dmodel", "scale_sqrt_n", "scale_n", "scale_multiplied", "scale_dmodel",
    "scale_after_softmax", "scale_total_width",
    "mask_ignored", "mask_after_softmax", "mask_zero_score", "mask_reversed", "mask_strict", "mask_padding_rows",
    "mask_small_number",
    "softmax_columns", "softmax_all", "softmax_skipped", "softmax_linear", "softmax_no_denominator",
    "softmax_hardmax", "softmax_denominator_excludes_self", "softmax_sigmoid",
    "softmax_max_subtracted_shown_as_exp", "softmax_row_sum_of_rounded", "softmax_base2", "softmax_base10",
    "out_keys", "out_queries", "out_x", "out_transposed_weights", "out_va", "out_mean", "out_top1",
    "out_token_dropped", "out_not_summed", "out_wrong_row", "out_residual_added",
    "heads_interleaved", "heads_averaged", "heads_merge_order",
    "round_early", "round_truncated",
    "copy_row_col",
)  # fmt: skip


def _by_id() -> dict[str, Misconception]:
    found: list[Misconception] = [import_module(f"{__name__}.{name}").MISCONCEPTION for name in FILES]
    order = tuple(STEPS)
    return {one.id: one for one in sorted(found, key=lambda one: order.index(one.step))}


MISCONCEPTIONS: dict[str, Misconception] = _by_id()
"""Every misconception by its id, in the order of the steps where they happen."""
