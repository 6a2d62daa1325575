"""Kernels whose recorded ids or times cannot be right are counted."""

from pathlib import Path

from tests.decoders.kineto.builders import RowSink, call, copy, decode_events, kernel


def decode_kernels(tmp_path: Path, *kernels: dict[str, object], name: str = "") -> RowSink:
    """Decode kernels with a launching call for each of the correlation ids 1 to 5."""
    more = {"name": name} if name else {}
    calls = [call(10 * number, 5, number) | more for number in range(1, 6)]
    return decode_events(tmp_path, *calls, *kernels)


def test_kernels_that_share_the_id_of_one_launch_are_counted(tmp_path: Path) -> None:
    """pytorch/kineto#1416: with ROCm, several kernels have the correlation id of one launch.

    The launches of the others have no kernel, so that operations get the time of others.
    """
    kernels = [kernel(100 + 10 * at, 5, number) for at, number in enumerate((1, 2, 2, 2, 5))]
    sink = decode_kernels(tmp_path, *kernels)
    assert sink.anomalies == {"shared_launch": 2}
    for name in ("hipGraphLaunch", "hipExtLaunchMultiKernelMultiDevice", "cudaMemcpyAsync"):
        sink = decode_kernels(tmp_path, *kernels, name=name)
        assert not sink.anomalies, name


def test_tasks_that_begin_before_their_launch_are_counted(tmp_path: Path) -> None:
    """Kineto reports `GPU op timestamp < runtime timestamp` as an error, and keeps both events.

    A smaller difference than 0.1 ms is clock skew.
    """
    early = kernel(-49_990, 5, 1)
    sink = decode_kernels(tmp_path, early, kernel(-70, 5, 2), kernel(100, 5, 3))
    assert sink.anomalies == {"task_before_launch": 1}
    assert sink.details["task_before_launch"].startswith("by up to 50.0 ms: ")


def test_kernels_that_last_beyond_later_ones_of_their_stream_are_counted(tmp_path: Path) -> None:
    """AMD-AGI/TraceLens#669: on MI355, durations reach far into the next kernels of the stream.

    Kernels of a stream end in order, also if a dependent kernel begins before the end (NVIDIA).
    """
    overlong = [kernel(100, 1_000, 1), *(kernel(100 + 20 * at, 10, at) for at in (2, 3, 4, 5))]
    sink = decode_kernels(tmp_path, *overlong)
    assert sink.anomalies == {"overlong_kernel": 1}
    assert sink.details["overlong_kernel"].startswith("ends up to 950 µs after a later kernel")

    twice = [kernel(100, 100, 1), kernel(120, 10, 2), kernel(300, 50, 3), kernel(310, 20, 4)]
    assert decode_kernels(tmp_path, *twice).anomalies == {"overlong_kernel": 2}


def test_kernels_that_may_overlap_are_not_counted_as_overlong(tmp_path: Path) -> None:
    longer = kernel(100, 100, 1)
    other_stream = {"args": {"stream": 8}}
    for inner in (
        kernel(120, 10, 2, **other_stream),
        kernel(120, 10, 2, args={"device": 1}),
        copy(120, 10, 2, "Memcpy HtoD (Pinned -> Device)", 8),
        kernel(190, 20, 2),  # programmatic dependent launch
        kernel(190, 9, 2),  # rounded to microseconds
    ):
        assert not decode_kernels(tmp_path, longer, inner).anomalies
    collective = kernel(100, 100, 1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    assert not decode_kernels(tmp_path, collective, kernel(120, 10, 2)).anomalies
    in_graph = [kernel(120 + 10 * at, 5, 1) for at in range(3)]
    sink = decode_kernels(tmp_path, longer, *in_graph, name="cudaGraphLaunch")
    assert not sink.anomalies


def test_tasks_that_are_in_the_file_twice_are_counted(tmp_path: Path) -> None:
    """Two kernels of a stream cannot begin and end together, unless times are rounded to 0."""
    once = [kernel(100, 10, 1), kernel(110, 10, 2), kernel(120, 1, 3), kernel(120, 1, 4)]
    assert not decode_kernels(tmp_path, *once).anomalies
    sink = decode_kernels(tmp_path, *once, *once)
    assert sink.anomalies["repeated_task"] == 2
