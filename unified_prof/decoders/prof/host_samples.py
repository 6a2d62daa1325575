"""Decodes samples and system calls of the host.

Tables: CPU_USAGE, HOST_DISK_USAGE, HOST_MEM_USAGE, HOST_NETWORK_USAGE and OSRT_API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from unified_prof.arrays.grouping import Floats, Ints
from unified_prof.base.columns import Sink
from unified_prof.base.text import NS_PER_S
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.directory import HostDirectory, positive_decimal
from unified_prof.decoders.prof.slices import RawFile
from unified_prof.errors import RawFormatError

# Fields of /proc/<pid>/task/<tid>/stat after the command's closing parenthesis.
_USER_JIFFIES, _SYSTEM_JIFFIES, _CPU = 11, 12, 36
_FULL_PERCENT = 100
_UPTIME = re.compile(r"[\d.]{1,24}\s+[\d.]{1,24}\s*")


class _Sample(Struct):
    """Counters at one time: jiffies and last CPU of each thread, or bytes of each interface."""

    time_ns: int
    counters: dict[Any, Any] = field(default_factory=dict)
    uptime_s: Fraction | None = None


def _samples(
    host: HostDirectory, sink: Sink, kind: str, add: Callable[[_Sample, str], bool]
) -> Iterator[_Sample]:
    """Yield the samples of a text file; lines for which `add` returns False are damaged."""
    damaged = 0
    for time_ns, lines in sampling.timed_blocks(host, sink, kind):
        sample = _Sample(time_ns)
        damaged += sum(not add(sample, line) for line in lines)
        yield sample
    sampling.count_damaged(sink, host, kind, damaged)


def decode_host_cpu(host: HostDirectory, sink: Sink) -> None:
    """Write CPU_USAGE (host_cpu.data, text): percent of each CPU between samples.

    A row has the time of the earlier sample. The time of a thread is assigned to the CPU that last
    ran it, limited to the length of the interval. As in the exporter, CPUs above 100 percent are
    omitted.
    """
    clock_hz = host.info.integer("sysClockFreq") or 0
    if clock_hz <= 0:
        sink.anomaly("host_clock_unknown", 1, f"{host.info.path} has no positive sysClockFreq")
        return
    rows: list[tuple[int, int, float]] = []
    above_full = 0
    for earlier, later in pairwise(_samples(host, sink, "host_cpu", _add_cpu)):
        for cpu, percent in sorted(_usage(earlier, later, clock_hz).items()):
            if percent > _FULL_PERCENT:
                above_full += 1
            else:
                rows.append((earlier.time_ns, cpu, float(percent)))
    sink.anomaly("cpu_usage_over_100", above_full, f"{host.data.path}/host_cpu.data")
    if not rows:
        return
    times, cpus, usages = zip(*rows, strict=True)
    sampling.write_samples(
        sink,
        host,
        "CPU_USAGE",
        host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        cpuId=np.array(cpus, np.int64),
        usage=np.array(usages),
    )


def _usage(earlier: _Sample, later: _Sample, clock_hz: int) -> dict[int, Fraction]:
    """Return CPU -> percent."""
    if earlier.uptime_s is None or later.uptime_s is None:
        return {}
    interval = (later.uptime_s - earlier.uptime_s) * clock_hz
    if interval <= 0:
        return {}
    usage: dict[int, Fraction] = {}
    for thread, (jiffies, cpu) in later.counters.items():
        if thread in earlier.counters:
            used = min(Fraction(max(jiffies - earlier.counters[thread][0], 0)), interval)
            usage[cpu] = usage.get(cpu, Fraction(0)) + used / interval * _FULL_PERCENT
    return usage


def _add_cpu(sample: _Sample, line: str) -> bool:
    """Add the uptime, or the thread of a stat line."""
    if _UPTIME.fullmatch(line):
        uptime = positive_decimal(line.split()[0])
        sample.uptime_s = None if uptime is None else Fraction(uptime)
        return uptime is not None
    head, parenthesis, tail = line.rpartition(")")  # commands may contain parentheses
    fields = tail.split()
    thread = sampling.integer(head.partition(" ")[0])
    if not parenthesis or thread is None or len(fields) <= _CPU:
        return False
    user, system, cpu = (
        sampling.integer(fields[place]) for place in (_USER_JIFFIES, _SYSTEM_JIFFIES, _CPU)
    )
    if user is None or system is None or cpu is None:
        return False
    sample.counters[thread] = (user + system, cpu)
    return True


_START = re.compile(r"start_time\s+(\d{1,19})\s*")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_DISK_LINE = re.compile(
    rf"\s*\d\d:\d\d:\d\d\s+\S+\s+\S+\s+\S+\s+{_NUMBER}\s+([BKMG])/s\s+{_NUMBER}\s+([BKMG])/s"
    rf"\s+{_NUMBER}\s*%\s+{_NUMBER}\s*%"
)
_TOTALS = re.compile(r"\s*(?:Total|Actual|Current) DISK |\s*TIME\s")
_UNIT_BYTES = {"B": 1.0, "K": float(1 << 10), "M": float(1 << 20), "G": float(1 << 30)}


def decode_host_disk(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_DISK_USAGE (host_disk.data, text of iotop): one row per line.

    The time of the n-th line is the start time plus n sampling intervals. Rates are in bytes per
    second; usage is the percentage of time spent waiting for the disk. Raises RawFormatError if the
    file has no start time, or sample.json has no sampling frequency.
    """
    frequency_hz = host.sample.decimal("host_disk_freq")
    if frequency_hz is None:
        raise RawFormatError(
            f"{host.sample.path} has no positive host_disk_freq", slug="damaged-recording"
        )
    step_ns = float(NS_PER_S / frequency_hz)
    start_ns: int | None = None
    damaged, index = 0, 0
    for lines in host.data.get("host_disk").line_batches():
        rows: list[tuple[float, float, float]] = []
        for line in lines:
            if match := _DISK_LINE.match(line):
                read, read_unit, write, write_unit, _swap, usage = match.groups()
                read_rate = float(read) * _UNIT_BYTES[read_unit]
                rows.append((read_rate, float(write) * _UNIT_BYTES[write_unit], float(usage)))
            elif start := _START.fullmatch(line):
                start_ns = int(start[1]) if start_ns is None else start_ns
            elif not _TOTALS.match(line):
                damaged += 1
        if not rows:
            continue
        if start_ns is None:
            message = f"{host.data.path}/host_disk.data has no start_time <ns> line"
            raise RawFormatError(message, slug="damaged-recording")
        steps = np.arange(index, index + len(rows)) * step_ns
        index += len(rows)
        read_rates, write_rates, share = np.array(rows).T
        sampling.write_samples(
            sink,
            host,
            "HOST_DISK_USAGE",
            host.clocks.monotonic.to_ns(steps.astype(np.int64) + start_ns),
            readRate=read_rates,
            writeRate=write_rates,
            usage=share,
        )
    sampling.count_damaged(sink, host, "host_disk", damaged)


# Fields of a line of host_mem.data: time, then the seven numbers of /proc/<pid>/statm.
_MEM_FIELDS = 8
_RESIDENT_PAGES = 2
_KB_PER_PAGE = 4
_DECIMALS = 6


def decode_host_mem(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_MEM_USAGE (host_mem.data, text): resident memory in percent of the host's.

    A row has the time of the earlier sample and the usage of the later sample.
    """
    samples = sampling.integer_rows(host, sink, "host_mem", _MEM_FIELDS)
    total_kb = host.info.decimal("memoryTotal")
    if total_kb is None:
        detail = f"{host.info.path} has no positive memoryTotal"
        sink.anomaly("host_memory_unknown", len(samples), detail)
        return
    if len(samples) < 2:
        return
    percent_of_a_page = Fraction(_KB_PER_PAGE * 100) / Fraction(total_kb)
    # Exact numbers, halves rounded to even, as the exporter's decimal arithmetic does.
    usage = [
        float(round(pages * percent_of_a_page, _DECIMALS))
        for pages in samples[1:, _RESIDENT_PAGES].tolist()
    ]
    sampling.write_samples(
        sink,
        host,
        "HOST_MEM_USAGE",
        host.clocks.monotonic.to_ns(samples[:-1, 0]),
        usage=np.array(usage),
    )


# Columns of /proc/net/dev.
_RECEIVED_BYTES, _SENT_BYTES = 0, 8
_NETWORK_FIELDS = 16
_BYTES_PER_MEGABIT = 125_000
_BYTES_PER_KB = 1024.0


def decode_host_network(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_NETWORK_USAGE (host_network.data, text): traffic between samples.

    A row has the time of the earlier sample. `speed` is the sum over all interfaces in bytes per
    second; `usage` is the mean over the active interfaces, in percent of the link speed of the last
    interface.
    """
    speeds_mbit = {}
    for card in host.info.records("netCard"):
        name, mbit = card.text("netCardName"), card.integer("speed")
        if name and mbit is not None and mbit > 0:
            speeds_mbit[name] = mbit

    def add(sample: _Sample, line: str) -> bool:
        name, colon, counters = line.partition(":")
        if not colon:
            return True  # one of the two heading lines of /proc/net/dev
        values = sampling.integers(counters)
        if values is None or len(values) < _NETWORK_FIELDS:
            return False
        if name.strip() in speeds_mbit:
            sample.counters[name.strip()] = values[_RECEIVED_BYTES] + values[_SENT_BYTES]
        return True

    rows = [
        (earlier.time_ns, *_traffic(earlier, later, speeds_mbit))
        for earlier, later in pairwise(_samples(host, sink, "host_network", add))
    ]
    if not rows:
        return
    times, usage, speed = zip(*rows, strict=True)
    sampling.write_samples(
        sink,
        host,
        "HOST_NETWORK_USAGE",
        host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        usage=sampling.rounded(np.array(usage), _DECIMALS),
        speed=np.array(speed),
    )


def _traffic(
    earlier: _Sample, later: _Sample, speeds_mbit: Mapping[str, int]
) -> tuple[float, float]:
    """Return the usage in percent and the traffic in bytes per second."""
    # The exporter subtracts seconds as float64, so its results have that noise.
    seconds = later.time_ns / 1e9 - earlier.time_ns / 1e9
    total, active, capacity = 0.0, 0, 0
    if seconds <= 0:
        return 0.0, 0.0
    for name, count in later.counters.items():
        moved = count - earlier.counters.get(name, count)
        if moved > 0:
            total += moved / _BYTES_PER_KB / seconds * _BYTES_PER_KB
            active += 1
            capacity = speeds_mbit[name] * _BYTES_PER_MEGABIT
    return (total / active / capacity * 100 if active else 0.0), total


_SYSTEM_CALL_NAMES = frozenset(
    """
    accept accept4 access acct add_key adjtimex alarm arch_prctl bind bpf brk capget capset
    chdir chmod chown chroot clock_adjtime clock_getres clock_gettime clock_nanosleep
    clock_settime clone clone3 close close_range connect copy_file_range creat delete_module
    dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
    eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate
    fanotify_init fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
    fdatasync fgetxattr finit_module flistxattr flock fork fremovexattr fsconfig fsetxattr
    fsmount fsopen fspick fstat fstatat fstatfs fsync ftruncate futex futex_wait futex_waitv
    futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents
    getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid
    getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname
    getsockopt gettid gettimeofday getuid getxattr init_module inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup
    io_submit io_uring_enter io_uring_register io_uring_setup ioctl ioperm iopl ioprio_get
    ioprio_set kcmp kexec_file_load kexec_load keyctl kill landlock_add_rule
    landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen
    listxattr llistxattr lookup_dcookie lremovexattr lseek lsetxattr lstat madvise mbind
    membarrier memfd_create memfd_secret migrate_pages mincore mkdir mkdirat mknod mknodat
    mlock mlock2 mlockall mmap modify_ldt mount mount_setattr move_mount move_pages mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl
    msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep
    newfstatat open open_by_handle_at open_tree openat openat2 pause perf_event_open
    personality pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pivot_root pkey_alloc
    pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_madvise
    process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev
    pwritev2 quotactl quotactl_fd read readahead readlink readlinkat readv reboot recvfrom
    recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 request_key
    restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
    sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp select semctl semget semop semtimedop sendfile sendfile64 sendmmsg
    sendmsg sendto set_mempolicy set_mempolicy_home_node set_robust_list set_thread_area
    set_tid_address setdomainname setfsgid setfsuid setgid setgroups sethostname setitimer
    setns setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid
    setsockopt settimeofday setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack
    signalfd signalfd4 socket socketpair splice stat statfs statx swapoff swapon symlink
    symlinkat sync sync_file_range syncfs sysfs sysinfo syslog tee tgkill time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask umount2 uname unlink unlinkat unshare
    userfaultfd ustat utime utimensat utimes vfork vhangup vmsplice wait4 waitid write writev
""".split()
)

# perf trace: `<ms> (<ms> ms): command/tid name(args...`
_SYSTEM_CALL = re.compile(
    r"\s*(\d{1,12}(?:\.\d{1,9})?)\s+\(\s*(\d{1,12}(?:\.\d{1,9})?)\s*ms\s*\):"
    r"\s.*?/(\d{1,10})\s+(\w+)\("
)
# ltrace: `[pid T] <s> program->name(args) = result <s>`
_THREAD_CALL = re.compile(r"\s*\[pid\s+(\d{1,10})\]\s+(\d{1,12}(?:\.\d{1,9})?)\s+\S*?->(\w+)\(")
_THREAD_CALL_DURATION = re.compile(r"(\d{1,9}\.\d{1,9})>\s*")
# Lines of calls that were interrupted (no start or no end), of signals and of thread exits.
_NO_START = re.compile(r"\s*\??\s*\(")
_NO_CALL = ("<unfinished ...>", " resumed>", "+++", "---")
_NOT_LISTED = frozenset({"pthread_once"})
_US_PER_MS = 1_000
_US_PER_S = 1_000_000


class _OsCall(NamedTuple):
    name: str
    thread_id: int
    start_us: float
    duration_us: float


def decode_os_calls(host: HostDirectory, sink: Sink) -> None:
    """Write OSRT_API (host_syscall.data and host_pthreadcall.data, text): one row per call.

    The time of a file's first line is taken as the start of the session. As in the exporter, times
    are computed in float64 microseconds, so their resolution is a quarter of a microsecond.
    """
    for kind, parse in (("host_syscall", _system_call), ("host_pthreadcall", _thread_call)):
        _decode_os_calls(host, sink, host.data.get(kind), parse)


def _decode_os_calls(
    host: HostDirectory, sink: Sink, file: RawFile, parse: Callable[[str], _OsCall | None]
) -> None:
    start_monotonic_ns = host.session.start_ns - int(host.clocks.monotonic.offset_ns)
    origin_us: float | None = None
    process_id = host.process_id
    for calls in _os_call_batches(host, sink, file, parse):
        if origin_us is None:
            origin_us = calls[0].start_us - start_monotonic_ns / 1000
        listed = [call for call in calls if _is_listed(call.name)]
        if len(listed) < len(calls):
            sink.anomaly(
                "os_call_not_listed",
                len(calls) - len(listed),
                f"{host.data.path}/{file.name}.data: names that are not system calls",
            )
        if not listed:
            continue
        names, threads, starts_us, durations_us = zip(*listed, strict=True)
        start_us = np.array(starts_us) - origin_us
        end_us = start_us + np.array(durations_us)
        sampling.write_samples(
            sink,
            host,
            "OSRT_API",
            _since_1970(host, start_us),
            time_column="startNs",
            name=sink.strings.intern_all(names),
            globalTid=process_id << 32 | np.array(threads, np.int64),
            endNs=_since_1970(host, end_us),
        )


def _since_1970(host: HostDirectory, monotonic_us: Floats) -> Ints:
    return host.clocks.monotonic.to_ns(sampling.truncated_ns(monotonic_us * 1000))


def _os_call_batches(
    host: HostDirectory, sink: Sink, file: RawFile, parse: Callable[[str], _OsCall | None]
) -> Iterator[list[_OsCall]]:
    """Yield the calls of a file in non-empty batches."""
    damaged = unfinished = 0
    for lines in file.line_batches():
        calls = []
        for line in lines:
            call = parse(line)
            if call is not None:
                calls.append(call)
            elif _NO_START.match(line) or any(mark in line for mark in _NO_CALL):
                unfinished += 1
            else:
                damaged += 1
        if calls:
            yield calls
    sampling.count_damaged(sink, host, file.name, damaged)
    sink.anomaly("os_call_unfinished", unfinished, f"{host.data.path}/{file.name}.data")


def _system_call(line: str) -> _OsCall | None:
    match = _SYSTEM_CALL.match(line)
    if match is None:
        return None
    start_ms, duration_ms, thread_id, name = match.groups()
    return _OsCall(
        name, int(thread_id), float(start_ms) * _US_PER_MS, float(duration_ms) * _US_PER_MS
    )


def _thread_call(line: str) -> _OsCall | None:
    match = _THREAD_CALL.match(line)
    duration = _THREAD_CALL_DURATION.fullmatch(line[line.rfind("<") + 1 :])
    if match is None or duration is None:
        return None
    thread_id, start_s, name = match.groups()
    return _OsCall(name, int(thread_id), float(start_s) * _US_PER_S, float(duration[1]) * _US_PER_S)


def _is_listed(name: str) -> bool:
    if name in _NOT_LISTED:
        return False
    return name in _SYSTEM_CALL_NAMES or name.startswith(("pthread_", "sem_"))
