// What every kernel file here needs, from HIP's headers or without them.
//
// Built by hipcc as usual. With -DSMOKE_PLAIN_CLANG a clang that has the AMDGPU back end and nothing of ROCm
// compiles the device side:
//   clang -x hip -nogpuinc -nogpulib --cuda-device-only --offload-arch=gfx1100 -O3 -DSMOKE_PLAIN_CLANG -S FILE
#pragma once

#ifdef SMOKE_PLAIN_CLANG

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))

__device__ static inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ static inline unsigned thread_index() { return __builtin_amdgcn_workitem_id_x(); }
__device__ static inline unsigned block_index() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ static inline unsigned block_size() { return __builtin_amdgcn_workgroup_size_x(); }

#else

#include <hip/hip_runtime.h>

__device__ static inline unsigned thread_index() { return threadIdx.x; }
__device__ static inline unsigned block_index() { return blockIdx.x; }
__device__ static inline unsigned block_size() { return blockDim.x; }

// The C interface of the library. It is what ctypes loads; see smoke_engine/native.py.
// Launchers return a hipError_t as int (0 is success) and do not wait for the kernel.
#define SMOKE_API extern "C" __attribute__((visibility("default")))

#endif
