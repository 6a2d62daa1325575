"""Kernels and operations of one kind have one class, whichever library provides them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unified_prof.explain.api import open_analyses
from unified_prof.explain.kernel_classes import (
    CLASSES,
    class_of,
    class_of_kernel,
    classes_of,
)
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.explain.operation_names import (
    ATTENTION,
    CAST,
    COLLECTIVES,
    CONVOLUTION,
    COPIES,
    ELEMENT_WISE,
    EMBEDDING,
    MATMUL,
    NORMALISATION,
    OPTIMIZER,
    REDUCTION,
    REST,
    class_of_operation,
)
from unified_prof.pipeline.convert import convert
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, OTHER, Labels

NATIVE = "void at::native::"
VECTORIZED = f"{NATIVE}vectorized_elementwise_kernel<4, at::native::"
SDPA = "aten::scaled_dot_product_attention"
MULTI_TENSOR = f"{NATIVE}multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor>"
SUM = f"{NATIVE}reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor<float> > >"

KERNELS = [
    (MATMUL, "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNN"),
    (MATMUL, "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nt_align4>(Params)"),
    (MATMUL, "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN"),
    (MATMUL, "ampere_sgemm_32x128_nn"),
    (MATMUL, "void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)"),
    (MATMUL, "MatMulV3"),
    (MATMUL, "GroupedMatmul"),
    (MATMUL, "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu"),
    (CONVOLUTION, "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_nhwckrsc_nchw_cudnn"),
    (CONVOLUTION, "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"),
    (CONVOLUTION, "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8"),
    (CONVOLUTION, "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl"),
    (CONVOLUTION, "Conv2DBackpropFilter"),
    (ATTENTION, "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>"),
    (ATTENTION, "attn_fwd"),
    (ATTENTION, "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal"),
    (ATTENTION, "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, 128>"),
    (ATTENTION, "FlashAttentionScore"),
    (ATTENTION, "PromptFlashAttention"),
    (NORMALISATION, "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>(Args)"),
    (NORMALISATION, f"{NATIVE}(anonymous namespace)::vectorized_layer_norm_kernel<float>"),
    (NORMALISATION, "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass"),
    (NORMALISATION, "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0EEEv"),
    (NORMALISATION, f"{NATIVE}unrolled_elementwise_kernel_for_multi_outputs<3, batch_norm_update>"),
    (NORMALISATION, "AddRmsNorm"),
    (NORMALISATION, "BNTrainingUpdate"),
    (ELEMENT_WISE, f"{VECTORIZED}CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"),
    (
        ELEMENT_WISE,
        f"{NATIVE}unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, "
        "at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1> >",
    ),
    (
        ELEMENT_WISE,
        f"{NATIVE}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
        "at::native::BinaryFunctor<float, float, float, MulFunctor<float> > > >",
    ),
    (ELEMENT_WISE, f"{VECTORIZED}GeluCUDAKernelImpl(at::TensorIteratorBase&)>"),
    (ELEMENT_WISE, "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)"),
    (ELEMENT_WISE, "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16"),
    (ELEMENT_WISE, "triton_poi_fused_add_cos_sin_0"),
    (ELEMENT_WISE, "RealDiv"),
    (ELEMENT_WISE, "DropOutDoMask"),
    (ELEMENT_WISE, "ReluGrad"),
    (REDUCTION, f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float> > >"),
    (REDUCTION, "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>"),
    (REDUCTION, "triton_red_fused_add_mean_mul_pow_rsqrt_0"),
    (REDUCTION, "LogSoftmaxV2"),
    (REDUCTION, "ReduceSumD"),
    (REDUCTION, "MaxPoolWithArgmaxV1"),
    (EMBEDDING, f"{NATIVE}vectorized_gather_kernel<16, long>(char*, char*, long*)"),
    (
        EMBEDDING,
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, 2ul>(fbgemm_gpu)",
    ),
    (EMBEDDING, "GatherV2"),
    (EMBEDDING, "EmbeddingDenseGrad"),
    (OPTIMIZER, f"{NATIVE}multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>"),
    (OPTIMIZER, "ApplyAdamWV2"),
    (OPTIMIZER, "ApplyMomentum"),
    (CAST, f"{VECTORIZED}bfloat16tofloat32_copy_kernel_cuda(at::TensorIteratorBase&)>"),
    (CAST, f"{NATIVE}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Tensor)>"),
    (CAST, "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)"),
    (CAST, "batched_transpose_16x32_half"),
    (CAST, f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>"),
    (CAST, "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>"),
    (CAST, "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>"),
    (CAST, "triton_poi_fused__to_copy_1"),
    (CAST, "TransData"),
    (CAST, "Cast"),
    (CAST, "TensorMove"),
    (CAST, "StridedSliceD"),
    (COPIES, "MemSet"),
    (COLLECTIVES, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    (COLLECTIVES, "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>"),
    (COLLECTIVES, "hcom_allReduce__428_0_1"),
    (
        ELEMENT_WISE,
        f"{NATIVE}unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<int>,"
        " at::native::memory::LoadWithoutCast, at::native::memory::StoreWithoutCast>",
    ),
    (REDUCTION, "void moe::dev::routing::routingIndicesOffsetsKernel<moe::dev::routing::P<4> >"),
    (CONVOLUTION, "void cudnn::cnn::kern_precompute_indices<false>::computeOffsetsKernel"),
]

OPERATIONS = [
    (MATMUL, "aten::linear"),
    (MATMUL, "aten::mm"),
    (MATMUL, "AddmmBackward0"),
    (MATMUL, "npu::npu_grouped_matmul"),
    (MATMUL, "vllm::rocm_unquantized_gemm"),
    (CONVOLUTION, "aten::miopen_convolution"),
    (CONVOLUTION, "ConvolutionBackward0"),
    (ATTENTION, "aten::scaled_dot_product_attention"),
    (ATTENTION, "npu::npu_fusion_attention"),
    (ATTENTION, "vllm::unified_attention_with_output"),
    (NORMALISATION, "NativeLayerNormBackward0"),
    (NORMALISATION, "npu::npu_rms_norm"),
    (NORMALISATION, "_C::fused_add_rms_norm"),
    (NORMALISATION, "aten::cudnn_batch_norm"),
    (ELEMENT_WISE, "aten::add_"),
    (ELEMENT_WISE, "aten::gelu"),
    (ELEMENT_WISE, "npu::npu_swiglu"),
    (ELEMENT_WISE, "npu::npu_rotary_mul"),
    (ELEMENT_WISE, "aten::_foreach_mul_"),
    (REDUCTION, "aten::_softmax"),
    (REDUCTION, "aten::cross_entropy_loss"),
    (REDUCTION, "aten::max_pool2d"),
    (EMBEDDING, "aten::embedding"),
    (EMBEDDING, "aten::index_select"),
    (OPTIMIZER, "Optimizer.step#AdamW.step"),
    (OPTIMIZER, "aten::_fused_adamw_"),
    (CAST, "aten::to"),
    (CAST, "aten::_to_copy"),
    (CAST, "aten::contiguous"),
    (CAST, "npu::npu_format_cast"),
    (COLLECTIVES, "c10d::allreduce_"),
    (COLLECTIVES, "vllm::all_reduce"),
    (None, "vllm::opaque"),
    (None, ""),
    (None, None),
]


@pytest.mark.parametrize(("expected", "name"), KERNELS)
def test_kernel_has_the_class_of_its_computation(expected: str, name: str) -> None:
    assert class_of_kernel(name) == expected
    assert class_of(KERNEL, name) == expected


@pytest.mark.parametrize(("expected", "name"), OPERATIONS)
def test_operation_has_the_class_of_its_computation(expected: str | None, name: str | None) -> None:
    assert class_of_operation(name) == expected


@pytest.mark.parametrize("name", ["", "N/A", "hip_opaque_4711", "x" * 100_000])
def test_opaque_name_has_class_other(name: str) -> None:
    assert class_of(KERNEL, name, name, name) == REST


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        (COPIES, (COPY, "memcpy host to device", None, "aten::linear")),
        (COLLECTIVES, (COMMUNICATION, "N/A__N/A_4_1")),
        # All kernels of an attention operation, fused or not, are attention.
        (ATTENTION, (KERNEL, "attn_fwd", "aten::_flash_attention_forward", SDPA)),
        (ATTENTION, (KERNEL, "ampere_sgemm_32x128_nn", "aten::bmm", SDPA)),
        (ATTENTION, (KERNEL, "softmax_warp_forward<float>", "aten::_softmax", SDPA)),
        (ATTENTION, (KERNEL, "BatchMatMulV2", "BatchMatMulV2", SDPA)),
        # Casts keep their class in any operation.
        (CAST, (KERNEL, "trans_TransData_12", "TransData", "aten::linear")),
        (CAST, (KERNEL, "aclnnCast_CastAiCore_Cast", "Cast", "aten::layer_norm")),
        (CAST, (KERNEL, "x_copy_kernel_cuda", "aten::copy_", "Optimizer.step#SGD.step")),
        # The vendor's operator type has priority over the kernel name.
        (COPIES, (KERNEL, "Conv2DBackpropFilter6_MemSet", "MemSet", "aten::conv2d")),
        (MATMUL, (KERNEL, "AdaptiveAvgPool2d24LeftBatchMatMulV2", "BatchMatMulV2")),
        (CONVOLUTION, (KERNEL, "volta_sgemm_64x64_nn", "aten::cudnn_convolution")),
        (ELEMENT_WISE, (KERNEL, MULTI_TENSOR, "aten::_foreach_add_")),
        # The gradient of a bias is a reduction.
        (REDUCTION, (KERNEL, SUM, "aten::sum", "aten::linear")),
    ],
)
def test_class_depends_on_kind_kernel_operator_and_operation(
    expected: str, arguments: tuple[Any, ...]
) -> None:
    assert class_of(*arguments) == expected


def test_kernels_launched_by_an_optimizer_are_optimizer_kernels() -> None:
    kernel = (KERNEL, MULTI_TENSOR, "aten::_foreach_add_")
    assert class_of(*kernel, in_optimizer=True) == OPTIMIZER


def test_every_class_has_an_example() -> None:
    examples = {expected for expected, _ in (*KERNELS, *OPERATIONS)}
    assert examples - {None} == set(CLASSES) - {REST}
    assert len(set(CLASSES)) == len(CLASSES)


def test_vectorized_classification_equals_that_of_single_tasks() -> None:
    texts = [name for _, name in (*KERNELS, *OPERATIONS) if name is not None]
    labels = Labels(texts)
    generator = np.random.default_rng(0)
    kernel, operator, operation = generator.integers(-1, len(texts), (3, 3000))
    kind = generator.choice([KERNEL, KERNEL, COPY, COMMUNICATION, OTHER], 3000)
    in_optimizer = generator.integers(0, 2, 3000)
    found = classes_of(labels, kind, kernel, operator, operation, in_optimizer)
    for at, place in enumerate(found.tolist()):
        names = (labels.text(int(one[at])) for one in (kernel, operator, operation))
        expected = class_of(int(kind[at]), *names, in_optimizer=bool(in_optimizer[at]))
        assert CLASSES[place] == expected


def test_numbers_in_kernel_names_do_not_change_the_class() -> None:
    assert class_of_kernel("Add116") == class_of_kernel("Add29") == ELEMENT_WISE
    assert class_of_kernel("trans_TransData_12") == CAST
    assert class_of_kernel("im2col_kernel") == CONVOLUTION
    assert class_of_kernel("gemm" + "x" * 1_000_000) == MATMUL


@pytest.mark.slow
def test_class_other_is_at_most_2_percent_of_real_kernel_time(shared: Path, tmp_path: Path) -> None:
    for trace in sorted((shared / "samples" / "kineto").glob("*.json.gz")):
        if "capture" in trace.name or "non_gpu" in trace.name:
            continue
        file = tmp_path / f"{trace.name}.db"
        convert(trace, file)
        with open_analyses(file) as (analysis,):
            assert isinstance(analysis, MsprofAnalysis)
            work = analysis.recording.work
            texts = work.labels
            classified = [
                (class_of(kind, texts.text(kernel), texts.text(operator)), time)
                for kind, kernel, operator, time in zip(
                    work.kind.tolist(),
                    work.kernel.tolist(),
                    work.operator.tolist(),
                    work.duration_ns.tolist(),
                    strict=True,
                )
            ]
            other = sum(time for found, time in classified if found == REST)
            assert other <= 0.02 * sum(time for _, time in classified), trace.name
