// The device's side of torch.profiler: calls of the runtime, kernels and copies in its own trace.
#define USE_KINETO
#define FMT_HEADER_ONLY 1

#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <unistd.h>

#include <chrono>

#include "libkineto.h"
#include "output_base.h"
#include "machine.h"

namespace {

using libkineto::ActivityType;

// Kineto's times are those since 1970; the two clocks are compared once a recording.
bench::Ns since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - bench::now();
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> wanted) : wanted_(std::move(wanted)) {}

  void start() override {
    offset_ = since_1970();
    bench::begin_log();
  }
  void stop() override { records_ = bench::end_log(); }
  std::vector<std::string> errors() override { return {}; }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override { bench::push_external(id); }
  void popCorrelationId() override { bench::pop_external(); }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback linked, int64_t, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "bench");
    for (int device = 0; device < bench::kDevices; ++device)
      logger.handleDeviceInfo({device, device, "bench", "bench " + std::to_string(device)}, 0);
    for (const bench::Record& record : records_) {
      const ActivityType type = type_of(record);
      if (wanted_.count(type) == 0) continue;
      buffer_->emplace_activity(buffer_->span, type, record.name);
      auto& activity = *buffer_->activities.back();
      const bool is_call = record.kind == bench::Record::kRuntime;
      activity.startTime = record.start + offset_;
      activity.endTime = record.end + offset_;
      activity.id = static_cast<int32_t>(record.correlation);
      activity.device = is_call ? static_cast<int32_t>(getpid()) : record.device;
      activity.resource = static_cast<int32_t>(is_call ? record.thread : record.stream);
      activity.threadId = static_cast<int32_t>(record.thread);
      activity.flow.id = record.correlation;
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
      activity.flow.start = is_call;
      activity.linked = linked(static_cast<int32_t>(record.external));
      activity.addMetadata("correlation", record.correlation);
      if (!is_call) {
        activity.addMetadata("device", record.device);
        activity.addMetadata("stream", record.stream);
      }
      if (record.bytes != 0) activity.addMetadata("bytes", record.bytes);
      activity.log(logger);
    }
  }

 private:
  static ActivityType type_of(const bench::Record& record) {
    if (record.kind == bench::Record::kKernel) return ActivityType::CONCURRENT_KERNEL;
    if (record.kind == bench::Record::kCopy) return ActivityType::GPU_MEMCPY;
    return ActivityType::PRIVATEUSE1_RUNTIME;
  }

  std::set<ActivityType> wanted_;
  std::vector<bench::Record> records_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  bench::Ns offset_ = 0;
};

class BenchProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    // A profile of the CPU alone asks for calls of the runtime as well, but for no kernels.
    const bool with_device = wanted.count(ActivityType::CONCURRENT_KERNEL) != 0;
    return std::make_unique<Session>(with_device ? wanted : std::set<ActivityType>{});
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_ = "bench";
  std::set<ActivityType> types_ = {ActivityType::PRIVATEUSE1_RUNTIME,
                                   ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
};

REGISTER_PRIVATEUSE1_PROFILER(BenchProfiler);

}  // namespace
