"""y = x * by, by a kernel of a bundle, from Python: scale.py LIBRARY DEVICE BUNDLE.

On a GPU the tensors are PyTorch's, and the kernel runs on PyTorch's current stream; on an emulated device they are memory of the library.
"""

import ctypes
import struct
import sys

ABI_VERSION = 1
VIEW, VIEW_MUT, SCALAR = 0, 1, 4


class Argument(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("type", ctypes.c_char_p),
        ("value", ctypes.c_uint64),
        ("shape", ctypes.POINTER(ctypes.c_size_t)),
        ("strides", ctypes.POINTER(ctypes.c_size_t)),
    ]


def view(kind, element, address, shape, strides):
    sizes = ctypes.c_size_t * len(shape)
    return Argument(kind, len(shape), element, address, sizes(*shape), sizes(*strides))


def bits(number):
    return struct.unpack("<I", struct.pack("<f", number))[0]


class Tegula:
    """The library's functions, with errors as exceptions."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tegula_last_error.restype = ctypes.c_char_p
        self.library.tegula_memory_address.restype = ctypes.c_uint64
        if self.library.tegula_abi_version() != ABI_VERSION:
            self.library.tegula_version.restype = ctypes.c_char_p
            raise RuntimeError(f"{path} is another version, {self.library.tegula_version().decode()}")

    def call(self, name, *arguments):
        if getattr(self.library, "tegula_" + name)(*arguments) != 0:
            raise RuntimeError(self.library.tegula_last_error().decode())

    def make(self, name, *arguments):
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle


def scale(tegula, device, kernel, stream, x, y, by, count):
    arguments = (Argument * 3)(
        view(VIEW, b"f32", x, [count], [1]),
        view(VIEW_MUT, b"f32", y, [count], [1]),
        Argument(SCALAR, 0, b"f32", bits(by), None, None),
    )
    grid = (ctypes.c_uint32 * 3)((count + 127) // 128, 1, 1)
    tegula.call("kernel_launch", kernel, device, stream, grid, arguments, ctypes.c_size_t(3))


def main(library, device_name, bundle_path):
    tegula, count, by = Tegula(library), 1000, 2.5
    device = tegula.make("device_open", device_name.encode())
    bundle = tegula.make("bundle_open", bundle_path.encode())
    kernel = tegula.make("kernel_find", bundle, b"scale", b"f32", b"128")
    if device_name.startswith("cuda"):
        import torch

        x = torch.arange(count, dtype=torch.float32, device=device_name)
        y = torch.empty_like(x)
        handle = ctypes.c_uint64(torch.cuda.current_stream(x.device).cuda_stream)
        stream = tegula.make("stream_wrap", device, handle)
        scale(tegula, device, kernel, stream, x.data_ptr(), y.data_ptr(), by, count)
        assert torch.equal(y, x * by)
        result = y.tolist()
    else:
        numbers = (ctypes.c_float * count)(*range(count))
        size = ctypes.c_size_t(ctypes.sizeof(numbers))
        x, y = tegula.make("memory_new", device, size), tegula.make("memory_new", device, size)
        tegula.call("memory_write", x, numbers, size)
        address = tegula.library.tegula_memory_address
        scale(tegula, device, kernel, None, address(x), address(y), by, count)
        tegula.call("memory_read", y, numbers, size)
        result = list(numbers)
    assert result == [i * by for i in range(count)]
    print(f"y[1] = {result[1]:g}, y[{count - 1}] = {result[-1]:g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
