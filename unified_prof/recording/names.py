"""Classes and properties of kernels, operations and calls, by the words of their names.

All rules take them from the tables below. An entry matches whole words only, so `convex_sum` is no
convolution, `multinomial` no product, and `latest` no test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Final

from unified_prof.base.columns import NOT_AVAILABLE

MATMUL: Final = "matmul"
CONVOLUTION: Final = "convolution"
ATTENTION: Final = "attention"
NORMALIZATION: Final = "normalization"
ELEMENT_WISE: Final = "element-wise"
REDUCTION: Final = "reduction"
EMBEDDING: Final = "embedding"
OPTIMIZER: Final = "optimizer"
CAST: Final = "cast and format"
COPIES: Final = "copies"
COLLECTIVES: Final = "collectives"
REST: Final = "other"
MATRIX: Final = (MATMUL, CONVOLUTION, ATTENTION)

# Where a lower-case letter, a digit or an acronym ends, and other characters.
_BORDERS: Final = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?=[A-Za-z])|[^A-Za-z\d]+"
)
_NUMBERS: Final = re.compile(r"\d+")
_MAX_NAME: Final = 4096  # Maximum number of characters of a name to examine.


@lru_cache(maxsize=1 << 14)
def words(name: str) -> str:
    """Return the words of a name in lower case, separated by `_`: `s884_gemm`, `conv2_d`."""
    return _BORDERS.sub("_", name[:_MAX_NAME]).strip("_").lower()


@lru_cache(maxsize=1 << 14)
def letters(name: str) -> str:
    """Return the words of a name without digits: `s_gemm`, `conv_d`."""
    return "_".join(part for part in _NUMBERS.sub("", words(name)).split("_") if part)


@cache
def _pattern(entries: str) -> re.Pattern[str]:
    """Compile entries of one word each, or of several with `_` between them.

    `^word` is the first word, `word$` the last (dimension and version may follow:
    conv2d, MatMulV3), `^word$` the whole name.
    """
    # Grouped by their ends, they are compiled in half the time.
    groups: dict[tuple[bool, bool], list[str]] = {}
    for entry in entries.split():
        ends = entry.startswith("^"), entry.endswith("$")
        groups.setdefault(ends, []).append(entry.removeprefix("^").removesuffix("$"))
    return re.compile(
        "|".join(
            ("^" if first else "(?:^|_)")
            + f"(?:{'|'.join(some)})"
            + ("(?:_[dv])*$" if last else "(?:_|$)")
            for (first, last), some in groups.items()
        )
    )


@dataclass(frozen=True)
class Words:
    """A set of names: those that contain one of some words, and none of others."""

    entries: str
    but: str = ""
    digits: bool = False  # True if digits are part of the words, as in dtypes.

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
        return _pattern(self.entries), _pattern(self.but) if self.but else None

    def __call__(self, name: str | None) -> bool:
        """Return True if a name belongs to the set."""
        text = (words if self.digits else letters)(name or "")
        wanted, unwanted = self._patterns
        return bool(wanted.search(text)) and not (unwanted and unwanted.search(text))


# Runtime calls.
SYNCHRONIZES: Final = Words(
    # Names in CUDA, HIP and ACL, and of Intel GPUs; copies that return when done; older names of
    # CANN's runtime.
    r"synchroni[sz]e ^ur_(?:queue_finish|event_wait)$ "
    r"^(?:cuda|hip)_memcpy(?:_(?:to_symbol|from_symbol|with_stream|hto_d|dto_h))?$ "
    r"^cu_memcpy_(?:hto_d|dto_h|dto_d)$ ^(?:aclrt|rt)_memcpy$ ^stream_sync_task_finish$"
)
SYNCHRONIZES_DEVICE: Final = Words(r"(?:device|ctx|context)_synchroni[sz]e synchroni[sz]e_device")
WAITS_FOR_EVENT: Final = Words("stream_wait_event")
LAUNCHES: Final = Words("launch", but="graph")
LAUNCHES_GRAPH: Final = Words("graph_launch")
LAUNCHES_THREADS: Final = Words("^hip_ext_module_launch_kernel$")  # Its grid is in threads.
CAPTURED_LAUNCH: Final = Words(
    r"launch_(?:\w+_)?kernel mem(?:cpy|set)_(?:\w+_)?async", but="graph_launch"
)
# Calls of a GPU's runtime; operations of programs on a GPU, with or without device activity. Ranges
# of users can have any other name.
CALLS_GPU: Final = Words("^cuda ^cu ^hip")
USES_GPU: Final = Words(
    "^nccl_(?:all|reduce|broadcast|send|recv|coalesced) aten_(?:cudnn|miopen) aten_record_stream "
    "aten_pin_memory aten_scaled_dot_product_(?:flash|efficient|cudnn)_attention$ "
    "^triton_(?:poi|red|per|for|tem|mm)",  # generated kernels; CPUs have TritonBundler as well
    but="acceptable",  # asked on CPUs too
)
COPIES_MEMORY: Final = Words("mem(?:cpy|set)")
BEGINS_CAPTURE: Final = Words("begin_capture")
ENDS_CAPTURE: Final = Words("end_capture")
ALLOCATES: Final = Words(
    r"^(?:cuda|hip)_(?:malloc|free)(?:_(?:host|managed|pitch|array))?$ "
    r"^(?:cuda|hip)_host_(?:alloc|free)$ ^rt_(?:malloc|free)$ ^aclrt_(?:malloc|free) "
    r"^aclrt_(?:un)?map_mem$ ^acl_malloc_mem "
    r"^cu_mem_(?:alloc|free|create|release|map|unmap|set_access)"
)
# With ALLOCATES and COMPILES: calls of the first iteration.
INITIALIZES: Final = Words(
    "^(?:cuda|hip)_stream_create ^(?:cuda|hip)_device_get_stream_priority_range$ "
    "^cu_(?:ctx|device_primary_ctx)_ ^aclrt_(?:create_(?:stream|context)|set_device)"
)
WORKSPACE_SIZE: Final = Words("get_workspace_size$")
TILING: Final = Words("tiling$")
COMPILES_NPU_OPERATOR: Final = Words("^(?:acl)?op_compile(?:_and_execute)?$")
COMPILES: Final = Words(
    r"^cu_(?:module|library)_load ^hip_module_load ^(?:nvrtc|hiprtc)_compile compile_inner "
    r"entire_frame_compile inductor_compile compile_fx triton_(?:\w+_)?compile "
    r"(?:graph_lowering|scheduler|kernel)_codegen"
)

# Ranges and operations of the framework.
FETCHES_INPUT: Final = Words(
    # Ranges and frames of torch and Lightning, and usual names of annotations.
    r"data_?loader_(?:\w+_)?next ^data_?load(?:ing|er)?$ "
    r"^(?:load|get|fetch|next|wait_?for)(?:ing)?_(?:next_)?(?:data|batch|input)(?:es|s)?$ "
    r"^data_?(?:wait|fetch(?:ing)?|time)$ ^input_?wait$"
)
LOADS_IN_PROCESS: Final = Words("single_process_data_?loader_iter")
EVALUATES_OR_SAVES: Final = Words(
    r"eval(?:uat(?:e|ing|ion))? valid(?:at(?:e|ing|ion))? val checkpoint(?:s|ing)? save saving "
    r"test(?:s|ing)?"
)
READS_RESULT: Final = Words(
    # Operations that always synchronize: these are not a debugging mode.
    r"^aten_(?:item|local_scalar_dense|is_nonzero|nonzero|to|to_copy|copy|masked_select|equal)$ "
    r"^aten_(?:unique|index)"
)
NONZERO: Final = Words("^aten_nonzero$")
COMPILED_REGION: Final = Words("torch_compiled_region compiled_fx_graph ^compiled_function")
COMPILED_KERNEL: Final = Words("^triton_(?:poi|red|per|tem)")

# Kernels and operators.
LOSS: Final = Words("log_soft_?max nll_?loss cross_?entropy")
SOFTMAX: Final = Words("soft_?max")
# Probabilities of classes, experts or tokens, which do not occur in attention.
CHOOSES: Final = Words("top_?k sort gating routing multinomial arg_?max categorical")
# Products of two matrices; those of attention are of batches, one for each head.
LAYER_PRODUCT: Final = Words("^aten_(?:mm|addmm|linear|grouped_mm)$")
FUSED_ATTENTION: Final = Words("flash fmha (?:mem_eff|efficient)_attention")
MULTI_TENSOR: Final = Words("multi_tensor fused foreach apply_(?:adam|momentum)")
PERSISTENT: Final = Words("persistent cooperative cutlass")
ON_AI_CPU: Final = Words("ai_?cpu")
ON_VECTOR_CORE: Final = Words("vector aiv")
DEQUANTIZES: Final = Words("(?:k_)?dequantize")
LAYOUT_OPERATION: Final = Words("^aten_(?:to|to_copy|copy|contiguous|clone)$")
UPDATES_EMBEDDING: Final = Words("embedding_(?:bag_)?dense_backward embedding_(?:bag_)?backward")
SUMS_GRADIENTS: Final = Words(r"gamma_?beta ^aten_sum$")
FUSED_ADAM: Final = Words("fused_(?:optimizer_)?adam")
FILL_OPERATION: Final = Words("^aten_(?:zero|fill|zeros|zeros_like|ones|full)$ ^zeros_like$ ^fill$")
# Comparisons, and norms, whose results programs read; and sums of these.
CHECK: Final = Words(
    r"^aten_(?:is\w+|any|all|eq|ne|lt|le|gt|ge|equal|allclose|logical_\w+|bitwise_\w+|"
    r"count_nonzero)$ ^aten_(?:linalg_)?(?:vector_)?norm$"
)
SUM: Final = Words("^aten_(?:sum|mean|max|min|amax|to|to_copy|copy)$")
# Operations that no backward pass runs, but to compute activations again.
LAYER: Final = Words(
    "^aten_(?:layer_norm|batch_norm|dropout|gelu|silu|scaled_dot_product_attention)$"
)
SECOND_MOMENT: Final = Words("r?sqrt addcdiv")
# Operations that build masks: those that create values, those that fill, and others between them.
TRIANGLE: Final = Words("^aten_tri[lu]$")
CREATES_MASK: Final = Words(
    r"^aten_(?:full|ones|zeros|arange|eq|ne|lt|le|gt|ge|rsub)(?:_like)?$ ^aten_logical_\w+$"
)
FILLS_MASK: Final = Words(r"^aten_(?:masked_fill|where|logical_\w+)$")
BUILDS_MASK: Final = Words(
    r"^aten_(?:full|ones|zeros|arange|eq|ne|lt|le|gt|ge|rsub|to|to_copy|copy|clone|contiguous|"
    r"tri[lu]|masked_fill|where|(?:bitwise|logical)_\w+|fill|zero)(?:_like)?$"
)
PRODUCT: Final = Words("^aten_(?:addmm|mm|bmm|baddbmm|matmul|linear)$")
SCALES: Final = Words("^aten_(?:mul|div|tanh|to|to_copy|copy|contiguous|clone)$")
SELECTS_ROWS: Final = Words("^aten_index(?:_select)?$")
ADDITION: Final = Words("^aten_add$")
ADDS_AT_INDICES: Final = Words("indexing_backward_kernel index_put_with_sort")
ACCUMULATES_GRADIENT: Final = Words("accumulate_grad$")
CLIPS_GRADIENTS: Final = Words("clip_grad_norm$")
NORM: Final = Words("^aten_(?:linalg_)?(?:vector_)?norm$")
NPU_FORMAT_OPERATOR: Final = Words("^trans_data$ ^cast$ ^transpose$ ^strided_slice ^view_copy$")
COPIES_HOST: Final = Words("host_to_device device_to_host h2_d d2_h hto_?d dto_?h", digits=True)
COPIES_TO_DEVICE: Final = Words("host_to_device h2_d hto_?d", digits=True)
COPIES_WITHIN: Final = Words("device_to_device d2_d dto_?d", digits=True)
PAGEABLE: Final = Words("pageable")
PINNED: Final = Words("pinned")
# Letters of CANN's operators in the patterns of FUSED_OPERATIONS.
_STEPS: Final = (
    (Words("^cast$"), "c"),
    (Words("^pow$ ^square$"), "p"),
    (Words("^reduce_mean$"), "m"),
    (Words("^adds?$"), "a"),
    (Words("^rsqrt$"), "r"),
    (Words("^muls?$"), "x"),
    (Words("^real_div$ ^divs?$"), "d"),
    (Words("^(?:silu|swish)$"), "s"),
    (Words("^split$ ^(?:strided_)?slice$ ^view_copy$ ^as_strided$ ^tensor_move$"), "l"),
    (Words("^neg$"), "n"),
    (Words("^concat$"), "k"),
    (Words("^tanh$"), "t"),
    (Words("^erf$"), "e"),
)
# Operations that one operator of CANN computes, as patterns of the operators that compute them
# otherwise: name, pattern, what to use, and the share of the time of the last operator that stays.
# It moves one tensor in and one out, or, if two thirds stay, three with one that is read again.
FUSED_OPERATIONS: Final = (
    ("RMSNorm", re.compile("c?pma?rx(?:xc?|cx?)?"), "torch_npu.npu_rms_norm", 1.0),
    ("SwiGLU", re.compile("l*sl*x"), "torch_npu.npu_swiglu on gate and up in one tensor", 1.0),
    ("rotary embedding", re.compile("x?l*nl*kxx?a"), "torch_npu.npu_rotary_mul", 2 / 3),
    ("GELU", re.compile("[pxad]+[et]ax+"), "torch.nn.functional.gelu", 2 / 3),
)
# Dtypes. cuBLAS, cuDNN and CUTLASS multiply in fp32 without tensor cores (nor TF32) if the name
# has one of the words of FULL_PRECISION.
TF32: Final = Words("tf32 s1688 xf32", digits=True)
NOT_TF32: Final = Words("sgemm f32_f32_f32_f32 scudnn ffma", digits=True)
FULL_PRECISION: Final = Words(
    "sgemm scudnn gemm_f32_f32_f32_f32 (?:fprop|dgrad)_f32_f32",
    but="tf32 fp16 bf16 h884 s884 s1688",
    digits=True,
)
NAMES_PRECISION: Final = Words(
    r"[hsdi]gemm [hs]cudnn [hsi]\d{3,}_gemm tf32 fp16 bf16 f16_f16 f32_f32", digits=True
)
# Dtypes of tensors in lists by the C++ types in names of kernels; the first match decides.
DTYPES: Final = (
    (Words("b_float16 nv_bfloat16 bf16", digits=True), "bf16"),
    (Words("half fp16", digits=True), "fp16"),
    (Words("opaque_type_1", digits=True), "uint8"),
    (Words("opaque_type_2", digits=True), "bf16"),
    (Words("opaque_type_4", digits=True), "fp32"),
    (Words("opaque_type_8", digits=True), "int64"),
    (Words("double"), "fp64"),
    (Words("float"), "fp32"),
)

# Types of device tasks, for tasks that no other table describes.
COLLECTIVE_TASK: Final = Words("hccl nccl rccl communication rdma ccu")
COPY_TASK: Final = Words("mem_?cpy mem_?set sdma pcie copy async_?dma")
WAIT_TASK: Final = Words(
    r"wait record event notify sync barrier profiling maintenance write_?value capture label "
    r"switch nop mstx place_?holder model_(?:execute|end|exit)"
)
KERNEL_TASK: Final = Words(
    r"kernel ai_?core ai_?cpu ai_?vec\w* vector cube mix_ai\w? dsa dvpp stars_common ffts fusion"
)
PROFILER_MARK: Final = Words("^profiling_(?:en|dis)able$")

# Namespaces whose operations all have one class.
_NAMESPACES: Final = dict.fromkeys(
    ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"), COLLECTIVES
)

# Words of operations; the first class that matches decides. An entry is one word, or several with
# `_` between them. `^word` is the first word, `word$` the last, `^word$` the whole name.
_OPERATIONS: Final[tuple[tuple[str, str], ...]] = (
    (EMBEDDING, "split_embedding split_lookup"),
    # The routing of a mixture of experts; its other operations multiply.
    (COLLECTIVES, "moe_distribute"),
    (CAST, r"moe_(?:token_)?(?:un)?permute"),
    (
        REDUCTION,
        "moe_(?:align|sum|sorting|fused_gate|gating|routing|(?:init|finalize|re)_routing"
        "|compute_expert) topk embedding_loss",
    ),
    (
        COLLECTIVES,
        r"all_?reduce all_?gather reduce_?scatter all_?to_?all all_all ^hccl ^hcom ^nccl ^gloo "
        r"^record_param_comms$ multimem nvshmem tile_reduce",
    ),
    (CAST, r"reshape_and_cache kv_cache_update store_cache set_kv_buffer"),
    (ELEMENT_WISE, r"rotary rope"),
    (ATTENTION, r"attention attn sdpa fmha mha mla paged"),
    (
        NORMALIZATION,
        r"q?batch_?norm layer_?norm group_?norm instance_?norm rms_?norm qk_norm response_norm "
        r"^renorm sync_batch",
    ),
    (OPTIMIZER, r"optimizer adam adamw adagrad$ fused_sgd fused_lamb ^apply_adam adam_w"),
    (EMBEDDING, r"embedding lookup sparse_data sparse_features permute_pooled"),
    (
        MATMUL,
        r"^linear ^q?linear$ ^qlinear ^wrapped_quantized_linear ^wrapped_fbgemm_linear "
        r"^fbgemm_linear ^quantized_linear ^mixed_dtypes_linear semi_structured_linear addmm mm "
        r"bmm baddbmm addbmm matmul mat_mul gemm int_mm hspmm smm sspaddmm sampled_addmm ^einsum "
        r"^tensordot ^mv ^addmv ^addr ^ger ^dot ^vdot ^inner ^outer ^bilinear ^trilinear "
        r"^chain_matmul ^linalg_matmul ^linalg_multi_dot ^linalg_vecdot ^kron ^matrix_power "
        r"^linalg_matrix_power moe lstm gru rnn ^cdist ^euclidean_dist ^scaled_mm ^cov ^corrcoef "
        r"int_pack_mm_with_scales",
    ),
    (CONVOLUTION, r"q?conv convolution conv_depthwise im_col col_im ^conv"),
    (
        REDUCTION,
        r"kl_div pool unpool max_?pool avg_?pool softmax log_?softmax loss cross_?entropy "
        r"nll_?loss",
    ),
    (
        CAST,
        r"^to ^to_copy ^copy ^clone ^foreach_clone ^contiguous cached_contiguous "
        r"format_contiguous contiguous_[dh] ^type_as ^transpose ^permute cast ^cat ^concat "
        r"^concatenate ^chunk_cat ^stack ^hstack ^vstack ^dstack ^column_stack ^row_stack ^pad "
        r"^constant_pad pad_sequence ^reflection_pad ^replication_pad pad_circular ^slice ^split "
        r"^narrow ^repeat ^tile ^expand ^broadcast ^flatten ^unflatten ^reshape ^roll ^rot ^flip "
        r"^fliplr ^flipud ^chunk ^unbind trans_data ^unsafe_split ^unsafe_chunk ^unfold "
        r"^meshgrid ^cartesian_prod ^combinations ^block_diag ^diag_embed ^pixel_shuffle "
        r"^pixel_unshuffle ^channel_shuffle ^foreach_copy ^select$ ^diagonal$ ^diag$ ^diagflat "
        r"chalf obs_fq_helper ^saturate_weight format copy_bucket ^detach ^index_copy$ "
        r"^convert_element_type quant quantize quantized dequantize fake_quantize to_?float "
        r"float_?to.* rowwise_quantized.* \w+_copy$ ^to_dense ^to_padded ^to_mkldnn "
        r"^mkldnn_reorder ^reorder convert_weight convert_indices ^lazy_clone ^swapaxes "
        r"^swapdims ^padded_dense jagged_to_padded padded_dense_to_jagged nested_from_padded "
        r"identity ^resize_as ^pin_memory ^set_data strided_slice transdata memory_format",
    ),
    (
        EMBEDDING,
        r"index ^unsafe_index ^unsafe_masked_index ^gather gather scatter ^take ^put "
        r"^masked_select ^masked_scatter one_hot coalesce grid_sampler ^affine_grid",
    ),
    (
        REDUCTION,
        r"^sum ^xor_sum ^max$ ^min$ ^nansum ^mean ^nanmean ^amax ^amin ^aminmax ^argm\w+ ^topk "
        r"top_k ^sort ^argsort ^msort sort_tokens ^cum\w+ cumsum ^norm$ ^norm_except "
        r"^frobenius_norm ^nuclear_norm ^all$ ^any$ ^prod ^var ^std ^entropy ^logsumexp "
        r"^special_logsumexp ^logcumsumexp ^nonzero ^argwhere ^unique ^linalg_\w*norm "
        r"^linalg_powsum ^is_nonzero ^histc ^histogram\w* ^bincount ^count_nonzero ^median "
        r"^nanmedian ^mode$ ^kthvalue ^quantile ^nanquantile ^trace ^foreach_norm "
        r"^foreach_powsum ^foreach_max ^native_norm ^dist ^pdist ^pairwise_distance "
        r"^cosine_similarity ^searchsorted ^bucketize ^multinomial ^is_all_true ^is_any_true "
        r"^segment_reduce ^equal$ ^allclose ^sparse_sum ^sparse_\w*prod ^trapz ^trapezoid "
        r"^cumulative_trapezoid weight_norm ^convex_sum offsets_range lengths_range\w* ^aminmax "
        r"^isin reduce_?sum grad_sum_to_size ^value_selecting_reduction ^hash_tensor "
        r"^sum_to_size ^sparse_mm_reduce ^amp_foreach_non_finite\w*",
    ),
    (
        ELEMENT_WISE,
        r"^foreach ^add ^addc\w+ ^axpy ^sub ^subtract ^rsub ^mul ^muls ^multiply ^div ^divs "
        r"^divide ^true_divide ^real_div floor_divide ^neg ^negative ^positive ^abs ^absolute "
        r"^exp ^expm ^log ^logaddexp ^float_power ^pow ^sqrt ^rsqrt ^square ^sinc? ^cos ^tan "
        r"^sinh ^cosh ^tanh ^a(?:rc)?(?:sin|cos|tan)h? ^hypot sigmoid log_sigmoid gelu relu "
        r"prelu rrelu leaky_relu silu mish [cs]?elu ^hard\w+ ^softplus ^softshrink swi_?glu ^glu "
        r"act_and_mul dropout ^feature_dropout drop_out\w* ^where ^masked_fill ^masked_scale "
        r"^clamp ^clip ^fill fill$ ^zero ^zeros zeros_like$ ones_like ^ones ^full ^eq ^ne ^lt "
        r"^le ^gt ^ge ^less ^greater ^not_equal ^equal ^logical ^bitwise ^rand ^randn ^randint "
        r"^randperm ^random ^normal ^log_normal ^uniform ^bernoulli ^binomial ^poisson ^cauchy "
        r"^geometric ^exponential ^philox ^standard_gamma ^dirichlet ^sample_dirichlet ^arange "
        r"^range ^linspace ^logspace ^eye ^erf\w* ^lerp ^reciprocal ^round ^floor ^ceil ^trunc "
        r"^fix ^fma ^frac ^nan_to_num ^threshold ^logit ^maximum ^minimum ^fmax ^fmin ^fmod "
        r"^remainder ^copysign ^nextafter ^ldexp ^frexp ^heaviside ^xlogy ^polygamma ^digamma "
        r"^lgamma ^mvlgamma ^igammac? ^i$ ^isnan ^isinf ^isfinite ^isreal ^isclose ^isposinf "
        r"^isneginf ^signbit ^sign ^sgn ^angle ^conj_physical ^complex ^polar ^deg_rad ^rad_deg "
        r"^gcd ^lcm ^tril ^triu ^special_\w+ ^(?:bartlett|blackman|hann|hamming|kaiser)_window "
        r"^amp_update_scale ^upsample ^cross ^linalg_cross ^diff ^gradient "
        r"^i?(?:and|or|xor|lshift|rshift)$ ^new_(?:zeros|ones|full) ^scalar_tensor "
        r"^squared_difference ^expint ^inv ^invert ^ndtri ^xdivy ^xlog ^bessel ^spence "
        r"^accumulate_nv ^rint ^power ^eltwise ^is_(?:nan|inf|finite|pos_inf|neg_inf|close) "
        r"^(?:add|fill)s ^next_after ^soft_?(?:sign|shrink) ^infinitely_differentiable_gelu "
        r"^native_dropout ^fused_dropout less greater adaptive_scale",
    ),
)

# Words of kernels and of operator types of vendors, likewise; each class precedes those whose words
# its names may contain as well.
_KERNELS: Final[tuple[tuple[str, str], ...]] = (
    (EMBEDDING, "split_embedding"),
    (
        COLLECTIVES,
        r"nccl rccl msccl hccl hcom horovod all_?reduce all_?gather reduce_?scatter "
        r"all_?to_?allv? cross_device_reduce multimem nvshmem lamport",
    ),
    (
        CAST,
        r"reshape_and_cache (?:con)?cat_and_cache concat_mla store_?kv "
        r"kv_?cache_(?:\w+_)?(?:store|write|copy) page_indices",
    ),
    (
        ATTENTION,
        r"attention attn flash_(?:fwd|bwd) fmha mha mla neighborhood bwd_(?:\w+_)?d[kqv][dkqv]* "
        r"softmax_(?:\w+_)?bmm flashinfer_(?:\w+_)?(?:prefill|decode)[a-z]* kv_indices "
        r"reduce_segments",
    ),
    (
        OPTIMIZER,
        r"adamw? ada_?max fused_?(?:sgd|lamb|adagrad|lion) "
        r"(?:sgd|lamb|adagrad|lion)_(?:math_)?functor "
        r"apply_(?:\w+_)?(?:momentum|gradient|rms_?prop|lamb|ada[a-z]+|ftrl|sign) ^sgd$ ^lamb",
    ),
    (
        NORMALIZATION,
        r"(?:batch|layer|group|instance|(?:qk)?rms|sync_bn|qk|poly|residual|l)_?norm[a-z]* "
        r"^renorm ln_(?:fwd|bwd) cudnn_bn bn_[fb]w[a-z]* "
        r"(?:bn|in|gn)_?(?:d_)?(?:training|infer)[a-z]* welford[a-z]* gamma_?beta moments_?cuda "
        r"rowwise_?moments[a-z]*",
    ),
    (
        CAST,
        r"nchw_?to_?nhwc nhwc_?to_?nchw nchw_nhwc nhwc_nchw cnhw permute_?kernel trans_?data "
        r"convert_?tensor \w+_copy_kernel copy_functor direct_copy copy_blocks split_qkv "
        r"cat_kernel convert_fp copy_device_to_device h?fp_to_float [a-z]*rowwise_to_?float "
        r"float_?to[a-z_]*",
    ),
    (
        CONVOLUTION,
        r"(?:de)?conv(?:ol[a-z]+)? fprop [dw]grad igemm_(?:fwd|bwd|wrw) winograd im_?col col_?im "
        r"scudnn xdlops_bwd_weight miopen_(?:\w+_)?(?:gemm|sp) vol_?col col_?vol fft_d "
        r"compute_(?:[ab]_)?offsets",
    ),
    (
        MATMUL,
        r"(?!fb)[a-z]*gemm[a-z]* t?gmm lora_(?:expand|shrink) [a-z]*gemv[a-z]* nvjet cijk "
        r"mat_?mul bmm mm split_?k[a-z]* stream_?k xmma cublas tensorop dot_kernel addmm baddbmm "
        r"wv_?split_?k fused_moe moe_(?:persistent_)?kernel moe_stage tensile",
    ),
    (ELEMENT_WISE, r"rotary m?rope (?:act|situ)_and_mul swi_?glu"),
    (REDUCTION, r"top_?k[dv]* sort embedding_loss moe_(?:align|sum|sorting|fused_gate) [sm]btopk"),
    (
        EMBEDDING,
        r"embeddings? gather[a-z]* scatter "
        r"index_?(?:select|put|add|copy|fill|func|elementwise|kernel) indexing_backward lookup "
        r"sparse_(?:data|features)",
    ),
    (
        CAST,
        r"transpose cast cast_tensor (?:re|de|anti_)?quant[a-z]* cat_?array[a-z]* batched_?copy "
        r"concat[a-z]* stack_?kernel strided_?slice tensor_?move as_?strided view_?copy "
        r"broadcast_to constant_pad pad(?:_v)?(?:_grad)?$ padded padding unpack split(?:_vd)?$ "
        r"slice ^tile identity contiguous reformat pack$ permute copy_page roll_cuda flip_kernel "
        r"triu_tril memcpy repeat_interleave copy_kernel",
    ),
    (COPIES, "mem_?set"),
    (
        REDUCTION,
        r"redu[a-z]+ soft_?max[a-z]* log_?sum_?exp arg_?(?:max|min) cum_?(?:sum|prod) scan cub "
        r"rocprim loss nll_criterion cross_?entropy kl_?div jsd tv_distance vocab_parallel radix "
        r"[a-z]*pool(?:ing)? histogram unique non_?zero triton_(?:red|per) sum routing norm mean "
        r"bincount search_?sorted multinomial any_kernel all_kernel tensor_equal",
    ),
    (
        ELEMENT_WISE,
        r"element_?wise pointwise triton_poi multi_tensor_apply functor foreach drop_?out gelu "
        r"relu silu sigmoid tanh swish [a-z]*_?glu soft_?cap activation threshold bias_?act fill "
        r"add mul sub div axpy ones_?like zeros_?like zeros? where select clamp clip equal less "
        r"greater logical bitwise pow sqrt exp log neg abs sign sin cos erf floor ceil round dsa "
        r"distribution random philox uniform normal masked range arange lerp maximum minimum mse "
        r"scale reciprocal square mod tensor_?op grad$ op_?tensor assign",
    ),
)

_PREFIXES: Final = re.compile(
    r"^(?:(?:native|miopen|cudnn|npu|mkldnn|aclnn|inplace|thnn|no_grad)_)+"
)
_SUFFIX: Final = re.compile(r"(?:_backward|_grad|_out|_jvp)+$")
# Operations that only move data; one other operation makes a fused Triton kernel compute.
_MOVES: Final = (
    "unsafe_view view reshape permute transpose t unsqueeze squeeze expand as_strided slice select "
    "split_with_sizes split unbind clone to_copy copy cat stack empty_like constant_pad_nd pad flip"
)
_MOVING_TRITON: Final = re.compile(rf"triton_\w+?_fused(?:_(?:{_MOVES.replace(' ', '|')}))+$")
_MOVING_KERNEL: Final = _pattern(
    r"direct_copy_kernel batched_transpose transpose_(?!conv)\w+ "
    r"(?:nchw_?to_?nhwc|nhwc_?to_?nchw|convert_?tensor)\w*_kernel"
)
# The fifth template argument of torch's kernel for short rows.
_LOG_SOFTMAX: Final = re.compile(r"softmax_warp_\w+<[^<>]*,\s*\d+,\s*(?:true|\(bool\)1)")
# Loaders and casts of unrolled kernels, which are part of any element-wise operation.
_NO_CAST: Final = re.compile(r"(?:load|store)_with(?:out)?_cast|no_?cast|with_cast$")
_NOTHING: Final = frozenset({"", NOT_AVAILABLE, None})


def _first_match(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    """Return the result of the first entries of a table that are found in a text."""
    return next((result for result, entries in table if _pattern(entries).search(text)), None)


@lru_cache(maxsize=1 << 14)
def step_of_fusion(name: str) -> str:
    """Return the letter of an operator in the patterns of FUSED_OPERATIONS, or a dot."""
    return next((letter for wanted, letter in _STEPS if wanted(name)), ".")


def is_product(name: str) -> bool:
    """Return True if an operation or a kernel multiplies matrices."""
    return MATMUL in (class_of_kernel(name), class_of_operation(name))


def has_few_blocks(name: str) -> bool:
    """Return True if kernels of this name may have few blocks by design."""
    classes = {class_of_kernel(name), class_of_operation(name)}
    return not classes.isdisjoint((*MATRIX, COLLECTIVES)) or PERSISTENT(name)


def is_log_softmax(name: str) -> bool:
    """Return True if a kernel computes a loss or log_softmax: a softmax outside attention."""
    return LOSS(name) or _LOG_SOFTMAX.search(name) is not None


@lru_cache(maxsize=1 << 14)
def moves_only(name: str) -> bool:
    """Return True if a kernel only copies, casts or changes the layout.

    One other operation among those of a fused Triton kernel makes it compute.
    """
    text = letters(name)
    if text.startswith("triton_"):
        return _MOVING_TRITON.match(text) is not None
    return _MOVING_KERNEL.search(text) is not None


@lru_cache(maxsize=1 << 14)
def class_of_operation(name: str | None) -> str | None:
    """Return the class by the name of a framework operation, or None."""
    if name is None or name in _NOTHING:
        return None
    name = name.removeprefix("autograd::engine::evaluate_function: ").removeprefix("Dequeue@")
    # The words of a fused kernel are those of all its parts: its own class decides.
    if name.startswith("triton_"):
        return None
    namespace, _, bare = name.rpartition("::") if "<" not in name else ("", "", name)
    if (found := _NAMESPACES.get(namespace)) is not None:
        return found
    text = letters(bare)
    text = _SUFFIX.sub("", _PREFIXES.sub("", text)) or text
    return _first_match(_OPERATIONS, text)


def class_of_kernel(name: str | None) -> str | None:
    """Return the class by the name of a kernel or a vendor's operator type, or None."""
    if name is None or name in _NOTHING:
        return None
    found = _class_of_kernel(letters(name))
    # Types of operators of vendors are no names of functions: `MatMulV3`.
    return found or (class_of_operation(name) if name.isalnum() else None)


@lru_cache(maxsize=1 << 16)
def _class_of_kernel(text: str) -> str | None:
    if text.startswith("triton_"):
        # All operations of a fused kernel are in its name; its prefix is what it computes.
        if _MOVING_TRITON.match(text):
            return CAST
        if text.startswith("triton_poi"):
            return ELEMENT_WISE
    text = _NO_CAST.sub("", text)
    return _first_match(_KERNELS, text)
