"""The CPU fast path: own kernels in one C++ file, built by the system's compiler, called through ctypes."""
