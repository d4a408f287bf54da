"""libtegula_rt for PyTorch: kernels of a bundle, launched on tensors, on PyTorch's current stream."""

import ctypes
import struct

VIEW, VIEW_MUT, SCALAR = 0, 1, 4
TYPES = {"torch.bfloat16": b"bf16", "torch.float16": b"f16", "torch.float32": b"f32", "torch.int32": b"i32", "torch.float8_e4m3fn": b"f8e4m3", "torch.int8": b"i8"}


class Argument(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("type", ctypes.c_char_p),
        ("value", ctypes.c_uint64),
        ("shape", ctypes.POINTER(ctypes.c_size_t)),
        ("strides", ctypes.POINTER(ctypes.c_size_t)),
    ]


def view(tensor, kind=VIEW):
    sizes = ctypes.c_size_t * tensor.dim()
    return Argument(kind, tensor.dim(), TYPES[str(tensor.dtype)], tensor.data_ptr(), sizes(*tensor.shape), sizes(*tensor.stride()))


def out(tensor):
    return view(tensor, VIEW_MUT)


def f32(number):
    return Argument(SCALAR, 0, b"f32", struct.unpack("<I", struct.pack("<f", number))[0], None, None)


def i32(number):
    return Argument(SCALAR, 0, b"i32", number & 0xFFFFFFFF, None, None)


class Library:
    def __init__(self, path, device="cuda:0"):
        self.library = ctypes.CDLL(path)
        self.library.tegula_last_error.restype = ctypes.c_char_p
        self.device = self._make("device_open", device.encode())

    def _call(self, name, *arguments):
        if getattr(self.library, "tegula_" + name)(*arguments) != 0:
            raise RuntimeError(self.library.tegula_last_error().decode())

    def _make(self, name, *arguments):
        handle = ctypes.c_void_p()
        self._call(name, *arguments, ctypes.byref(handle))
        return handle

    def stream(self, stream):
        return self._make("stream_wrap", self.device, ctypes.c_uint64(stream.cuda_stream))

    def bundle(self, path):
        return self._make("bundle_open", path.encode())

    def kernel(self, bundle, name, types, config):
        """A function of a stream, a grid and arguments that launches the kernel."""
        handle = self._make("kernel_find", bundle, name.encode(), types.encode(), config.encode())

        def launch(stream, grid, *arguments):
            array = (Argument * len(arguments))(*arguments)
            dims = (ctypes.c_uint32 * 3)(grid, 1, 1)

            def again():
                self._call("kernel_launch", handle, self.device, stream, dims, array, ctypes.c_size_t(len(arguments)))

            return again

        return launch
