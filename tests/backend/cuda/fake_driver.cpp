// A driver that does nothing. cuDNN compiles and loads kernels through libcuda.so.1 while it makes a plan, although it
// needs no GPU for that. Built as a separate libcuda.so.1, only for the test of plans.

#define DOES_NOTHING(name) \
  extern "C" int name() { return 0; }

DOES_NOTHING(cuCtxGetCurrent)
DOES_NOTHING(cuCtxGetLimit)
DOES_NOTHING(cuCtxPopCurrent)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuDeviceGet)
DOES_NOTHING(cuDeviceGetCount)
DOES_NOTHING(cuFuncGetAttribute)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuKernelGetAttribute)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLibraryLoadFromFile)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuLinkAddData)
DOES_NOTHING(cuLinkComplete)
DOES_NOTHING(cuLinkCreate)
DOES_NOTHING(cuLinkDestroy)
DOES_NOTHING(cuModuleGetFunction)
DOES_NOTHING(cuModuleLoadData)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuOccupancyMaxPotentialClusterSize)
DOES_NOTHING(cuStreamGetCtx)
DOES_NOTHING(cuTensorMapEncodeIm2col)
DOES_NOTHING(cuTensorMapEncodeTiled)

namespace {
int something;
int hand_out(void** handle) {
  *handle = &something;
  return 0;
}
int describe(const char** text) {
  *text = "the fake driver has no words";
  return 0;
}
}  // namespace

extern "C" int cuInit(unsigned) { return 100; }  // no device: NVRTC then queries nothing more
extern "C" int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
extern "C" int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  return hand_out(library);
}
extern "C" int cuLibraryGetKernel(void** kernel, void*, const char*) { return hand_out(kernel); }
extern "C" int cuLibraryGetModule(void** module, void*) { return hand_out(module); }
extern "C" int cuKernelGetFunction(void** function, void*) { return hand_out(function); }
extern "C" int cuGetErrorString(int, const char** text) { return describe(text); }
extern "C" int cuGetErrorName(int, const char** text) { return describe(text); }
