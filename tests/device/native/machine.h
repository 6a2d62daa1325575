// Two devices that exist in time only: streams, kernels, events and errors. Knows nothing of torch.
//
// Nothing runs here. A kernel begins when it was launched and the one before it on its stream has
// ended, and takes exactly as long as it was told to; whoever waits sleeps until that moment. So a
// kernel of 3 ms is one of 3 ms however busy the machine is, and there are no threads to end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace bench {

using Ns = int64_t;  // of the clock that never goes back

constexpr int kDevices = 2;

struct Record {
  enum Kind { kRuntime, kKernel, kCopy, kWait };
  Kind kind;
  std::string name;
  int device = 0;
  int64_t stream = 0;
  Ns start = 0;
  Ns end = 0;
  uint32_t correlation = 0;
  uint64_t external = 0;
  int64_t thread = 0;
  int64_t bytes = 0;
};

struct Stream {
  int device;
  int64_t id;  // 0 is the device's default stream
};

// A moment of a stream, which may lie ahead.
struct Moment {
  int device = -1;
  int64_t stream = 0;
  Ns at = 0;
  bool captured = false;
};

Ns now();
void sleep_until(Ns moment);

// The calling thread's place.
int current_device();
void set_device(int device);
Stream current_stream(int device);
Stream exchange_stream(Stream stream);
Stream new_stream(int device);

// The devices are touched for the first time here; a forked child of a process that did may not.
void touch();
bool is_touched();
bool is_bad_fork();

// Work. Each begins by asking whether the device has failed.
void launch(const std::string& name, Ns duration, Stream stream);
void copy(const std::string& name, int64_t bytes, Ns duration, Stream stream);
void launch_failing(const std::string& message, Ns duration, Stream stream);
Moment record(Stream stream);
void wait(Stream stream, const Moment& moment);

// Waiting, with the errors of what was waited for.
bool has_passed(const Moment& moment);
bool is_idle(Stream stream);
void synchronize(const Moment& moment);
void synchronize(Stream stream);
void synchronize(int device);
double elapsed_ms(const Moment& start, const Moment& end);
void check(int device);
void recover();

// How long a kernel takes: by its name, or as any other.
void set_duration(const std::string& name, Ns duration);
Ns duration_of(const std::string& name);

// Graphs: what is launched meanwhile on the thread's current stream is kept, not run.
using Graph = std::vector<std::pair<std::string, Ns>>;
void begin_capture();
std::shared_ptr<Graph> end_capture();
bool is_capturing(Stream stream);
void replay(const Graph& graph);

// What happened, while it is recorded.
void begin_log();
std::vector<Record> end_log();  // waits for the devices
void set_event_cost(Ns ns);  // what a stream does nothing else in, for each event
void set_lost_kernels(double share);
void push_external(uint64_t id);
void pop_external();

// Launches of the calling thread count as nobody's while one of these lives.
struct Quiet {
  Quiet();
  ~Quiet();
};

}  // namespace bench
