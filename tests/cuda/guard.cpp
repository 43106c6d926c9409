// What autograd asks of CUDA for tensors that have no memory: one device, one stream, events that have always passed.
// Without it the first backward pass of a fake CUDA tensor ends the process of a torch that was built without CUDA.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device device(c10::DeviceType::CUDA, 0);
const c10::Stream stream(c10::Stream::DEFAULT, device);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return device; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream; }
  c10::Stream getNewStream(c10::Device, int) const override { return stream; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, new Guard());

}  // namespace

namespace at {

struct CUDAHooks final : CUDAHooksInterface {  // torch looks it up by this name
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
