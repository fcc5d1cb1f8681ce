// A KV cache of 4 bits a value: one scale a token and head, two values a byte.
//
// One vector (the K or the V of one token and head) is stored as a float scale and head_dim / 2 bytes.
// A value x becomes round(x / scale) in -7..7, kept as that plus 8, with scale = largest |x| / 7.
// One block packs or unpacks one vector; its head_dim / 2 threads (32, 64 or 128) own one byte each.
#include "smoke.h"

static constexpr unsigned kScaleBytes = 4;
static constexpr unsigned kMaxThreads = 128;

__device__ static inline unsigned nibble_of(float value, float inverse_scale) {
  float rounded = __builtin_rintf(value * inverse_scale);
  rounded = __builtin_fminf(__builtin_fmaxf(rounded, -7.0f), 7.0f);
  return static_cast<unsigned>(static_cast<int>(rounded) + 8);
}

extern "C" __global__ void smoke_kv_int4_pack_kernel(const _Float16* values, unsigned char* packed) {
  __shared__ float largest[kMaxThreads];
  const unsigned thread = thread_index();
  const unsigned threads = block_size();
  const unsigned long vector = block_index();
  const unsigned long first = vector * 2 * threads + 2 * thread;
  const float low = static_cast<float>(values[first]);
  const float high = static_cast<float>(values[first + 1]);

  largest[thread] = __builtin_fmaxf(__builtin_fabsf(low), __builtin_fabsf(high));
  __syncthreads();
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    if (thread < half) {
      largest[thread] = __builtin_fmaxf(largest[thread], largest[thread + half]);
    }
    __syncthreads();
  }

  const float scale = largest[0] / 7.0f;
  const float inverse_scale = scale > 0.0f ? 1.0f / scale : 0.0f;
  unsigned char* record = packed + vector * (kScaleBytes + threads);
  if (thread == 0) {
    *reinterpret_cast<float*>(record) = scale;
  }
  record[kScaleBytes + thread] =
      static_cast<unsigned char>(nibble_of(low, inverse_scale) | nibble_of(high, inverse_scale) << 4);
}

extern "C" __global__ void smoke_kv_int4_unpack_kernel(const unsigned char* packed, _Float16* values) {
  const unsigned thread = thread_index();
  const unsigned threads = block_size();
  const unsigned long vector = block_index();
  const unsigned char* record = packed + vector * (kScaleBytes + threads);
  const float scale = *reinterpret_cast<const float*>(record);
  const int byte = record[kScaleBytes + thread];
  const unsigned long first = vector * 2 * threads + 2 * thread;
  values[first] = static_cast<_Float16>(scale * static_cast<float>((byte & 15) - 8));
  values[first + 1] = static_cast<_Float16>(scale * static_cast<float>((byte >> 4) - 8));
}

#ifndef SMOKE_PLAIN_CLANG

static bool head_dim_is_supported(int head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

// Bytes that one token takes for one KV head, K and V together; 0 for a head_dim that the kernels do not know.
SMOKE_API int smoke_kv_int4_bytes(int head_dim) {
  return head_dim_is_supported(head_dim) ? 2 * (static_cast<int>(kScaleBytes) + head_dim / 2) : 0;
}

// Packs `vectors` vectors of head_dim fp16 values on the device.
SMOKE_API int smoke_kv_int4_pack(const void* values, void* packed, int vectors, int head_dim, void* stream) {
  if (!head_dim_is_supported(head_dim) || vectors < 1) {
    return hipErrorInvalidValue;
  }
  smoke_kv_int4_pack_kernel<<<dim3(vectors), dim3(head_dim / 2), 0, static_cast<hipStream_t>(stream)>>>(
      static_cast<const _Float16*>(values), static_cast<unsigned char*>(packed));
  return hipGetLastError();
}

// The way back: `vectors` records to fp16 values on the device.
SMOKE_API int smoke_kv_int4_unpack(const void* packed, void* values, int vectors, int head_dim, void* stream) {
  if (!head_dim_is_supported(head_dim) || vectors < 1) {
    return hipErrorInvalidValue;
  }
  smoke_kv_int4_unpack_kernel<<<dim3(vectors), dim3(head_dim / 2), 0, static_cast<hipStream_t>(stream)>>>(
      static_cast<const unsigned char*>(packed), static_cast<_Float16*>(values));
  return hipGetLastError();
}

#endif
