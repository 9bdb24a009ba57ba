"""Traces on disk, and what events are known by their names."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalescope.results.traces import events as trace
from scalescope.results.traces.events import TraceFile, is_communication, is_transfer, read_events, trace_name
from scalescope.results.traces.names import (
    allocates,
    is_convolution,
    is_elementwise,
    is_layout,
    is_product,
    releases,
    uses_matrix_units,
    waits_for_gpu,
)

WHOLE = {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}


def written(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "gloo:all_reduce",
        "gloo:send 0->1",
        "nccl:all_reduce",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    ],
)
def test_transfers_are_known_by_their_names(name: str) -> None:
    assert is_communication(name)


def test_on_the_host_only_gloo_s_events_are_transfers_themselves() -> None:
    assert is_transfer("gloo:all_reduce")
    assert not any(map(is_transfer, ["nccl:all_reduce", "ncclDevKernel_AllReduce", "c10d::allreduce_"]))


@pytest.mark.parametrize("name", ["aten::mm", "c10d::allreduce_", "not gloo:", "scalescope.backward", ""])
def test_other_events_are_no_transfers(name: str) -> None:
    assert not is_communication(name)


def test_every_rank_and_launch_has_a_trace_of_its_own() -> None:
    assert trace_name("abc", 1, 23) == "traces/abc-1-23.pt.trace.json.gz"


def test_the_parts_of_a_step_have_names_of_their_own() -> None:
    names = {trace.INPUT, trace.FORWARD, trace.BACKWARD, trace.OPTIMIZER, trace.CLEAR, trace.COMPUTE}
    assert len(names) == 6
    assert all(name.startswith(trace.PREFIX) for name in names)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("content", [{"traceEvents": [WHOLE]}, [WHOLE]], ids=["object", "list"])
def test_both_kinds_of_chrome_traces_are_read(tmp_path: Path, name: str, content: Any) -> None:
    assert read_events(written(tmp_path / name, content)) == [WHOLE]


def test_only_complete_events_count(tmp_path: Path) -> None:
    others = [{**WHOLE, "ph": "i"}, {"ph": "X", "ts": 1}, {"ts": 1, "dur": 1}, None, 3, "X"]
    assert read_events(written(tmp_path / "trace.json", [*others, WHOLE])) == [WHOLE]


@pytest.mark.parametrize("content", [{}, {"traceEvents": None}, {"traceEvents": {}}, 3, "text", None])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match="not a Chrome trace: it has no list of events"):
        read_events(written(tmp_path / "trace.json", content))


def _cut_off(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def _scribbled(whole: bytes) -> bytes:
    """A block in the middle overwritten."""
    return whole[:100] + b"\xff" * 200 + whole[300:]


@pytest.mark.parametrize("damage", [_cut_off, _scribbled])
def test_a_damaged_file_is_reported(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = written(tmp_path / "trace.json.gz", [{**WHOLE, "name": f"aten::{n * n}"} for n in range(500)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="the file is damaged"):
        read_events(path)


def test_small_files_that_unpack_to_large_ones_are_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="when decompressed"):
        list(TraceFile(path, most=1_000_000))


def test_facts_about_the_job_are_kept_wherever_they_stand_and_no_others(tmp_path: Path) -> None:
    content = {
        "user": "somebody",
        "distributedInfo": {"rank": 3},
        "traceEvents": [WHOLE] * 3,
        "number": 12345,
        "deviceProperties": [{"name": "a GPU"}],
    }
    file = TraceFile(written(tmp_path / "trace.json", content))
    assert list(file) == [WHOLE] * 3
    assert file.facts == {"distributedInfo": {"rank": 3}, "deviceProperties": [{"name": "a GPU"}]}


@pytest.mark.parametrize(
    "values",
    [
        {"dur": -1},
        {"ts": "NaN"},
        {"ts": float("nan")},
        {"dur": float("inf")},
        {"ts": 1e300},
        {"ts": 10**400},
        {"args": 3},
        {"tid": []},
    ],
)
def test_events_without_a_usable_time_are_counted_and_left_out(tmp_path: Path, values: Any) -> None:
    file = TraceFile(written(tmp_path / "trace.json", [WHOLE, {**WHOLE, **values}, WHOLE]))
    assert list(file) == [WHOLE] * 2
    assert file.refused == 1


@pytest.mark.parametrize("value", ["12.5", 10**18, -3])
def test_a_time_may_be_text_large_or_before_the_first(tmp_path: Path, value: Any) -> None:
    file = TraceFile(written(tmp_path / "trace.json", [{**WHOLE, "ts": value}]))
    assert ([event["ts"] for event in file], file.refused) == ([value], 0)


def test_a_name_with_broken_letters_is_kept_without_them(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", [WHOLE])
    path.write_bytes(path.read_bytes().replace(b"aten", b"at\xffn"))
    assert [event["name"] for event in TraceFile(path)] == ["at\ufffdn::mm"]


def test_a_link_to_a_trace_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(written(tmp_path / "trace.json", [WHOLE]))
    with pytest.raises(OSError, match="link"):
        list(TraceFile(link))


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [{"a": 1},',
        '[{"a": 1}, {"a":',
        '{"traceEvents": [{"a": ' + "[" * 100_000,
        "[" + "9" * 5000 + ", 1]",
        '[{"a": x}]',
    ],
    ids=["cut off", "a list cut off", "deep", "a number of 5,000 digits", "not JSON"],
)
def test_hostile_text_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"damaged|nested") as refusal:
        list(TraceFile(path))
    assert len(str(refusal.value).splitlines()) == 1


def test_a_value_may_be_longer_than_a_piece_of_the_file(tmp_path: Path) -> None:
    long = {**WHOLE, "name": "n" * 1_000_000}
    assert list(TraceFile(written(tmp_path / "trace.json.gz", [WHOLE, long, WHOLE]))) == [WHOLE, long, WHOLE]


WAITS = [
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cudaMemcpy",
    "cuMemcpyDtoH_v2",
]
ALLOCATES = ["cudaMalloc", "cudaHostAlloc", "cuMemCreate", "cuMemMap", "cudaMallocAsync", "cudaHostRegister"]
RELEASES = ["cudaFree", "cudaFreeHost", "cuMemFree_v2", "cuMemRelease", "cuMemUnmap", "cudaHostUnregister"]
NEITHER = [
    "cudaLaunchKernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaStreamWaitEvent",
    "cudaGraphLaunch",
    "cudaMemGetInfo",
]


def test_a_call_is_known_by_its_name() -> None:
    names = [*WAITS, *ALLOCATES, *RELEASES, *NEITHER]
    assert list(filter(waits_for_gpu, names)) == WAITS
    assert list(filter(allocates, names)) == ALLOCATES
    assert list(filter(releases, names)) == RELEASES


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


def test_kernels_are_known_by_their_names() -> None:
    """A convolution is neither attention nor a change of layout; elementwise kernels are nothing else."""
    assert list(filter(is_product, ALL)) == [*SHORT_FORMATS, *PLAIN_PRODUCTS, *PLAIN_CONVOLUTIONS]
    assert list(filter(uses_matrix_units, ALL)) == SHORT_FORMATS
    assert list(filter(is_convolution, ALL)) == [*CONVOLUTIONS_ON_MATRIX_UNITS, *PLAIN_CONVOLUTIONS]
    assert list(filter(is_layout, ALL)) == LAYOUTS
    assert list(filter(is_elementwise, ALL)) == ELEMENTWISE
