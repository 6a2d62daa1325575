// What torch asks of a device: which is current, its streams and events, its hooks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocator.h"
#include "machine.h"

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

bench::Stream ours(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

c10::Stream theirs(bench::Stream stream) {
  const c10::Device device(kType, static_cast<c10::DeviceIndex>(stream.device));
  return c10::Stream(c10::Stream::UNSAFE, device, stream.id);
}

int index_of(c10::Device device) {
  return device.has_index() ? device.index() : bench::current_device();
}

const bench::Moment& moment_of(void* event) { return *static_cast<bench::Moment*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kType, static_cast<c10::DeviceIndex>(bench::current_device())};
  }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) bench::set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < bench::kDevices) bench::set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return bench::kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return theirs(bench::current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return theirs({index_of(device), 0});
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return theirs(bench::new_stream(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return theirs(bench::new_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return theirs(bench::exchange_stream(ours(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    return bench::is_idle(ours(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    bench::synchronize(ours(stream));
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return bench::is_capturing(ours(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    bench::synchronize(static_cast<int>(device));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(),
                "bench error: event of device ", int{device}, " recorded on a stream of device ",
                int{stream.device_index()});
    const bench::Moment moment = bench::record(ours(stream));
    if (*event == nullptr) *event = new bench::Moment;
    *static_cast<bench::Moment*>(*event) = moment;
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) bench::wait(ours(stream), moment_of(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || bench::has_passed(moment_of(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) bench::synchronize(moment_of(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return bench::elapsed_ms(moment_of(start), moment_of(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<bench::Moment*>(event);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return bench::is_touched(); }
  void init() const override { bench::touch(); }
  c10::DeviceIndex deviceCount() const override { return bench::kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { bench::set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(bench::current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    bench::set_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto data = bench::allocator()->allocate(size);
    if (storage.nbytes() != 0 && size != 0)
      bench::allocator()->copy_data(data.get(), storage.data(), std::min(size, storage.nbytes()));
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(size);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
