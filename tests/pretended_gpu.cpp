// What PyTorch and its autograd ask about a device: whether it exists, which one is current, and its stream.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

template <c10::DeviceType TYPE>
struct Guard : c10::impl::NoOpDeviceGuardImpl<TYPE> {
  c10::Device getDevice() const override { return {TYPE, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {TYPE, 0}; }
  c10::Stream getStream(c10::Device device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
};

template <class HOOKS>
struct Present : HOOKS {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

struct CudaHooks : Present<at::CUDAHooksInterface> {
  bool hasCUDA() const override { return true; }
};

struct MpsHooks : Present<at::MPSHooksInterface> {
  bool hasMPS() const override { return true; }
};

extern "C" void pretend_cuda() {
  static Guard<c10::DeviceType::CUDA> guard;
  c10::impl::registerDeviceGuard(c10::DeviceType::CUDA, &guard);
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs) { return std::make_unique<CudaHooks>(); });
}

extern "C" void pretend_mps() {
  static Guard<c10::DeviceType::MPS> guard;
  c10::impl::registerDeviceGuard(c10::DeviceType::MPS, &guard);
  at::MPSHooksRegistry()->Register("MPSHooks", [] { return std::make_unique<MpsHooks>(); });
}
