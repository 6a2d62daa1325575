"""Classes of framework operations, by the words of their names.

An entry matches whole words only, so `convex_sum` is no convolution and `multinomial` no product.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from unified_prof.base.columns import NOT_AVAILABLE

MATMUL: Final = "matmul"
CONVOLUTION: Final = "convolution"
ATTENTION: Final = "attention"
NORMALISATION: Final = "normalisation"
ELEMENT_WISE: Final = "element-wise"
REDUCTION: Final = "reduction"
EMBEDDING: Final = "embedding"
OPTIMIZER: Final = "optimizer"
CAST: Final = "cast and format"
COPIES: Final = "copies"
COLLECTIVES: Final = "collectives"
REST: Final = "other"

# Namespaces whose operations all have one class.
_NAMESPACES: Final = dict.fromkeys(
    ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"), COLLECTIVES
)

# Words of each class; the first class that matches decides. An entry is one word, or several with
# `_` between them. `^word` is the first word, `word$` the last, `^word$` the whole name.
_WORDS: Final[tuple[tuple[str, str], ...]] = (
    (
        COLLECTIVES,
        r"all_?reduce all_?gather reduce_?scatter all_?to_?all all_?2_?all ^hccl ^hcom ^nccl "
        r"^gloo ^record_param_comms$ multimem nvshmem tile_reduce",
    ),
    (
        CAST,
        r"reshape_and_cache kv_cache_update store_cache set_kv_buffer",
    ),
    (
        ELEMENT_WISE,
        r"rotary rope",
    ),
    (
        ATTENTION,
        r"attention attn sdpa fmha mha mla paged",
    ),
    (
        NORMALISATION,
        r"q?batch_?norm layer_?norm group_?norm instance_?norm rms_?norm qk_norm "
        r"response_norm ^renorm sync_batch",
    ),
    (
        OPTIMIZER,
        r"optimizer adam adamw adagrad$ fused_sgd fused_lamb ^apply_adam adam_w",
    ),
    (
        EMBEDDING,
        r"embedding lookup sparse_data sparse_features permute_pooled",
    ),
    (
        MATMUL,
        r"^linear ^q?linear$ ^qlinear ^wrapped_quantized_linear ^wrapped_fbgemm_linear "
        r"^fbgemm_linear ^quantized_linear ^mixed_dtypes_linear semi_structured_linear addmm "
        r"mm bmm baddbmm addbmm matmul mat_mul gemm int4mm hspmm smm sspaddmm sampled_addmm "
        r"^einsum ^tensordot ^mv ^addmv ^addr ^ger ^dot ^vdot ^inner ^outer ^bilinear "
        r"^trilinear ^chain_matmul ^linalg_matmul ^linalg_multi_dot ^linalg_vecdot ^kron "
        r"^matrix_power ^linalg_matrix_power moe lstm gru rnn ^cdist ^euclidean_dist "
        r"^scaled_mm ^cov ^corrcoef int4pack_mm_with_scales",
    ),
    (
        CONVOLUTION,
        r"q?conv convolution conv_depthwise im2col col2im ^conv",
    ),
    (
        REDUCTION,
        r"kl_div pool unpool max_?pool avg_?pool softmax log_?softmax loss cross_?entropy "
        r"nll_?loss",
    ),
    (
        CAST,
        r"^to ^to_copy ^copy ^clone ^foreach_clone ^contiguous cached_contiguous "
        r"format_contiguous contiguous_[dh] ^type_as ^transpose ^permute cast ^cat ^concat "
        r"^concatenate ^chunk_cat ^stack ^hstack ^vstack ^dstack ^column_stack ^row_stack "
        r"^pad ^constant_pad pad_sequence ^reflection_pad ^replication_pad pad_circular "
        r"^slice ^split ^narrow ^repeat ^tile ^expand ^broadcast ^flatten ^unflatten "
        r"^reshape ^roll ^rot90 ^flip ^fliplr ^flipud ^chunk ^unbind trans_data "
        r"^unsafe_split ^unsafe_chunk ^unfold ^meshgrid ^cartesian_prod ^combinations "
        r"^block_diag ^diag_embed ^pixel_shuffle ^pixel_unshuffle ^channel_shuffle "
        r"^foreach_copy ^select$ ^diagonal$ ^diag$ ^diagflat chalf obs_fq_helper "
        r"^saturate_weight format copy_bucket ^detach ^index_copy$ ^convert_element_type "
        r"quant quantize quantized dequantize fake_quantize to_?float float_?to.* "
        r"rowwise_quantized.* \w+_copy$ ^to_dense ^to_padded ^to_mkldnn ^mkldnn_reorder "
        r"^reorder convert_weight convert_indices ^lazy_clone ^swapaxes ^swapdims "
        r"^padded_dense jagged_to_padded padded_dense_to_jagged nested_from_padded identity "
        r"^resize_as ^pin_memory ^set_data strided_slice transdata memory_format",
    ),
    (
        EMBEDDING,
        r"index ^unsafe_index ^unsafe_masked_index ^gather gather scatter ^take ^put "
        r"^masked_select ^masked_scatter one_hot coalesce grid_sampler ^affine_grid",
    ),
    (
        REDUCTION,
        r"^sum ^xor_sum ^max$ ^min$ ^nansum ^mean ^nanmean ^amax ^amin ^aminmax ^argm\w+ "
        r"^topk top_k ^sort ^argsort ^msort sort_tokens ^cum\w+ cumsum ^norm$ ^norm_except "
        r"^frobenius_norm ^nuclear_norm ^all$ ^any$ ^prod ^var ^std ^entropy ^logsumexp "
        r"^special_logsumexp ^logcumsumexp ^nonzero ^argwhere ^unique\d? ^linalg_\w*norm "
        r"^linalg_powsum ^is_nonzero ^histc ^histogram\w* ^bincount ^count_nonzero ^median "
        r"^nanmedian ^mode$ ^kthvalue ^quantile ^nanquantile ^trace ^foreach_norm "
        r"^foreach_powsum ^foreach_max ^native_norm ^dist ^pdist ^pairwise_distance "
        r"^cosine_similarity ^searchsorted ^bucketize ^multinomial ^is_all_true ^is_any_true "
        r"^segment_reduce ^equal$ ^allclose ^sparse_sum ^sparse_\w*prod ^trapz ^trapezoid "
        r"^cumulative_trapezoid weight_norm ^convex_sum offsets_range lengths_range\w* "
        r"^aminmax ^isin reduce_?sum grad_sum_to_size ^value_selecting_reduction "
        r"^hash_tensor ^sum_to_size ^sparse_mm_reduce ^amp_foreach_non_finite\w*",
    ),
    (
        ELEMENT_WISE,
        r"^foreach ^add ^addc\w+ ^axpy ^sub ^subtract ^rsub ^mul ^muls ^multiply ^div ^divs "
        r"^divide ^true_divide ^real_div floor_divide ^neg ^negative ^positive ^abs "
        r"^absolute ^exp ^exp2 ^expm1 ^log ^log2 ^log10 ^log1p ^logaddexp2? ^float_power "
        r"^pow ^sqrt ^rsqrt ^square ^sinc? ^cos ^tan ^sinh ^cosh ^tanh "
        r"^a(?:rc)?(?:sin|cos|tan)h? ^atan2 ^arctan2 ^hypot sigmoid log_sigmoid gelu relu "
        r"relu6 prelu rrelu leaky_relu silu mish [cs]?elu ^hard\w+ ^softplus ^softshrink "
        r"swi_?glu ^glu act_and_mul dropout ^feature_dropout drop_out\w* ^where ^masked_fill "
        r"^masked_scale ^clamp ^clip ^fill fill$ ^zero ^zeros zeros_like$ ones_like ^ones "
        r"^full ^eq ^ne ^lt ^le ^gt ^ge ^less ^greater ^not_equal ^equal ^logical ^bitwise "
        r"^rand ^randn ^randint ^randperm ^random ^normal ^log_normal ^uniform ^bernoulli "
        r"^binomial ^poisson ^cauchy ^geometric ^exponential ^philox ^standard_gamma "
        r"^dirichlet ^sample_dirichlet ^arange ^range ^linspace ^logspace ^eye ^erf\w* ^lerp "
        r"^reciprocal ^round ^floor ^ceil ^trunc ^fix ^frac ^nan_to_num ^threshold ^logit "
        r"^maximum ^minimum ^fmax ^fmin ^fmod ^remainder ^copysign ^nextafter ^ldexp ^frexp "
        r"^heaviside ^xlogy ^polygamma ^digamma ^lgamma ^mvlgamma ^igammac? ^i0 ^isnan "
        r"^isinf ^isfinite ^isreal ^isclose ^isposinf ^isneginf ^signbit ^sign ^sgn ^angle "
        r"^conj_physical ^complex ^polar ^deg2rad ^rad2deg ^gcd ^lcm ^tril ^triu "
        r"^special_\w+ ^(?:bartlett|blackman|hann|hamming|kaiser)_window ^amp_update_scale "
        r"^upsample ^cross ^linalg_cross ^diff ^gradient ^i?(?:and|or|xor|lshift|rshift)$ "
        r"^new_(?:zeros|ones|full) ^scalar_tensor ^infinitely_differentiable_gelu "
        r"^native_dropout ^fused_dropout less greater adaptive_scale",
    ),
)

_PREFIXES: Final = re.compile(
    r"^(?:(?:native|miopen|cudnn|npu|mkldnn|aclnn|inplace|thnn|no_grad)_)+"
)
_SUFFIX: Final = re.compile(r"(?:_backward\d*|_grad|_out|_jvp)+$")
_BORDERS: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z\d]+")
# Dimensions and versions do not change the class: conv2d, MatMulV3, fn_17.
_DIMENSIONS: Final = re.compile(r"(?<=[A-Za-z])\d[dD](?![a-z\d])")
_VERSION: Final = re.compile(r"(?<=[a-z])(?:_?v\d+|_\d+)(?![a-z\d])")
_NOTHING: Final = frozenset({"", NOT_AVAILABLE, None})
_MAX_NAME: Final = 4096  # Maximum number of characters of a name to examine.


def _pattern(entries: str) -> re.Pattern[str]:
    alternatives = []
    for entry in entries.split():
        first, last = entry.startswith("^"), entry.endswith("$")
        word = entry.removeprefix("^").removesuffix("$")
        alternatives.append(
            ("^" if first else "(?:^|_)") + f"(?:{word})" + ("$" if last else "(?:_|$)")
        )
    return re.compile("|".join(alternatives))


_PATTERNS: Final = tuple((result, _pattern(entries)) for result, entries in _WORDS)


@lru_cache(maxsize=1 << 14)
def class_of_operation(name: str | None) -> str | None:
    """Return the class by the name of a framework operation, or None."""
    if name is None or name in _NOTHING:
        return None
    name = (
        name[:_MAX_NAME]
        .removeprefix("autograd::engine::evaluate_function: ")
        .removeprefix("Dequeue@")
    )
    # The words of a fused kernel are those of all its parts: its own class decides.
    if name.startswith("triton_"):
        return None
    namespace, _, bare = name.rpartition("::") if "<" not in name else ("", "", name)
    if (found := _NAMESPACES.get(namespace)) is not None:
        return found
    words = _BORDERS.sub("_", _DIMENSIONS.sub("", bare)).strip("_").lower()
    words = _VERSION.sub("", words)
    words = _SUFFIX.sub("", _PREFIXES.sub("", words)) or words
    return next((result for result, pattern in _PATTERNS if pattern.search(words)), None)
