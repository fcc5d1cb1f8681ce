// The few declarations of PyTorch that the host half of a kernel file names, so that its device half compiles
// without PyTorch. Nothing here is ever linked or run: bodies are missing on purpose.
#pragma once

#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

// CUDA's names for HIP's things, as torch's build renames them
#define cudaDeviceProp hipDeviceProp_t
#define cudaError_t hipError_t
#define cudaEvent_t hipEvent_t
#define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define cudaFuncSetAttribute hipFuncSetAttribute
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaMemsetAsync hipMemsetAsync
#define cudaStream_t hipStream_t
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaSuccess hipSuccess

namespace c10 {
enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, Bool, BFloat16, Float8_e4m3fn };
enum class DeviceType : int8_t { CPU, CUDA, HIP };
struct Half {
  uint16_t x;
};
struct BFloat16 {
  uint16_t x;
};
using DeviceIndex = int8_t;
struct Device {
  Device(DeviceType type, DeviceIndex index = -1);
  DeviceIndex index() const;
  DeviceType type() const;
  bool is_cuda() const;
  bool is_meta() const;
  bool operator==(const Device&) const;
  bool operator!=(const Device&) const;
};
struct IntArrayRef {
  IntArrayRef(std::initializer_list<int64_t>);
  IntArrayRef(const std::vector<int64_t>&);
  int64_t operator[](size_t) const;
  size_t size() const;
};
struct TensorOptions {
  TensorOptions();
  TensorOptions(ScalarType);
  TensorOptions dtype(ScalarType) const;
  TensorOptions device(Device) const;
  TensorOptions device(DeviceType, DeviceIndex = -1) const;
};
}  // namespace c10

namespace at {
using c10::BFloat16;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Half;
using c10::IntArrayRef;
using c10::ScalarType;
using c10::TensorOptions;

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int, kLong = ScalarType::Long, kBool = ScalarType::Bool;
constexpr ScalarType kHalf = ScalarType::Half, kFloat = ScalarType::Float, kDouble = ScalarType::Double;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16, kFloat16 = kHalf, kFloat32 = kFloat;
constexpr ScalarType kInt8 = kChar, kUInt8 = kByte, kInt32 = kInt, kInt64 = kLong;
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;

struct Storage {
  size_t nbytes() const;
};
struct Tensor {
  template <class T>
  T* data_ptr() const;
  template <class T>
  T* mutable_data_ptr() const;
  template <class T>
  const T* const_data_ptr() const;
  void* data_ptr() const;
  void* mutable_data_ptr() const;
  const void* const_data_ptr() const;
  int64_t size(int64_t) const;
  int64_t stride(int64_t) const;
  int64_t numel() const;
  int64_t dim() const;
  int64_t element_size() const;
  int64_t itemsize() const;
  int64_t storage_offset() const;
  size_t nbytes() const;
  IntArrayRef sizes() const;
  IntArrayRef strides() const;
  ScalarType dtype() const;
  ScalarType scalar_type() const;
  TensorOptions options() const;
  Device device() const;
  DeviceIndex get_device() const;
  Storage storage() const;
  bool defined() const;
  bool is_contiguous() const;
  bool is_cuda() const;
  bool is_meta() const;
  Tensor contiguous() const;
  Tensor view(IntArrayRef) const;
  Tensor to(ScalarType) const;
  Tensor& zero_();
};
Tensor empty(IntArrayRef, const TensorOptions& = {});
Tensor empty_like(const Tensor&, const TensorOptions& = {});
Tensor zeros(IntArrayRef, const TensorOptions& = {});
Tensor zeros_like(const Tensor&, const TensorOptions& = {});

Device device_of(const Tensor&);

namespace cuda {
struct CUDAStream {
  hipStream_t stream() const;
  operator hipStream_t() const;
};
CUDAStream getCurrentCUDAStream(DeviceIndex = -1);
hipDeviceProp_t* getCurrentDeviceProperties();
hipDeviceProp_t* getDeviceProperties(DeviceIndex);
struct CUDAGuard {
  explicit CUDAGuard(Device);
  explicit CUDAGuard(DeviceIndex);
};
struct OptionalCUDAGuard {
  explicit OptionalCUDAGuard(Device);
  explicit OptionalCUDAGuard(std::optional<Device> = {});
};
}  // namespace cuda
}  // namespace at

namespace c10 {
namespace cuda {
using at::cuda::CUDAGuard;
using at::cuda::CUDAStream;
using at::cuda::getCurrentCUDAStream;
using at::cuda::OptionalCUDAGuard;
}  // namespace cuda
}  // namespace c10

namespace torch {
using namespace at;
}  // namespace torch
using at::device_of;

namespace standin {
template <class... Anything>
void check(bool, Anything&&...);
}  // namespace standin
#define TORCH_CHECK(condition, ...) ::standin::check(static_cast<bool>(condition), ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_CHECK_EQ(left, right) TORCH_CHECK((left) == (right))
#define TORCH_CHECK_LE(left, right) TORCH_CHECK((left) <= (right))
#define TORCH_CHECK_GE(left, right) TORCH_CHECK((left) >= (right))
#define C10_CUDA_CHECK(call) ::standin::check((call) == hipSuccess)
#define C10_HIP_CHECK C10_CUDA_CHECK
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(hipGetLastError())
#define C10_HIP_KERNEL_LAUNCH_CHECK C10_CUDA_KERNEL_LAUNCH_CHECK
