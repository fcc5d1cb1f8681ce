// The line that only AMD's own clang knows.
typedef unsigned int sgl_v4u __attribute__((ext_vector_type(4)));
typedef __attribute__((address_space(1))) sgl_v4u* sgl_v4u_gptr;

__global__ void copy_sys_kernel(const sgl_v4u* src, sgl_v4u* dst, long long count) {
  for (long long i = threadIdx.x; i < count; i += blockDim.x) {
    sgl_v4u v = src[i];
    __builtin_amdgcn_global_store_b128((sgl_v4u_gptr)(dst + i), v, "");
  }
}
