"""RMSNorm of the kernel library's bundle on PyTorch's tensors, compared with PyTorch's own: rms_norm.py LIBRARY DEVICE BUNDLE.

Prints how long the first launch took; exits with 1 if a result is wrong. (scale.py, beside this file, has what is asked of the library.)
"""

import ctypes
import sys
import time

import torch
from scale import SCALAR, VIEW, VIEW_MUT, Argument, Tegula, bits, view

ELEMENTS = {torch.bfloat16: b"bf16", torch.float16: b"f16", torch.float32: b"f32"}


def of(kind, tensor):
    return view(kind, ELEMENTS[tensor.dtype], tensor.data_ptr(), tensor.shape, tensor.stride())


def config(columns):
    """What the kernel library chooses on a GPU: a program a row, 512 elements a warp."""
    block = 1 << (columns - 1).bit_length()
    return f"Config {{ rows: 1, block: {block}, one_block: true, num_warps: {max(block // 512, 1)} }}".encode()


def rms_norm(tegula, device, kernel, stream, x, weight, y, eps):
    arguments = (Argument * 4)(
        of(VIEW, x),
        of(VIEW, weight),
        of(VIEW_MUT, y),
        Argument(SCALAR, 0, b"f32", bits(eps), None, None),
    )
    grid = (ctypes.c_uint32 * 3)(x.shape[0], 1, 1)
    tegula.call("kernel_launch", kernel, device, stream, grid, arguments, ctypes.c_size_t(4))


def check(tegula, device, device_name, bundle, dtype, rows, columns, start=0):
    kernel = tegula.make("kernel_find", bundle, b"rms_norm", ELEMENTS[dtype] + b", " + ELEMENTS[dtype], config(columns))
    # `start`: columns that are left out, so that rows are not aligned and the variant without facts runs.
    x = torch.randn(rows, columns + start, dtype=dtype, device=device_name)[:, start:]
    weight = torch.randn(columns, dtype=dtype, device=device_name)
    y = torch.empty(rows, columns, dtype=dtype, device=device_name)
    handle = ctypes.c_uint64(torch.cuda.current_stream(x.device).cuda_stream)
    stream = tegula.make("stream_wrap", device, handle)
    torch.cuda.synchronize()
    began = time.perf_counter()
    rms_norm(tegula, device, kernel, stream, x, weight, y, 1e-6)
    launched = (time.perf_counter() - began) * 1e6
    expected = torch.nn.functional.rms_norm(x.double(), (columns,), weight.double(), 1e-6)
    theirs = torch.nn.functional.rms_norm(x, (columns,), weight, 1e-6)
    # Half a unit in the last place, and what rounding errors of f32 can make of a tie.
    bound = expected.abs() * torch.finfo(dtype).eps * 0.51 + 1e-6
    worst = ((y.double() - expected).abs() / bound).max().item()
    # Ours may be off by one bound, and torch's by two: it may round what it multiplies with the weight.
    apart = ((y.double() - theirs.double()).abs() / (3 * bound)).max().item()
    print(f"rms_norm {dtype} {rows} x {columns} + {start}: first launch {launched:.0f} us; "
          f"error {worst:.2f} of the bound, difference from torch {apart:.2f} of what both may have")
    return worst <= 1 and apart <= 1


def main(library, device_name, bundle_path):
    torch.manual_seed(1)
    tegula = Tegula(library)
    device = tegula.make("device_open", device_name.encode())
    bundle = tegula.make("bundle_open", bundle_path.encode())
    good = True
    for dtype in (torch.bfloat16, torch.float16):
        for rows, columns, start in ((1, 4096, 0), (333, 4096, 0), (64, 8192, 0), (7, 4096, 3), (5, 999, 0)):
            good &= check(tegula, device, device_name, bundle, dtype, rows, columns, start)
    print("equal" if good else "DIFFERENT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
