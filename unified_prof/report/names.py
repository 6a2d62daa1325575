"""Formatting of names, figures and findings for people.

C++ symbols are shortened to what identifies them: `void
at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<...` becomes
`vectorized_elementwise_kernel<...BinaryFunctor<MulFunctor>>`. JSON and CSV have full names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from os.path import commonprefix

from unified_prof.base.text import SIZES, TIMES, printable, scaled
from unified_prof.recording.model import THEN, Advice, Finding, Summary

ELLIPSIS = "..."
# The part of the peak memory that is not weights, optimizer state, gradients or activations.
OTHER_TENSORS = "inputs, temporaries and other tensors"
_FUNCTION = re.compile(r"[A-Za-z_~][\w$]*$")
_C_PARAMETERS = re.compile(r"[*&]|\b(void|bool|char|short|int|long|float|double|unsigned)\b")
# Text around a symbol: `before SYMBOL (cudaLaunchKernel)` and `SYMBOL x2`.
_AROUND = re.compile(r"(before |)(.+?)((?: \(\w+\))?(?: x[\d,]+)?)", re.DOTALL)
_PLACE = re.compile(r"[^/\\\s]+:\d+(?: \(\+[\d,]+\))?$")
_ADJACENT = re.compile(r"\.{4,}")  # Marks of parts that were left out one after another.
_REMARK = re.compile(r"(\S.*) \([^()]*[^()\d+,][^()]*\)", re.DOTALL)
# Characters at the end of a name in which a source location is searched.
_MAX_PLACE_CHARS = 1000
_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s:]*[/\\][^\s:]*:\d+(?: \(\+[\d,]+\))?")
_AFTER_PARAMETERS = re.compile(r"( const)?( \[clone [^\]]*\]| \(\.[^)]*\))*")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|<unnamed>::|_GLOBAL__N__\w+::")
_OPENING = {"<": ">", "(": ")", "{": "}", "[": "]"}
# Template arguments about data types, layouts or sizes, not about what a kernel computes.
_FILLER_WORDS = re.compile(
    r"(unsigned |signed )?(char|short|int|long|float|double|bool|void|__half|half)\b"
    r"|(std::|cuda::std::|thrust::)?(array|tuple|integral_constant|integer_sequence)\b"
    r"|.*(OffsetCalculator|LoadWithCast|StoreWithCast|LoadWithoutCast|StoreWithoutCast)\b"
    r"|(c10::)?(BFloat16|Half|Float8_\w+|complex)\b|__\w*bfloat16\b|.*::(b?float16|half)_t\b"
    r"|.*\b(OpaqueType|TensorInfo)\b|[-\d(]|true\b|false\b|.*[*&]$"
)
# Wrappers that only call their argument: the argument is more informative.
_WRAPPER = re.compile(r"gpu_\w*kernel\w*|opmath_\w+|kernel_impl|wrapper\w*")
_MAX_DEPTH = 12
_MAX_BRACKETS = 200
# A mangled function, the length before each part of its name, and what has digits but no name.
_NESTED, _LENGTH = re.compile(r"_ZN?[rVK]*"), re.compile(r"[1-9]\d{0,3}")
_LITERAL = re.compile(r"L[a-z](n?\d+)E")
_NO_NAME = re.compile(r"DF\d+[b_]?|[ST]\d*_|.", re.DOTALL)
# Kernels of these libraries have parameters of their own types.
_SYMBOL_PREFIXES = ("nccl", "rccl", "msccl")
# Number of places where names may differ that are tried before equal ones are not shortened.
_MAX_ATTEMPTS = 5
_MAX_NAME_LENGTH = 1 << 14  # Longer names are not parsed as symbols.


def readable_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return display names of one column; different names stay different.

    Kernels whose short forms are equal are shown with all template arguments, or completely.
    """
    texts = [_symbols(name) for name in names]
    for longer in (partial(_symbols, arguments=True), str):
        owners: dict[str, set[str]] = {}
        for name, text in zip(names, texts, strict=True):
            owners.setdefault(text, set()).add(name)
        texts = [
            text if len(owners[text]) == 1 else longer(name)
            for name, text in zip(names, texts, strict=True)
        ]
    return tuple(texts)


def _symbols(name: str, *, arguments: bool = False) -> str:
    """Shorten a symbol, or each symbol of a sequence."""
    return THEN.join(short_symbol(one, arguments=arguments) for one in name.split(THEN))


@lru_cache(maxsize=1 << 16)
def short_symbol(name: str, *, arguments: bool = False) -> str:
    """Return a C++ function without return type, namespaces and parameters; other names unchanged.

    If `arguments`, keep all template arguments, not only the most informative one.
    """
    around = _AROUND.fullmatch(name)
    found = _parsed(around[2]) if around else None
    if around is None or found is None:
        return name
    function, inner = found
    words = _all_arguments(inner) if arguments else _informative_part(inner)
    return f"{around[1]}{function}{words}{around[3]}"


def truncate_middle(text: str, width: int) -> str:
    """Shorten text to `width` characters by removing its middle.

    The end of a name is often more informative than its middle: a line number, a size, a version.
    Paths are shortened at the front, and a trailing source location is kept.
    """
    if len(text) <= width:
        return text
    kept = max(0, width - len(ELLIPSIS))
    tail = kept * 2 // 5
    if _PATH.fullmatch(text):
        tail = kept
    elif place := _PLACE.search(text[-_MAX_PLACE_CHARS:]):
        tail = max(tail, min(kept, len(place[0])))
    return f"{text[: kept - tail]}{ELLIPSIS[:width]}{text[len(text) - tail :] if tail else ''}"


def truncate_names(names: Sequence[str], width: int) -> tuple[str, ...]:
    """Return the names of one column, shortened; different names stay different.

    Names with equal beginnings and ends keep the part in which they differ instead of their end,
    or, if that does not suffice, are not shortened.
    """
    cut = [_truncate_name(name, width) for name in names]
    for attempt in range(_MAX_ATTEMPTS):
        owners: dict[str, set[str]] = {}
        for name, text in zip(names, cut, strict=True):
            owners.setdefault(text, set()).add(name)
        for index, name in enumerate(names):
            if len(equal := owners[cut[index]]) > 1:
                place = len(commonprefix(list(equal)))  # noqa: RUF071 - not paths
                last = attempt == _MAX_ATTEMPTS - 1
                cut[index] = name if last else _truncate_around(name, width, place)
    return tuple(cut)


def _truncate_name(text: str, width: int) -> str:
    """Shorten a name: by a remark at the end if that suffices, else in the middle (one mark)."""
    if len(text) > width >= len(without_remark(text)):
        return without_remark(text)
    return _ADJACENT.sub(ELLIPSIS, truncate_middle(text, width))


def without_remark(text: str) -> str:
    """Return a name without a remark: `device 0 (NVIDIA B200)` becomes `device 0`."""
    remark = None if _PATH.fullmatch(text) else _REMARK.fullmatch(text)
    return text if remark is None else remark[1]


def _truncate_around(text: str, width: int, place: int) -> str:
    """Shorten text to its beginning and the part from the word that contains `place`."""
    word = max(text.rfind(mark, 0, place) for mark in "_:<., ") + 1
    room = max(0, width - 2 * len(ELLIPSIS))
    if place - word > room // 2:  # The word alone would hide the difference.
        word = place
    head = min(word, room * 2 // 5)
    rest = f"{text[:head]}{ELLIPSIS * (head < word)}{text[word:]}"
    return rest if len(rest) <= width else f"{rest[: max(0, width - len(ELLIPSIS))]}{ELLIPSIS}"


def _parsed(text: str) -> tuple[str, list[str]] | None:
    """Return the name and template arguments of a C++ function; None for other text."""
    if len(text) > _MAX_NAME_LENGTH:
        return None
    if text.startswith("_Z"):
        return _mangled(text)
    if "<" not in text and "(" not in text:
        return None
    text, anonymous = _ANONYMOUS.subn("", text)
    pieces = _pieces(text)
    if pieces is None:
        return None
    head, after = pieces
    is_symbol = bool(anonymous) or "::" in head or head.startswith(_SYMBOL_PREFIXES)
    if not is_symbol and not _C_PARAMETERS.search(text, len(head)):
        return None  # `Linear(in=3)`, `net.<lambda>`: no symbol
    if not _AFTER_PARAMETERS.fullmatch(after):
        return None
    # The return type ends at the last space outside brackets.
    token = _split(head, " ")[-1]
    component = _split(token, "::")[-1]
    function, bracket, rest = component.partition("<")
    if not _FUNCTION.fullmatch(function) or (bracket and not rest.endswith(">")):
        return None
    if not bracket and after == "" and head == text:
        return None
    return function, [one.strip() for one in _split(rest[:-1], ",")] if bracket else []


def _mangled(text: str) -> tuple[str, list[str]] | None:
    """Return the name of a mangled C++ function, and the names and numbers in its template.

    Compilers of AMD and NVIDIA use manglings that `__cxa_demangle` of GCC 12 does not know.
    """
    if (nested := _NESTED.match(text)) is None:
        return None
    parts: list[str] = []
    at = nested.end()
    while (length := _LENGTH.match(text, at)) is not None:
        at = length.end() + int(length[0])
        parts.append(text[length.end() : at])
    if not parts or at > len(text) or not all(map(_FUNCTION.fullmatch, parts)):
        return None
    arguments: list[str] = []
    while at < len(text):
        if (literal := _LITERAL.match(text, at)) is not None:
            arguments.append(literal[1])
            at = literal.end()
        elif (length := _LENGTH.match(text, at)) is not None:
            at = length.end() + int(length[0])
            arguments.append(text[length.end() : at])
        else:
            at = _NO_NAME.match(text, at).end()  # type: ignore[union-attr]
    return parts[-1], [one for one in arguments if one]


def _pieces(text: str) -> tuple[str, str] | None:
    """Return the text before and after the parameters."""
    depth: list[str] = []
    begin = None
    for index, character in enumerate(text):
        if depth and character == depth[-1]:
            if not (character == ">" and text[index - 1] == "-"):
                depth.pop()
                if not depth and begin is not None:
                    return text[:begin].rstrip(), text[index + 1 :]
        elif character in _OPENING:
            if character == "(" and not depth and begin is None:
                if not index or (text[index - 1] == " " and text[index - 2] != ">"):
                    return None
                begin = index
            depth.append(_OPENING[character])
            if len(depth) > _MAX_BRACKETS:
                return None
    if depth or begin is not None:
        return None
    return text, ""


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside brackets."""
    parts: list[str] = []
    depth: list[str] = []
    last = index = 0
    while index < len(text):
        character = text[index]
        if depth and character == depth[-1] and text[index - 1 : index + 1] != "->":
            depth.pop()
        elif character in _OPENING:
            depth.append(_OPENING[character])
        elif not depth and text.startswith(separator, index):
            parts.append(text[last:index])
            index += len(separator)
            last = index
            continue
        index += 1
    return [*parts, text[last:]]


def _informative_part(arguments: Iterable[str], level: int = 0) -> str:
    """Return the argument that identifies the computation as `<...Name>`; empty if none does."""
    for argument in arguments:
        if _FILLER_WORDS.match(argument) or level > _MAX_DEPTH:
            continue
        found = _function_name(argument)
        if found is None:
            continue
        function, inner = found
        below = _informative_part(inner, level + 1)
        if _WRAPPER.fullmatch(function) and below:
            return below
        return f"<{ELLIPSIS}{function}{below.replace(ELLIPSIS, '')}>"
    return ""


def _function_name(argument: str) -> tuple[str, list[str]] | None:
    """Return name and arguments of a type, or of the function that contains a lambda."""
    outer = _split(argument, "::")
    # A lambda's type is the path to it; its function is the last part with parameters.
    for part in outer:
        if "(" in part and not part.startswith(("{", "operator", "(")):
            return _parsed(part)
    component = outer[-1]
    name, bracket, rest = component.partition("<")
    if not re.fullmatch(r"[A-Za-z_]\w*", name.strip()):
        return None
    inner = _split(rest.rstrip()[:-1], ",") if bracket else []
    return name.strip(), [one.strip() for one in inner]


def _all_arguments(arguments: Iterable[str]) -> str:
    texts = []
    for argument in arguments:
        found = _function_name(argument)
        texts.append(argument if found is None else found[0] + _all_arguments(found[1]))
    return f"<{', '.join(texts)}>" if texts else ""


neutral = printable

NOT_MEASURED = "-"  # Placeholder of a figure that was not measured.

_FLOPS = (
    (10**15, "PFLOP"),
    (10**12, "TFLOP"),
    (10**9, "GFLOP"),
    (10**6, "MFLOP"),
    (10**3, "kFLOP"),
    (1, "FLOP"),
)
_RATES = ((10**12, "TB/s"), (10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s"), (1, "B/s"))


def part_name(name: str) -> str:
    """Return the name of a part of an iteration for display."""
    return "other code" if name == "other" else name.replace("_", " ").replace("cpu", "CPU")


def format_duration(value_ns: float | None) -> str:
    """Format a duration with three significant digits."""
    return NOT_MEASURED if value_ns is None else scaled(value_ns, TIMES)


def format_size(value_bytes: float | None) -> str:
    """Format a size with three significant digits and a binary unit."""
    return NOT_MEASURED if value_bytes is None else scaled(value_bytes, SIZES)


def format_flops(value: float | None) -> str:
    """Format a number of floating-point operations with three significant digits."""
    return NOT_MEASURED if value is None else scaled(value, _FLOPS)


def format_flops_per_second(value_tflops: float | None) -> str:
    """Format TFLOP/s with three significant digits."""
    if value_tflops is None:
        return NOT_MEASURED
    return scaled(value_tflops * 1e12, _FLOPS) + "/s"


def format_gb_per_second(value: float | None) -> str:
    """Format decimal GB/s with three significant digits."""
    return NOT_MEASURED if value is None else scaled(value * 1e9, _RATES)


def format_percent(value: float | None) -> str:
    """Format a percentage with one decimal; small non-zero values as `<0.1 %`."""
    if value is None:
        return NOT_MEASURED
    if 0 < value < 0.1:
        return "<0.1 %"
    return f"{value:.1f} %"


def format_share(part: float | None, whole: float | None) -> str:
    """Format `part` as a percentage of `whole`."""
    return format_percent(None if part is None or not whole else 100 * part / whole)


def format_number(value: float | None) -> str:
    """Format a count with separators, a mean of counts with three significant digits."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_ANOMALY_NAMES = {
    "activations_of_another_sequence": (
        "activations taken from an iteration with different operations"
    ),
    "allocation_without_address": "allocations without an address",
    "allocation_without_release": "allocations not freed within the recording",
    "ambiguous_forward_operation": "backward kernels with several candidate forward operations",
    "ambiguous_launch": "kernels with several candidate launch calls",
    "backward_not_followed": "backward passes without times per operation",
    "backward_nodes_not_of_this_iteration": "backward pass through the graph of another iteration",
    "backward_without_forward": "backward kernels without a forward operation",
    "compiled_functions_ran_eagerly": "compiled functions ran uncompiled during the measurement",
    "duplicate_correlation": "correlation ids used more than once",
    "first_iteration_reported": "only the first iteration was measured, including setup",
    "hash_without_text": "names of which only a hash was recorded",
    "impossible_communication_time": "collectives with impossible times, ignored",
    "impossible_host_time": "host ranges with impossible times, ignored",
    "impossible_size": "impossible sizes, ignored",
    "impossible_step_time": "steps with impossible times, ignored",
    "impossible_task_time": "device tasks with impossible times, ignored",
    "impossible_time": "impossible times, ignored",
    "incomplete_file": "the file is incomplete",
    "incomplete_step": "steps whose events the end of the file cuts off, ignored",
    "loss_not_finite": "the loss was infinite or NaN",
    "loss_not_read": "the loss could not be checked for NaN",
    "measuring_failed": "part of the measurement failed because of an error in uprof",
    "memory_added_up": "memory in use estimated from allocations",
    "odd_schema": "unusual schema",
    "os_call_not_listed": "system calls with an unknown name",
    "path_clocks": "critical path: the clocks of host and device differ",
    "path_loader_workers": "critical path with DataLoader workers",
    "path_of_first_steps": "critical path of the first steps only",
    "path_queue_full": "critical path with a full launch queue",
    "path_without_device": "critical path of the host only",
    "path_without_events": "critical path without event dependencies",
    "path_without_host": "critical path of the devices only",
    "path_without_launches": "critical path with missing launches",
    "path_without_steps": "critical path",
    "peak_usage_not_measured": "peak memory could not be measured",
    "release_without_allocation": "frees of memory allocated before the recording",
    "replay_of_several_captures": "replayed graphs with several candidate captures",
    "replay_without_capture": "replayed graphs whose capture was not recorded",
    "replay_without_nodes": "replayed graphs whose kernels cannot be distinguished",
    "run_not_complete": "the run ended before all iterations were measured",
    "sampled_trace": "most operations were removed from the trace",
    "saved_bytes_of_no_operation": "tensors saved for backward outside any operation",
    "scope_widened": "more than the requested scope is shown",
    "task_without_launch": "kernels without a matching launch call",
    "unfinished_event": "events cut off by the end of the recording",
    "unmatched_iterations": "iterations with different operations, excluded from medians",
    "unpaired_event": "events with only a begin or an end",
    "weights_never_initialised": "lazy parameters that were never initialized",
    "weights_on_another_device": "parameters on another device",
}


def anomaly_name(name: str) -> str:
    """Return the text of an anomaly."""
    return _ANOMALY_NAMES.get(name, neutral(name.replace("_", " ")))


# Clauses that may be left out, but for the basis of a share that differs from the one of the cost.
_PARENTHESES = re.compile(r" \((?!CPU wait excluded)[^()]*\)")
_FINDING_LENGTH = 90  # Findings are shortened to this many characters if clauses can be left out.


# Graph replays without operations are mentioned if they take this share of the device time.
_REPLAYED_SHARE = 0.1


EXCLUDED = "not analyzed: "  # Begin of the lines about a part of a recording without findings.


def is_mostly_excluded(advice: Advice) -> bool:
    """Return True if start-up and pauses of a recording without steps are most of its time."""
    return not advice.steps and advice.paused_ms + (advice.before_ms or 0) > (advice.step_ms or 0)


def excluded_part(advice: Advice) -> list[str]:
    """Describe the part of a recording that was excluded from the analysis."""
    length = format_duration(advice.paused_ms * 1e6)
    if advice.steps:
        first = ["the first step"] * (advice.steps < advice.recorded_steps > 2)
        long = [f"steps of more than three medians, in total {length}"] * bool(advice.pauses)
        return [f"{EXCLUDED}{', '.join(first + long)}"] if first or long else []
    parts = []
    if advice.before_ms:
        before = f"{EXCLUDED}{format_duration(advice.before_ms * 1e6)} before the first device task"
        mostly = f", mostly in {neutral(advice.before_in)}" if advice.before_in else ""
        parts.append(before + mostly)
    if advice.pauses:
        several = advice.pauses > 1
        gaps = f"{advice.pauses} gaps, in total" if several else "a gap of"
        parts.append(f"{EXCLUDED}{gaps} {length}, in which the device is idle")
        if advice.paused_in:
            where = "in the longest, the host is" if several else "the host is"
            parts[-1] += f"; {where} mostly in {neutral(advice.paused_in)}"
    return parts


def analysis_notes(advice: Advice, path: str) -> list[str]:
    """Return the notes below the findings of a report: what they leave out and what they are of."""
    excluded = excluded_part(advice)
    if excluded and not advice.steps and any(one.cost_ms_per_step for one in advice.findings):
        rest = format_duration((advice.step_ms or 0.0) * 1e6)
        excluded[-1] += f"; costs are shares of the other {rest}"
    return [*excluded, *replay_notes(advice, path)]


def replay_notes(advice: Advice, path: str = "REPLAY") -> list[str]:
    """Return the command that shows the operations of graph replays, if replays take much time.

    `path` is the recording of the replays.
    """
    if advice.replayed_share < _REPLAYED_SHARE:
        return []
    share = format_percent(100 * advice.replayed_share)
    option, capture = "--with", advice.capture or "CAPTURE"
    if advice.capture and not capture.endswith(".db"):
        option = "--convert --with"
    command = neutral(f"uprof report {shlex.quote(path)} {option} {shlex.quote(capture)}")
    return [f"{share} of device time is in graph replays: `{command}` shows operations"]


def finding_cost(finding: Finding, advice: Advice) -> str:
    """Return the time per step that fixing a finding saves, and its share of the step."""
    if not finding.cost_ms_per_step:
        return NOT_MEASURED
    cost = format_duration(finding.cost_ms_per_step * 1e6)
    if not advice.step_ms:
        return cost
    unit = "/step" if advice.steps else ""
    if finding.cost_ms_per_step > advice.step_ms:  # slow steps may take longer than all others
        return f"{cost}{unit}"
    return f"{cost}{unit} ({format_share(finding.cost_ms_per_step, advice.step_ms)})"


def finding_summary(finding: Finding) -> str:
    """Return a finding without its cost, shortened to the clauses that fit in one line."""
    clauses = [one for one in finding.text.split("; ") if not one.startswith("saves ")]
    text = clauses[0] if clauses else finding.text
    if len(text) > _FINDING_LENGTH:
        text = _PARENTHESES.sub("", text)
    for clause in clauses[1:]:
        if len(text) + len(clause) + 2 > _FINDING_LENGTH:
            break
        text = f"{text}; {clause}"
    return f"{text} ({finding.sure})"


_FAMILIES = {
    "skyline-run-time": "Skyline run time report",
    "skyline-memory": "Skyline memory report",
    "skyline-run-time + skyline-memory": "Skyline run time and memory reports",
    "msprof": "msprof database",
}
# Decoder -> the kind of recording that it converted.
_RECORDINGS = {
    "kineto": "torch.profiler trace",
    "nsys": "Nsight Systems export",
    "rocm": "ROCm profiler recording",
    "ascend_pt": "torch_npu recording",
    "ascend_text": "torch_npu text export",
    "memory_snapshot": "torch.cuda.memory snapshot",
}
# Directory of a cached report: a message names it, and its hash says nothing to readers.
_CACHE = re.compile(r".*[/\\]uprof[/\\]reports[/\\][0-9a-f]{32}[/\\]")


def report_title(summary: Summary) -> str:
    """Return the title of a report."""
    return f"{_CACHE.sub('', neutral(summary.path))}: {recording_format(summary)}"


def recording_format(summary: Summary) -> str:
    """Return by what a report was recorded, if it was converted, and its family and revision."""
    family = _FAMILIES.get(summary.family, summary.family)
    recording = _RECORDINGS.get(dict(summary.facts).get("decoder", ""))
    if recording is not None:
        return f"{recording} ({family} {summary.revision})"
    return f"{family}, revision {summary.revision}"
