"""Decodes host calls: CANN_API (api_event) and OSRT_API; finds the calls that enclose a time.

Calls of one level are intervals (begin, end]. NODE calls on a thread may nest. Calls of other
levels do not nest, so a call that begins before the previous one has ended is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Pool, Runs
from unified_prof.base.columns import Sink
from unified_prof.decoders.prof import sampling
from unified_prof.decoders.prof.clocks import Keys, Timeline
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.host_records import concatenate, valid_records
from unified_prof.decoders.prof.slices import RawFile, Records
from unified_prof.decoders.spool import Rows, Spool, selected
from unified_prof.errors import RawFormatError

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Intervals:
    """Calls of one level, sorted by thread and begin; columns of equal length."""

    begin: Keys
    end: Keys
    connection_id: NDArray[np.int64]
    item: NDArray[np.uint32]
    """Index into `CallNames.items`."""
    type_index: NDArray[np.uint16]
    """Index into `CallNames.types`."""

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: NDArray[Any]) -> Intervals:
        """Return the given rows, in this order."""
        return Intervals(
            self.begin[rows],
            self.end[rows],
            self.connection_id[rows],
            self.item[rows],
            self.type_index[rows],
        )

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Return the innermost call (started last) that encloses each key, or NOWHERE."""
        row = np.searchsorted(self.begin, keys, side="left").astype(np.int64) - 1
        if not len(self):
            return row
        outside = np.flatnonzero((row >= 0) & (self.end[row] < keys))
        if len(outside):
            row[outside] = _last_reaching(self.end, row[outside], keys[outside])
        return row


@dataclass(frozen=True, slots=True)
class CallTree:
    """Calls that may launch tasks, by level."""

    acl: Intervals
    model: Intervals
    node: Intervals
    communication: Intervals


def concatenate_intervals(first: Intervals, second: Intervals) -> Intervals:
    """Concatenate two sets of calls; the calls in `first` begin earlier."""
    return Intervals(
        *(
            np.concatenate([getattr(first, field.name), getattr(second, field.name)])
            for field in fields(Intervals)
        )
    )


def without_overlaps(calls: Intervals) -> Intervals:
    """Drop calls that begin before the previous kept call has ended."""
    if not (calls.begin[1:] < calls.end[:-1]).any():
        return calls
    # Each call determines the next one kept; all calls reached from the first are kept. Ends of a
    # thread are below the begins of the next, so threads need not be separated.
    count = len(calls)
    following = np.r_[np.searchsorted(calls.begin, calls.end, side="left"), count]
    following = np.maximum(following, np.r_[np.arange(1, count + 1), count])
    kept = np.zeros(count + 1, bool)
    kept[0] = True
    while True:
        kept[following[np.flatnonzero(kept)]] = True
        if following[0] == count:
            break
        following = following[following]
    return calls.take(kept[:count])


def _last_reaching(end: Keys, start: NDArray[np.int64], keys: Keys) -> NDArray[np.int64]:
    """Return for each query the last row up to `start` whose end is not before the key.

    The search uses a tree of block maxima and takes about 2 log2(n) steps for all queries together.
    """
    result = np.full(len(start), NOWHERE, np.int64)
    reach = np.maximum.accumulate(end)
    query = np.flatnonzero(reach[start] >= keys)  # no call reaches the others
    if not len(query):
        return result
    pyramid = [end]
    while len(pyramid[-1]) > 1:
        below = pyramid[-1]
        paired = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
        pyramid.append(np.concatenate([paired, below[len(below) // 2 * 2 :]]))
    offsets = np.r_[0, np.cumsum([len(level) for level in pyramid])]
    blocks = np.concatenate(pyramid)
    level = np.zeros(len(query), np.int64)
    block = start[query].copy()
    key = keys[query]
    descending = np.zeros(len(query), bool)
    while True:
        descending |= blocks[offsets[level] + block] >= key
        down, up = descending & (level > 0), ~descending
        if not (down | up).any():
            break
        # Descend to the right half if it reaches the key, else to the left one.
        lower = np.maximum(level - 1, 0)
        right = np.minimum(2 * block + 1, offsets[lower + 1] - offsets[lower] - 1)
        right = np.where(down, right, 0)
        child = np.where(blocks[offsets[lower] + right] >= key, right, 2 * block)
        # Climb to the left neighbour; for a left half, to that of its parent.
        left_half = block % 2 == 0
        neighbour = np.where(left_half, block // 2 - 1, block - 1)
        block = np.where(down, child, np.where(up, neighbour, block))
        level = np.where(down, lower, np.where(up & left_half, level + 1, level))
    result[query] = block
    return result


ACL, MODEL, NODE, COMMUNICATION, RUNTIME = 20000, 15000, 10000, 5500, 5000

_EVENT = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_TYPES = 1 << 16


# A call: keys of begin and end, connection id, and indexes into `CallNames`.
CALL = np.dtype(
    [("key", "u8"), ("end", "u8"), ("connection_id", "u8"), ("item", "u4"), ("type_index", "u2")]
)


@dataclass(frozen=True, slots=True)
class CallNames:
    """Types (level << 32 | type) and item hashes (operator, model) of calls by index."""

    types: NDArray[np.uint64]
    items: NDArray[np.uint64]

    def level(self) -> NDArray[np.int64]:
        """Return the level for each type index."""
        return (self.types >> np.uint64(32)).astype(np.int64)

    def type_pairs(self) -> list[tuple[int, int]]:
        """Return (level, type) for each type index."""
        return [(value >> 32, value & 0xFFFFFFFF) for value in self.types.tolist()]

    def intervals(self, calls: Rows, level: int) -> Intervals:
        """Return the calls of one level whose duration is not 0."""
        of_level = self.level() == level
        calls = selected(calls, of_level[calls["type_index"]] & (calls["key"] != calls["end"]))
        begin = calls["key"]
        if level == NODE and (begin[1:] == begin[:-1]).any():
            # If two begin together, the longer one is the outer one.
            calls = selected(calls, np.lexsort((~calls["end"], begin)))
        return Intervals(
            calls["key"].copy(),
            calls["end"].copy(),
            calls["connection_id"].astype(np.int64),
            calls["item"].copy(),
            calls["type_index"].copy(),
        )


def read_calls(host: HostDirectory, timeline: Timeline, spool: Spool, sink: Sink) -> CallNames:
    """Append all calls to `spool`; calls recorded as two events are paired."""
    types, items = Pool(), Pool()
    items.index_of(np.zeros(1, np.uint64))  # index 0: no item
    events: list[Records] = []

    def add(rows: Records) -> None:
        rows = _usable(rows, timeline, sink)
        calls = np.zeros(len(rows), CALL)
        calls["key"] = timeline.pack(rows["thread_id"], rows["begin"])
        calls["end"] = timeline.move(calls["key"], rows["end"])
        kind = rows["level"].astype(np.uint64) << np.uint64(32) | rows["type"]
        calls["type_index"] = types.index_of(kind)
        if len(types) > _MAX_TYPES:
            raise RawFormatError(
                f"{host.data.path}: more than {_MAX_TYPES} kinds of calls", slug="damaged-recording"
            )
        named = np.flatnonzero(np.isin(rows["level"], (NODE, COMMUNICATION, MODEL)))
        calls["item"][named] = items.index_of(rows["item_id"][named])
        spool.append(calls)

    file = host.data.host_file("api_event")
    if file is not None:
        for piece in valid_records(file, "api_event", sink):
            is_event = piece["end"] == _EVENT
            if is_event.any():
                events.append(piece[is_event])
                add(piece[~is_event])
            else:
                add(piece)
        if events:
            add(_pair_events(concatenate(events), sink))
    return CallNames(types.values, items.values)


class CallWriter:
    """Writes calls that end after the start of the session to CANN_API."""

    def __init__(
        self, names: CallNames, host: HostDirectory, timeline: Timeline, sink: Sink
    ) -> None:
        self._names, self._host, self._timeline, self._sink = names, host, timeline, sink
        self._levels = names.level()
        self._type_ids = sink.strings.intern_all(
            host.dictionaries.type_name(level, kind) for level, kind in names.type_pairs()
        )
        self._item_ids = np.full(len(names.items), -1, np.int64)
        self._process = (host.info.integer("pid") or 0) << 32

    def write(self, calls: Rows) -> None:
        """Write `CALL` rows."""
        clock, timeline = self._host.clocks.host, self._timeline
        end_ns = clock.to_ns(timeline.ticks(calls["end"]))
        keep = end_ns >= self._host.session.start_ns
        if not keep.all():
            calls, end_ns = selected(calls, keep), end_ns[keep]
        if not len(calls):
            return
        kind = calls["type_index"]
        names = self._type_ids[kind]
        named = np.flatnonzero(self._levels[kind] == COMMUNICATION)
        if len(named):
            names[named] = self._item_name_ids(calls["item"][named])
        self._sink.write(
            "CANN_API",
            {
                "startNs": clock.to_ns(timeline.ticks(calls["key"])),
                "endNs": end_ns,
                "type": self._levels[kind],
                "globalTid": self._process | timeline.thread_ids(calls["key"]),
                "connectionId": calls["connection_id"].astype(np.int64),
                "name": names,
            },
        )

    def _item_name_ids(self, items: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the string ids of items."""
        new = np.unique(items[self._item_ids[items] < 0])
        if len(new):
            dictionaries = self._host.dictionaries
            self._item_ids[new] = dictionaries.string_ids(
                self._sink.strings, self._names.items[new]
            )
        return self._item_ids[items]


def _usable(rows: Records, timeline: Timeline, sink: Sink) -> Records:
    """Drop calls with invalid times: far from the recording, or end before begin."""
    good = timeline.fits(rows["begin"]) & timeline.fits(rows["end"])
    good &= rows["begin"] <= rows["end"]
    if good.all():
        return rows
    sink.anomaly("impossible_time_api_event", int((~good).sum()), "api_event records were skipped")
    return rows[good]


def _pair_events(events: Records, sink: Sink) -> Records:
    """Combine pairs of equal events into intervals, in file order."""
    fields = ("item_id", "request_id", "thread_id", "type", "level")
    order = np.lexsort([events[field] for field in fields])
    events = events[order]
    equal = Runs(*(events[field] for field in fields))
    rank = equal.rank()
    first = np.flatnonzero((rank % 2 == 0) & (rank + 1 < equal.spread(equal.sizes)))
    paired = events[first]
    paired["end"] = events["begin"][first + 1]
    if lost := len(events) - 2 * len(first):
        sink.anomaly("unpaired_event", lost, "events without a second one")
    return paired


_NAMES = """
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
"""

SYSTEM_CALLS = frozenset(_NAMES.split())


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


@dataclass(frozen=True, slots=True)
class _Call:
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
        file = host.data.get(kind)
        if file is not None:
            _decode(host, sink, file, parse)


def _decode(
    host: HostDirectory, sink: Sink, file: RawFile, parse: Callable[[str], _Call | None]
) -> None:
    start_monotonic_ns = host.session.start_ns - int(host.clocks.monotonic.offset_ns)
    origin_us: float | None = None
    process_id = host.info.integer("pid") or 0
    for calls in _calls(host, sink, file, parse):
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
        start_us = np.array([call.start_us for call in listed]) - origin_us
        end_us = start_us + np.array([call.duration_us for call in listed])
        thread_id = np.array([call.thread_id for call in listed], np.int64)
        sampling.write_samples(
            sink,
            host,
            "OSRT_API",
            _since_1970(host, start_us),
            time_column="startNs",
            name=sink.strings.intern_all(call.name for call in listed),
            globalTid=(process_id << 32 | thread_id),
            endNs=_since_1970(host, end_us),
        )


def _since_1970(host: HostDirectory, monotonic_us: NDArray[np.float64]) -> NDArray[np.int64]:
    return host.clocks.monotonic.to_ns(sampling.truncated_ns(monotonic_us * 1000))


def _calls(
    host: HostDirectory, sink: Sink, file: RawFile, parse: Callable[[str], _Call | None]
) -> Iterator[list[_Call]]:
    """Yield the calls of a file in non-empty batches."""
    damaged = unfinished = 0
    for lines in sampling.text_lines(file):
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
    if unfinished:
        sink.anomaly("os_call_unfinished", unfinished, f"{host.data.path}/{file.name}.data")


def _system_call(line: str) -> _Call | None:
    match = _SYSTEM_CALL.match(line)
    if match is None:
        return None
    start_ms, duration_ms, thread_id, name = match.groups()
    return _Call(
        name, int(thread_id), float(start_ms) * _US_PER_MS, float(duration_ms) * _US_PER_MS
    )


def _thread_call(line: str) -> _Call | None:
    match = _THREAD_CALL.match(line)
    duration = _THREAD_CALL_DURATION.fullmatch(line[line.rfind("<") + 1 :])
    if match is None or duration is None:
        return None
    thread_id, start_s, name = match.groups()
    return _Call(name, int(thread_id), float(start_s) * _US_PER_S, float(duration[1]) * _US_PER_S)


def _is_listed(name: str) -> bool:
    if name in _NOT_LISTED:
        return False
    return name in SYSTEM_CALLS or name.startswith(("pthread_", "sem_"))
