"""Sampled hardware counters of a generated recording, and their expected rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.control import QOS_NAMES
from tests.prof_generator.device_side import CORE_MHZ, EVENTS, EVENTS_V6, DeviceSide
from tests.prof_generator.encode import Records, concatenated, records, write_slices
from tests.prof_generator.recipe import HWTS, V6, Recipe
from tests.prof_generator.tables import Tables
from tests.prof_generator.timing import Timing
from unified_prof.decoders.prof.layouts import STARS_MAGIC

_FIRST_NS, _STEP_NS = 2_000_000, 10_000_000
_MB = 1 << 20
LLC_MODE = "read"
_LLC_EVENTS = (0x00, 0x01, 0x02, 0x13, 0x20, 0x22, 0x34, 0x36)
_HEADER = "timestamp rxPacket/s\n"
_SAMPLED_CORES = (0, 3, 25, 40)
# Platforms that have files of a kind but no table of them.
_NOT_EVALUATED = {
    "HCCS": (7, 15),
    "NETDEV_STATS": (15,),
    "NIC": (4, 15),
    "PCIE": (7,),
    "ROCE": (4, 7, 15),
    "QOS": (1, 4, 7, 15),
}


class CounterSide:
    """Writes the sampled counters of one device."""

    def __init__(
        self, recipe: Recipe, timing: Timing, tables: Tables, folder: Path, device: int
    ) -> None:
        self.recipe, self.timing, self.tables = recipe, timing, tables
        self.folder, self.device = folder, device
        self.rng = np.random.default_rng([recipe.seed, 3, device])
        self.index = np.arange(recipe.samples)
        self.moment = _FIRST_NS + self.index * _STEP_NS
        self.v2 = recipe.layout_version == "2.0"
        self._task_log: list[Records] = []
        self._sample_log: list[Records] = []

    def write(self, device_side: DeviceSide) -> None:
        """Write the chosen counters; some are logged among the tasks of `device_side`."""
        if not self.recipe.samples:
            return
        for name in self.recipe.counters:
            write: Callable[[], None] = getattr(self, f"_{name}")
            write()
        if self._task_log:
            device_side.add_to_task_log(self._task_log[0])
        if self._sample_log:
            self._file("stars_soc_profile", concatenated(self._sample_log))
        if self.recipe.sample_pmu:
            self._sample_pmu()

    def _file(self, name: str, content: Any) -> None:
        raw = content.encode() if isinstance(content, str) else content.tobytes()
        path = self.folder / f"{name}.data.{self.device}"
        write_slices(path, raw, self.recipe.device_slice_bytes)

    def _expect(self, table: str, times: Any, **columns: Any) -> None:
        if self.recipe.platform not in _NOT_EVALUATED.get(table, ()):
            self.tables.add(table, len(times), timestampNs=times, deviceId=self.device, **columns)

    def _random(self, limit: int, *shape: int) -> NDArray[np.int64]:
        return self.rng.integers(1, limit, (self.recipe.samples, *shape))

    def _device_ns(self) -> NDArray[np.int64]:
        return self.timing.device_monotonic_ns + self.moment

    def _rounded_ns(self, moment_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the times of files whose times pass through float64 since 1970."""
        timing = self.timing
        start_ns = float(timing.host_monotonic_ns + self.recipe.offset_ns)
        seconds = start_ns / 1e9 - timing.device_monotonic_ns / 1e9
        local_us = float(timing.begin_us) - float(timing.host_monotonic_ns) / 1000.0
        times = (
            int(((us * 1000 + timing.device_monotonic_ns) + seconds * 1e9) + local_us * 1000.0)
            for us in moment_us.tolist()
        )
        return np.fromiter(times, np.int64, len(moment_us))

    def _start_times(self) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """Return the time field of HBM and LLC records, and the expected times."""
        if self.v2:
            absolute = self.timing.begin_ns + self.moment
            return {"timestamp_ns": absolute}, absolute.astype(np.float64).astype(np.int64)
        return {"timestamp_us": self.moment // 1000}, self._rounded_ns(self.moment // 1000)

    def _hbm(self) -> None:
        fields, times = self._start_times()
        count = self._random(1 << 22, 8)
        series = np.tile(np.arange(8), len(count))  # four memories, two directions
        part = records(
            "hbm_v2" if self.v2 else "hbm_v1",
            count.size,
            count=count.ravel(),
            event_type=series % 2,
            hbm_id=series // 2,
            **{name: np.repeat(values, 8) for name, values in fields.items()},
        )
        self._file("hbm", part)
        seconds = np.diff(times, prepend=times[0])[:, None] / 1e9
        rate = np.divide(count * 32, seconds, out=np.zeros(count.shape), where=seconds > 0)
        self._expect(
            "HBM",
            np.repeat(times, 8),
            bandwidth=rate.ravel(),
            hbmId=series // 2,
            type=np.array(["read", "write"], object)[series % 2],
        )

    def _llc(self) -> None:
        fields, times = self._start_times()
        events, caches = len(_LLC_EVENTS), {5: 2, 7: 1}.get(self.recipe.platform, 4)
        count = self._random(1 << 20, caches, events)
        part = records(
            "llc_v2" if self.v2 else "llc_v1",
            count.size,
            count=count.ravel(),
            event_id=np.tile(_LLC_EVENTS, caches * len(count)),
            l3t_id=np.tile(np.repeat(np.arange(caches), events), len(count)),
            **{name: np.repeat(values, caches * events) for name, values in fields.items()},
        )
        self._file("llc", part)
        hits, accesses = count[..., [2, 3, 5, 7]].sum(-1), count[..., [4, 6]].sum(-1)
        throughput = np.zeros((len(count), caches))
        seconds = np.diff(times)[:, None] / 1e9
        throughput[1:] = count[1:, :, :2].sum(-1) * 4096 / seconds
        self._expect(
            "LLC",
            np.repeat(times, caches),
            llcId=np.tile(np.arange(caches), len(count)),
            hitRate=(hits / accesses * 100).ravel(),
            throughput=throughput.ravel(),
            mode=LLC_MODE,
        )

    def _ddr(self) -> None:
        count = self._random(1 << 22, 2)
        part = records(
            "ddr",
            count.size,
            timestamp_us=np.repeat(self.moment // 1000, 2),
            count=count.ravel(),
            rw=np.tile([0, 1], len(count)),
            master=0xFFFFFFFF,
        )
        self._file("ddr", part)
        if self.recipe.platform in (5, 15):
            return
        seconds = np.diff(np.r_[0, self.moment]) / 1e9
        size = 16 if self.recipe.platform == 7 else 32
        rate = count * size / seconds[:, None]
        times = self.timing.sampled_ns(self.moment)
        self._expect("DDR", times, read=rate[:, 0], write=rate[:, 1])

    def _npu_mem(self) -> None:
        level, ddr, hbm = self.index % 2, self._random(1 << 30), self._random(1 << 40)
        part = records(
            "npu_mem_v2" if self.v2 else "npu_mem_v1",
            len(ddr),
            timestamp_us=self.moment // 1000,
            event=level,
            ddr=ddr,
            hbm=hbm,
        )
        self._file("npu_mem", part)
        self._expect(
            "NPU_MEM",
            self._rounded_ns(self.moment // 1000),
            ddr=ddr,
            hbm=hbm,
            type=np.array(["app", "device"], object)[level],
        )

    def _npu_module_mem(self) -> None:
        ticks, size = self.timing.host_ticks(self.moment), self._random(1 << 40)
        module = self.index % 70
        part = records(
            "npu_module_mem", len(size), module_id=module, host_ticks=ticks, total_size=size
        )
        self._file("npu_module_mem", part)
        times = self.timing.host_ns(ticks)
        self._expect("NPU_MODULE_MEM", times, moduleId=module, totalReserved=size)

    def _pcie(self) -> None:
        values = np.sort(self._random(9_000, 7, 3), axis=2)[:, :, [0, 2, 1]]
        part = records(
            "pcie",
            len(values),
            timestamp=self._device_ns(),
            device_id=self.device,
            values=values.reshape(-1, 21),
        )
        self._file("pcie", part)
        times = self.timing.sampled_ns(self.moment)
        self._expect(
            "PCIE",
            times,
            txPostMin=values[:, 0, 0] * 10**6,
            txPostAvg=values[:, 0, 2] * 10**6,
            txNonpostLatencyMax=values[:, 3, 1],
            rxCplAvg=values[:, 6, 2] * 10**6,
        )

    def _qos(self) -> None:
        ticks, bandwidth = self.timing.device_ticks(self.moment), self._random(9_000, 10)
        self._file("qos", records("qos", len(ticks), timestamp=ticks, bandwidth=bandwidth))
        times = self.timing.device_ns(ticks)
        for place, name in enumerate(QOS_NAMES):
            self._expect("QOS", times, eventName=f"QoS {name}", bandwidth=bandwidth[:, place] * _MB)

    def _hccs(self) -> None:
        total = np.cumsum(self._random(1 << 30, 2), axis=0)
        rows = zip(self._device_ns().tolist(), *total.T.tolist(), strict=True)
        self._file("hccs", "time tx rx\n" + "".join(f"{t}: {tx} {rx}\n" for t, tx, rx in rows))
        # The last of several intervals is missing, as in the exporter's databases.
        shown = max(len(total) - 2, 1)
        rate = np.diff(total, axis=0)[:shown] / (_STEP_NS / 1e9)
        times = self.timing.sampled_ns(self.moment[1 : 1 + shown])
        self._expect("HCCS", times, txThroughput=rate[:, 0], rxThroughput=rate[:, 1])

    def _nic(self, kind: str = "nic") -> None:
        values = self._random(1 << 30, 14)
        rows = zip(self._device_ns().tolist(), values.tolist(), strict=True)
        lines = [f"{time}: {' '.join(map(str, row))}\n" for time, row in rows]
        self._file(kind, _HEADER + "".join(lines))
        self._expect(
            kind.upper(),
            self.timing.sampled_ns(self.moment),
            bandwidth=values[:, 0] * _MB,
            rxPacketRate=values[:, 1],
            txDropped=values[:, 12],
            funcId=values[:, 13],
        )

    def _roce(self) -> None:
        self._nic("roce")

    def _netdev_stats(self) -> None:
        step = self._random(1 << 30, 15)
        total = np.cumsum(step, axis=0)
        host_ns = self.timing.host_monotonic_ns + self.moment
        rows = zip(host_ns.tolist(), total.tolist(), strict=True)
        lines = [f"{time} {' '.join(map(str, row))}\n" for time, row in rows]
        self._file("netdev_stats", "".join(lines))
        times = self.timing.begin_ns + self.moment[1:]
        if len(times):
            self._expect(
                "NETDEV_STATS",
                times,
                macTxPfcPkt=step[1:, 0],
                nicRxByte=step[1:, 14],
                nicRxBandwidth=step[1:, 14] / (_STEP_NS / 1e9),
            )

    def _stars(self, layout: str, function: int, **fields: Any) -> NDArray[np.uint64]:
        ticks = self.timing.device_ticks(self.moment)
        part = records(
            layout, len(ticks), w0=function, magic=STARS_MAGIC, timestamp=ticks, **fields
        )
        (self._task_log if layout == "stars_acc_pmu" else self._sample_log).append(part)
        return ticks

    def _acc_pmu(self) -> None:
        value = self._random(100, 4)
        if self.recipe.platform in (*HWTS, *V6):
            return
        ticks = self._stars(
            "stars_acc_pmu", 26, acc_id=self.index % 3, read_bandwidth=value[:, 0],
            write_bandwidth=value[:, 1], read_ost=value[:, 2], write_ost=value[:, 3],
        )  # fmt: skip
        shown = value if self.recipe.platform == 5 else value[:, [1, 0, 3, 2]]
        self._expect(
            "ACC_PMU", self.timing.device_ns(ticks), accId=self.index % 3, readBwLevel=shown[:, 0],
            writeBwLevel=shown[:, 1], readOstLevel=shown[:, 2], writeOstLevel=shown[:, 3],
        )  # fmt: skip

    def _soc(self) -> None:
        level = self._random(1 << 11)
        ticks = self._stars("stars_inter_soc", 28, bw_level=level)
        self._expect(
            "SOC_BANDWIDTH_LEVEL",
            self.timing.device_ns(ticks),
            l2BufferBwLevel=level % 8,
            mataBwLevel=level // 8,
        )

    def _sio(self) -> None:
        names = [f"{what}_{way}" for way in ("rx", "tx") for what in ("req", "rsp", "snp", "dat")]
        value = self._random(1 << 20, 8)
        fields = dict(zip(names, value.T, strict=True))
        v6 = self.recipe.platform in V6
        if v6:
            ticks = self._stars("stars_sio_v6", 25, **fields)
        else:
            ticks = self._stars("stars_sio", 25, acc_id=0, **fields)
        times = self.timing.device_ns(ticks)
        if len(times) > 1:
            seconds = np.diff(times) / 1e9
            self._expect(
                "SIO",
                times[1:],
                name="D-DIE0" if v6 else "die 0",
                rxReq=value[1:, 0] / seconds,
                txDat=value[1:, 7] / seconds,
            )

    def _sample_pmu(self) -> None:
        v6, hwts = self.recipe.platform in V6, self.recipe.platform in HWTS
        cores = np.array(_SAMPLED_CORES[:2] if hwts else _SAMPLED_CORES)
        cycles = self._random(10_000_000, len(cores))
        layout = "aicore_sample_v6" if v6 else "aicore_sample"
        width = 10 if v6 else 8
        part = records(
            layout, cycles.size, mode=1, task_cycle=cycles.ravel(),
            timestamp=np.repeat(self._device_ns(), len(cores)), core_id=np.tile(cores, len(cycles)),
            count_num=len((EVENTS_V6 if v6 else EVENTS)[self.recipe.sample_pmu].split(",")),
            event_count=(cycles.ravel()[:, None] * self.rng.random(width)).astype(np.uint64),
        )  # fmt: skip
        self._file("aicore" if hwts else "ffts_profile", part)
        interval = np.where(self.index[:, None] > 0, _STEP_NS, 1)
        last_cube = {7: 0, 15: 35, 16: 35}.get(self.recipe.platform, 24)
        self._expect(
            "SAMPLE_PMU_TIMELINE",
            np.repeat(self.timing.sampled_ns(self.moment), len(cores)),
            totalCycle=cycles.ravel(),
            coreId=np.tile(cores, len(cycles)),
            coreType=np.tile(np.where(cores > last_cube, "AIV", "AIC").astype(object), len(cycles)),
            usage=(cycles * 1000 / (CORE_MHZ * interval) * 100).ravel(),
        )
