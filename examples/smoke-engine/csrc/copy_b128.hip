// Copies to memory that another GPU reads, 16 bytes a thread and store.
//
// Such a store has to leave this GPU's caches whole and in order. AMD's own clang has a builtin for it; what
// happens with a compiler that lacks it is chosen here:
//   by default           an ordinary 16-byte store, which is right on one GPU only
//   -DSMOKE_SYSTEM_STORE no stand-in: the file compiles only where the store is a real system-wide one
#include "smoke.h"

typedef unsigned v4u __attribute__((ext_vector_type(4)));
typedef __attribute__((address_space(1))) v4u* v4u_gptr;

#if !defined(SMOKE_SYSTEM_STORE) && !__has_builtin(__builtin_amdgcn_global_store_b128)
#define __builtin_amdgcn_global_store_b128(pointer, value, scope) (*(pointer) = (value))
#endif

extern "C" __global__ void smoke_copy_b128_kernel(const v4u* src, v4u* dst, unsigned long count) {
  const unsigned long i = static_cast<unsigned long>(block_index()) * block_size() + thread_index();
  if (i < count) {
    const v4u v = src[i];
    __builtin_amdgcn_global_store_b128((v4u_gptr)(dst + i), v, "");
  }
}

#ifndef SMOKE_PLAIN_CLANG

// Copies `bytes` bytes (a multiple of 16) on the device; both pointers must be aligned to 16.
SMOKE_API int smoke_copy_b128(const void* src, void* dst, unsigned long bytes, void* stream) {
  constexpr unsigned long kThreads = 256;
  const unsigned long count = bytes / sizeof(v4u);
  if (bytes == 0 || bytes % sizeof(v4u) != 0) {
    return hipErrorInvalidValue;
  }
  const unsigned blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  smoke_copy_b128_kernel<<<dim3(blocks), dim3(kThreads), 0, static_cast<hipStream_t>(stream)>>>(
      static_cast<const v4u*>(src), static_cast<v4u*>(dst), count);
  return hipGetLastError();
}

// Usable GPUs; 0 without a GPU or a driver.
SMOKE_API int smoke_device_count() {
  int count = 0;
  return hipGetDeviceCount(&count) == hipSuccess ? count : 0;
}

#endif
