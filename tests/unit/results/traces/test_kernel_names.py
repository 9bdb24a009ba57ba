"""What kernels compute, by names that libraries of several generations give them."""

import pytest

from scalescope.results.traces.kernel_names import (
    is_convolution,
    is_elementwise,
    is_layout,
    is_product,
    uses_matrix_units,
)

ON_MATRIX_UNITS = [
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "ampere_fp16_s1688gemm_fp16_128x64_ldg8_f2f_nn",
    "volta_h884gemm_128x64_ldg8_nn",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4>(Params)",
]
CONVOLUTIONS_ON_MATRIX_UNITS = [
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_kernel",
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_kernel_cudnn",
]
ATTENTION = [
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x64_4x1x1_kernel0_0",
]
PLAIN_PRODUCTS = [
    "ampere_sgemm_128x64_nn",
    "volta_sgemm_32x128_tn",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(Params)",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(Params)",
]
PLAIN_CONVOLUTIONS = [
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(Params)",
    "cudnn::winograd::generateWinogradTilesKernel",
]
LAYOUTS = [
    "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true>(Params)",
    "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>(Params)",
]
ELEMENTWISE = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)",
    "triton_poi_fused_add_gelu_3",
]
OTHERS = [
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>(Params)",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(Params)",
    "",
]
ALL = [
    *ON_MATRIX_UNITS,
    *CONVOLUTIONS_ON_MATRIX_UNITS,
    *ATTENTION,
    *PLAIN_PRODUCTS,
    *PLAIN_CONVOLUTIONS,
    *LAYOUTS,
    *ELEMENTWISE,
    *OTHERS,
]
SHORT_FORMATS = [*ON_MATRIX_UNITS, *CONVOLUTIONS_ON_MATRIX_UNITS, *ATTENTION]


@pytest.mark.parametrize("name", ALL)
def test_a_product_is_known_and_whether_it_is_one_of_small_matrices(name: str) -> None:
    assert is_product(name) == (name in [*SHORT_FORMATS, *PLAIN_PRODUCTS, *PLAIN_CONVOLUTIONS])
    assert uses_matrix_units(name) == (name in SHORT_FORMATS)


@pytest.mark.parametrize("name", ALL)
def test_a_convolution_is_neither_attention_nor_a_change_of_layout(name: str) -> None:
    assert is_convolution(name) == (name in [*CONVOLUTIONS_ON_MATRIX_UNITS, *PLAIN_CONVOLUTIONS])


@pytest.mark.parametrize("name", ALL)
def test_layouts_and_elementwise_kernels_are_nothing_else(name: str) -> None:
    assert is_layout(name) == (name in LAYOUTS)
    assert is_elementwise(name) == (name in ELEMENTWISE)
