// The operators: each puts a kernel on the current stream and has its values computed by the CPU.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "allocator.h"
#include "machine.h"

namespace {

constexpr bench::Ns kCopyNs = 2'000;

c10::Allocator* memory() { return bench::allocator(); }

bench::Stream stream_of(const at::Tensor& tensor) {
  return bench::current_stream(tensor.device().index());
}

// Values lie in the host's memory: the CPU can look at them where they are.
at::Tensor seen_by_cpu(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  auto options = tensor.options().device(at::kCPU);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor as_on_device(const at::Tensor& values, const at::Tensor& like) {
  at::Tensor result = at::empty(values.sizes(), like.options());
  seen_by_cpu(result).copy_(values);
  return result;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, memory(), keys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, memory(), keys,
                                           c10::dtype_or_default(type));
}

void log_copy(const at::Tensor& from, const at::Tensor& to) {
  const auto bytes = static_cast<int64_t>(from.nbytes());
  if (from.is_cpu()) {
    bench::copy("Memcpy HtoD", bytes, kCopyNs, stream_of(to));
  } else if (to.is_cpu()) {
    bench::copy("Memcpy DtoH", bytes, kCopyNs, stream_of(from));
    bench::synchronize(stream_of(from));
  } else if (from.device() == to.device()) {
    bench::launch("copy", bench::duration_of("copy"), stream_of(from));
  } else {
    bench::copy("Memcpy PtoP", bytes, kCopyNs, stream_of(from));
    bench::wait(stream_of(to), bench::record(stream_of(from)));
  }
}

thread_local int within = 0;  // the copies of an operator that the CPU computes are no copies

struct Within {
  Within() { ++within; }
  ~Within() { --within; }
};

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (!within) log_copy(from, to);
  const Within inside;
  const at::DisableRecordFunctionGuard unseen;
  seen_by_cpu(to).copy_(seen_by_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  bench::copy("Memcpy DtoH", static_cast<int64_t>(tensor.nbytes()), kCopyNs, stream_of(tensor));
  bench::synchronize(stream_of(tensor));
  return at::native::_local_scalar_dense_cpu(seen_by_cpu(tensor));
}

void launch(const std::string& name, const at::Tensor& tensor) {
  bench::launch(name, bench::duration_of(name), stream_of(tensor));
}

// The device of the first tensor, also of one in a list; the current one where there is none.
int device_of(const torch::jit::Stack& stack, size_t count) {
  for (size_t at = stack.size() - count; at < stack.size(); ++at) {
    const auto& value = stack[at];
    if (value.isTensor() && value.toTensor().is_privateuseone())
      return value.toTensor().device().index();
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.is_privateuseone()) return tensor.device().index();
  }
  return bench::current_device();
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::string name = op.schema().name();
  name = name.substr(name.find(':') + 2);
  const int device = device_of(*stack, op.schema().arguments().size());
  const auto place = static_cast<c10::DeviceIndex>(device);
  const c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, place));
  if (!within) bench::launch(name, bench::duration_of(name), bench::current_stream(device));
  const Within inside;
  const at::DisableRecordFunctionGuard unseen;
  at::native::cpu_fallback(op, stack);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  launch("convolution", input);
  const at::DisableRecordFunctionGuard unseen;
  const auto values = bias ? std::optional(seen_by_cpu(*bias)) : std::nullopt;
  return as_on_device(at::convolution(seen_by_cpu(input), seen_by_cpu(weight), values, stride,
                                      padding, dilation, transposed, output_padding, groups),
                      input);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  launch("convolution_backward", input);
  const at::DisableRecordFunctionGuard unseen;
  auto found = at::convolution_backward(
      seen_by_cpu(grad), seen_by_cpu(input), seen_by_cpu(weight),
      at::OptionalIntArrayRef(at::IntArrayRef(weight.sizes().data(), 1)), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  const auto moved = [&](const at::Tensor& one, bool wanted) {
    return wanted ? as_on_device(one, input) : at::Tensor();
  };
  return {moved(std::get<0>(found), mask[0]), moved(std::get<1>(found), mask[1]),
          moved(std::get<2>(found), mask[2])};
}

// Operators of the bench's own: work of a given length, elsewhere, or that fails later.
at::Tensor busy(const at::Tensor& tensor, int64_t ns, std::string name) {
  bench::launch(name, ns, stream_of(tensor));
  return tensor.detach();
}

at::Tensor busy_beside(const at::Tensor& tensor, int64_t ns, std::string name) {
  const int device = tensor.device().index();
  static const bench::Stream beside[] = {bench::new_stream(0), bench::new_stream(1)};
  bench::wait(beside[device], bench::record(bench::current_stream(device)));
  bench::launch(name, ns, beside[device]);
  return tensor.detach();
}

at::Tensor failing(const at::Tensor& tensor, int64_t ns, std::string message) {
  bench::launch_failing(message, ns, stream_of(tensor));
  return tensor.detach();
}

TORCH_LIBRARY(bench, library) {
  library.def("busy(Tensor x, int ns, str name) -> Tensor", &busy);
  library.def("busy_beside(Tensor x, int ns, str name) -> Tensor", &busy_beside);
  library.def("failing(Tensor x, int ns, str message) -> Tensor", &failing);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Storage", &at::native::set_);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  for (const char* name : {"mse_loss", "mse_loss_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace
