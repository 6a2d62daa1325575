#include "machine.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

namespace bench {
namespace {

constexpr Ns kSpinNs = 200'000;  // a sleep ends late, so the last of it is waited out awake
constexpr Ns kNever = INT64_MAX;

struct DeviceState {
  std::map<int64_t, Ns> ends;  // by stream: when all that was put on it will be over
  int64_t streams = 1;
  Ns fails_at = kNever;
  std::string failure;
};

std::mutex mutex;
DeviceState devices[kDevices];
std::unordered_map<std::string, Ns> durations;
Ns any_duration = 10'000;
bool touched = false;
bool bad_fork = false;

bool logging = false;
std::vector<Record> records;
uint32_t correlations = 0;
double lost_share = 0;
double lost_carry = 0;

thread_local int device_here = 0;
thread_local int64_t streams_here[kDevices] = {};
thread_local std::vector<uint64_t> externals;
thread_local int quiet = 0;
std::shared_ptr<Graph> capture;  // of all threads: a backward pass has one of its own
Stream captured{-1, 0};
Ns event_ns = 0;

int64_t thread_id() {
  thread_local int64_t id = syscall(SYS_gettid);
  return id;
}

void log_call(const std::string& name, Ns start, uint32_t correlation) {
  if (!logging || quiet) return;
  Record call{Record::kRuntime, name};
  call.start = start;
  call.end = std::max(now(), start + 1);
  call.correlation = correlation;
  call.external = externals.empty() ? 0 : externals.back();
  call.thread = thread_id();
  records.push_back(call);
}

bool loses_one() {
  lost_carry += lost_share;
  if (lost_carry < 1) return false;
  lost_carry -= 1;
  return true;
}

void check_locked(int device, Ns at) {
  if (at >= devices[device].fails_at)
    throw std::runtime_error("bench error: " + devices[device].failure);
}

// Puts work on a stream; returns when it will be over.
Ns put(Record work, Ns duration, Stream stream, const char* call) {
  touch();
  if (is_capturing(stream)) {
    capture->emplace_back(work.name, duration);
    return 0;
  }
  std::lock_guard<std::mutex> lock(mutex);
  const Ns called = now();
  check_locked(stream.device, called);
  Ns& end = devices[stream.device].ends[stream.id];
  work.device = stream.device;
  work.stream = stream.id;
  work.start = std::max(called, end);
  work.end = end = work.start + duration;
  work.correlation = ++correlations;
  work.external = externals.empty() ? 0 : externals.back();
  if (logging && !quiet) {
    log_call(call, called, work.correlation);
    if (!loses_one()) records.push_back(work);
  }
  return work.end;
}

Ns end_of(Stream stream) {
  auto& ends = devices[stream.device].ends;
  const auto found = ends.find(stream.id);
  return found == ends.end() ? 0 : found->second;
}

Ns end_of(int device) {
  Ns last = 0;
  for (const auto& [_, end] : devices[device].ends) last = std::max(last, end);
  return last;
}

void refuse_captured(bool is_captured) {
  if (is_captured)
    throw std::runtime_error("bench error: operation not permitted when stream is capturing");
}

void wait_out(int device, Ns end, const char* call) {
  const Ns called = now();
  sleep_until(end);
  std::lock_guard<std::mutex> lock(mutex);
  log_call(call, called, ++correlations);
  check_locked(device, now());
}

}  // namespace

Ns now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return Ns{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void sleep_until(Ns moment) {
  const Ns awake = moment - kSpinNs;
  if (awake > now()) {
    timespec time{awake / 1'000'000'000, awake % 1'000'000'000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
    }
  }
  while (now() < moment) {
  }
}

int current_device() { return device_here; }

void set_device(int device) {
  if (device < 0 || device >= kDevices)
    throw std::runtime_error("bench error: invalid device ordinal");
  device_here = device;
}

Stream current_stream(int device) { return {device, streams_here[device]}; }

Stream exchange_stream(Stream stream) {
  std::swap(stream.id, streams_here[stream.device]);
  return stream;
}

Stream new_stream(int device) {
  std::lock_guard<std::mutex> lock(mutex);
  return {device, devices[device].streams++};
}

void touch() {
  if (bad_fork)
    throw std::runtime_error(
        "Cannot re-initialize bench in forked subprocess: its parent has used the device");
  if (!touched) {
    touched = true;
    pthread_atfork(nullptr, nullptr, [] { bad_fork = true; });
  }
}

bool is_touched() { return touched; }
bool is_bad_fork() { return bad_fork; }

void launch(const std::string& name, Ns duration, Stream stream) {
  put({Record::kKernel, name}, duration, stream, "benchLaunchKernel");
}

void copy(const std::string& name, int64_t bytes, Ns duration, Stream stream) {
  Record work{Record::kCopy, name};
  work.bytes = bytes;
  put(work, duration, stream, "benchMemcpyAsync");
}

void launch_failing(const std::string& message, Ns duration, Stream stream) {
  const Ns end = put({Record::kKernel, "failing"}, duration, stream, "benchLaunchKernel");
  std::lock_guard<std::mutex> lock(mutex);
  auto& device = devices[stream.device];
  if (end < device.fails_at) {
    device.fails_at = end;
    device.failure = message;
  }
}

Moment record(Stream stream) {
  touch();
  if (is_capturing(stream)) {
    capture->emplace_back("event", 0);
    return {stream.device, stream.id, 0, true};
  }
  std::lock_guard<std::mutex> lock(mutex);
  const Ns called = now();
  check_locked(stream.device, called);
  const Ns at = std::max(called, end_of(stream));
  if (event_ns) devices[stream.device].ends[stream.id] = at + event_ns;
  return {stream.device, stream.id, at, false};
}

void wait(Stream stream, const Moment& moment) {
  touch();
  std::lock_guard<std::mutex> lock(mutex);
  Ns& end = devices[stream.device].ends[stream.id];
  if (moment.at > end) end = moment.at;
}

bool has_passed(const Moment& moment) {
  refuse_captured(capture != nullptr);  // of any event: CUDA's captures forbid asking by default
  std::lock_guard<std::mutex> lock(mutex);
  if (moment.device >= 0) check_locked(moment.device, now());
  return moment.at <= now();
}

bool is_idle(Stream stream) {
  std::lock_guard<std::mutex> lock(mutex);
  check_locked(stream.device, now());
  return end_of(stream) <= now();
}

void synchronize(const Moment& moment) {
  refuse_captured(moment.captured);
  if (moment.device >= 0) wait_out(moment.device, moment.at, "benchEventSynchronize");
}

void synchronize(Stream stream) {
  refuse_captured(is_capturing(stream));
  std::unique_lock<std::mutex> lock(mutex);
  const Ns end = end_of(stream);
  lock.unlock();
  wait_out(stream.device, end, "benchStreamSynchronize");
}

void synchronize(int device) {
  touch();
  refuse_captured(capture != nullptr);
  std::unique_lock<std::mutex> lock(mutex);
  const Ns end = end_of(device);
  lock.unlock();
  wait_out(device, end, "benchDeviceSynchronize");
}

double elapsed_ms(const Moment& start, const Moment& end) {
  refuse_captured(start.captured || end.captured);
  if (start.device != end.device)
    throw std::runtime_error("bench error: events of different devices");
  return static_cast<double>(end.at - start.at) / 1e6;
}

void check(int device) {
  std::lock_guard<std::mutex> lock(mutex);
  check_locked(device, now());
}

void recover() {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& device : devices) {
    device.fails_at = kNever;
    device.ends.clear();
  }
  durations.clear();
  any_duration = 10'000;
  lost_share = lost_carry = 0;
  event_ns = 0;
}

void set_duration(const std::string& name, Ns duration) {
  std::lock_guard<std::mutex> lock(mutex);
  (name.empty() ? any_duration : durations[name]) = duration;
}

Ns duration_of(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = durations.find(name);
  return found == durations.end() ? any_duration : found->second;
}

void begin_capture() {
  if (capture) throw std::runtime_error("bench error: a graph is being captured already");
  captured = current_stream(device_here);
  capture = std::make_shared<Graph>();
}

std::shared_ptr<Graph> end_capture() {
  captured.device = -1;
  return std::move(capture);
}

bool is_capturing(Stream stream) {
  return capture && stream.device == captured.device && stream.id == captured.id;
}

void replay(const Graph& graph) {
  const Stream stream = current_stream(device_here);
  std::unique_lock<std::mutex> lock(mutex);
  const Ns called = now();
  const uint32_t correlation = ++correlations;
  log_call("benchGraphLaunch", called, correlation);
  Ns& end = devices[stream.device].ends[stream.id];
  for (const auto& [name, duration] : graph) {
    Record work{Record::kKernel, name, stream.device, stream.id};
    work.start = std::max(called, end);
    work.end = end = work.start + duration;
    work.correlation = correlation;
    if (logging) records.push_back(work);
  }
}

void begin_log() {
  std::lock_guard<std::mutex> lock(mutex);
  records.clear();
  logging = true;
}

std::vector<Record> end_log() {
  std::unique_lock<std::mutex> lock(mutex);
  Ns last = 0;
  for (int device = 0; device < kDevices; ++device) last = std::max(last, end_of(device));
  lock.unlock();
  sleep_until(last);
  lock.lock();
  logging = false;
  return std::move(records);
}

void set_event_cost(Ns ns) {
  std::lock_guard<std::mutex> lock(mutex);
  event_ns = ns;
}

void set_lost_kernels(double share) {
  std::lock_guard<std::mutex> lock(mutex);
  lost_share = share;
}

void push_external(uint64_t id) { externals.push_back(id); }
void pop_external() {
  if (!externals.empty()) externals.pop_back();
}

Quiet::Quiet() { ++quiet; }
Quiet::~Quiet() { --quiet; }

}  // namespace bench
