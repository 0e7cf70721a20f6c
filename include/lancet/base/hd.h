// LANCET_HD marks functions that g++ compiles for the host and nvcc also for the device.
#pragma once
#if defined(__CUDACC__)
#define LANCET_HD __host__ __device__ __forceinline__
#else
#define LANCET_HD inline __attribute__((always_inline))
#endif
