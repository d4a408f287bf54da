#!/usr/bin/env python3
"""Runs a bundle of conformance cases on the GPU of this machine; needs the driver, Python and numpy.

    python3 gpu_run.py [FOLDER] [--filter TEXT] [--json FILE]

FOLDER holds manifest.json, data.bin and the cubins (this script lies there too). All buffers of a case lie in one piece of
device memory with guards between them, so besides the expected values every other byte must come back unchanged. Cases run in a
child process: one that breaks the CUDA context, or hangs, fails alone, and a new child goes on after it.
Prints failures, then one line; exits with 1 if anything failed.
"""

import argparse, ctypes, json, os, subprocess, sys, threading, time

import numpy as np

ALIGN, GUARD, POISON = 256, 256, 0xA5
HANG_SECONDS = 30
SHOWN = 40


class Driver:
    """The few driver calls needed."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def module(self, image):
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module, entry, shared):
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        if shared > 48 * 1024:
            self.call("cuFuncSetAttribute", function, 8, shared)  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        return function

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value


def unsigned(elem):
    bits = {"i1": 8, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "f16": 16, "bf16": 16}.get(elem) or int(elem[1:])
    return np.dtype(f"<u{bits // 8}")


def is_float(elem):
    return elem[0] in "fb"


def as_f64(elem, bits):
    if elem == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view({"f16": "<f2", "f32": "<f4", "f64": "<f8"}[elem]).astype(np.float64)


def is_nan(elem, bits):
    if elem == "f8e4m3":
        return bits & 0x7F == 0x7F
    if elem == "f8e5m2":
        return bits & 0x7F > 0x7C
    if elem == "f8e8m0":
        return bits == 0xFF
    return np.isnan(as_f64(elem, bits)) if is_float(elem) else np.zeros(bits.shape, bool)


def ulps(bits):
    sign = 1 << (bits.dtype.itemsize * 8 - 1)
    magnitude = (bits & (sign - 1)).astype(np.int64)
    place = np.where(bits & sign != 0, -magnitude, magnitude)
    return place


def compare(buffer, got, wanted, data):
    """Describes the first wrong element, or gives None."""
    elem, rule = buffer["elem"], buffer.get("rule", {"is": "exact"})
    if rule["is"] == "multiset":
        got, wanted = np.sort(got), np.sort(wanted)
    with np.errstate(all="ignore"):
        nan_got, nan_wanted = is_nan(elem, got), is_nan(elem, wanted)
        right = (got == wanted) | (nan_got & nan_wanted)
        if rule["is"] == "ulp":
            a, b = ulps(got), ulps(wanted)
            near = (np.maximum(a, b) - np.minimum(a, b)).view(np.uint64) <= rule["n"]
            right |= near & ~nan_got & ~nan_wanted
        elif rule["is"] == "within":
            bounds = np.frombuffer(data, "<f8", len(got), rule["bounds"])
            right |= np.abs(as_f64(elem, got) - as_f64(elem, wanted)) <= bounds
    if "ignore" in buffer:
        right |= np.frombuffer(data, np.uint8, len(got), buffer["ignore"]) != 0
    wrong = np.flatnonzero(~right)
    if not len(wrong):
        return None

    def show(bits):
        number = f"{as_f64(elem, bits[None])[0]:g} " if elem in ("f16", "bf16", "f32", "f64") else ""
        return f"{number}{int(bits):#x}"

    i = wrong[0]
    return f"{len(wrong)} of {len(got)} elements of {elem} are wrong; element {i} is {show(got[i])}, not {show(wanted[i])}"


class Runner:
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "manifest.json")) as file:
            self.manifest = json.load(file)
        with open(os.path.join(folder, "data.bin"), "rb") as file:
            self.data = file.read()
        self.driver = Driver()
        self.modules, self.functions = {}, {}
        self.capacity, self.base = 0, 0

    def function(self, index):
        if index not in self.functions:
            kernel = self.manifest["kernels"][index]
            module = kernel["module"]
            if module not in self.modules:
                with open(os.path.join(self.folder, self.manifest["modules"][module]), "rb") as file:
                    self.modules[module] = self.driver.module(file.read())
            self.functions[index] = self.driver.function(self.modules[module], kernel["entry"], kernel["shared"])
        return self.functions[index]

    def run(self, case):
        """Runs a case; gives complaints."""
        kernel = self.manifest["kernels"][case["kernel"]]
        function = self.function(case["kernel"])
        places, size = [], GUARD
        for buffer in case["buffers"]:
            places.append(size)
            length = buffer["count"] * unsigned(buffer["elem"]).itemsize
            size = -(-(size + length + GUARD) // ALIGN) * ALIGN
        if size > self.capacity:
            self.capacity = max(size, 4 << 20)
            self.base = self.driver.allocate(self.capacity)
        image = np.full(size, POISON, np.uint8)
        wanted = image.copy()
        for buffer, place in zip(case["buffers"], places):
            length = buffer["count"] * unsigned(buffer["elem"]).itemsize
            image[place : place + length] = np.frombuffer(self.data, np.uint8, length, buffer["initial"])
            after = buffer.get("expected", buffer["initial"])
            wanted[place : place + length] = np.frombuffer(self.data, np.uint8, length, after)

        block = bytearray()
        for slot in kernel["abi"]:
            arg = case["args"][slot["param"]]
            if slot["is"] == "address":
                value, width = self.base + places[arg["buffer"]] + arg["offset"], 8
            elif slot["is"] == "scalar":
                value, width = arg["bits"], slot["bytes"]
            else:
                value, width = arg[slot["is"] + "s"][slot["axis"]], slot["bytes"]
            block += bytes(-len(block) % width)
            block += (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")
        buffer = (ctypes.c_char * max(len(block), 1)).from_buffer_copy(bytes(block) or b"\0")
        length = ctypes.c_size_t(len(block))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(length), 0)

        self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.base), image.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(size))
        self.driver.call("cuLaunchKernel", function, *case["grid"], kernel["threads"], 1, 1, kernel["shared"], None, None, extra)
        self.driver.call("cuCtxSynchronize")
        got = np.empty(size, np.uint8)
        self.driver.call("cuMemcpyDtoH_v2", got.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.base), ctypes.c_size_t(size))

        complaints = []
        for index, (buffer, place) in enumerate(zip(case["buffers"], places)):
            dtype = unsigned(buffer["elem"])
            span = slice(place, place + buffer["count"] * dtype.itemsize)
            problem = compare(buffer, got[span].view(dtype), wanted[span].view(dtype), self.data)
            if problem:
                complaints.append(f"buffer {index}: {problem}")
            got[span] = wanted[span]
        outside = np.flatnonzero(got != wanted)
        if len(outside):
            complaints.append(f"{len(outside)} bytes outside all buffers were written, first at {outside[0]}, buffers at {places}")
        return complaints


def child(folder, start, filter_text):
    """Runs cases from `start` on, a line of JSON each."""
    # What kernels print goes where it is not taken for results.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    runner = Runner(folder)
    for index, case in enumerate(runner.manifest["cases"]):
        if index < start or not any(part in case["name"] for part in filter_text.split(",")):
            continue
        print(json.dumps({"start": index}), file=out)
        try:
            complaints = runner.run(case)
        except RuntimeError as error:
            # The context may be gone: this child is done.
            print(json.dumps({"case": index, "complaints": [str(error)], "over": True}), file=out)
            os._exit(1)
        print(json.dumps({"case": index, "complaints": complaints}), file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--filter", default="", help="comma-separated parts of names")
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        return child(args.folder, args.child, args.filter)
    with open(os.path.join(args.folder, "manifest.json")) as file:
        manifest = json.load(file)
    names = [case["name"] for case in manifest["cases"]]
    results, start, began, restarts = {}, 0, time.time(), 0
    while True:
        command = [sys.executable, os.path.abspath(__file__), args.folder, "--filter", args.filter, "--child", str(start)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, current, beat = [], None, [time.time()]
        drain = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
        drain.start()
        hung = []

        def watch():
            while process.poll() is None:
                if time.time() - beat[0] > HANG_SECONDS:
                    hung.append(True)
                    process.kill()
                time.sleep(0.5)

        threading.Thread(target=watch, daemon=True).start()
        for line in process.stdout:
            beat[0] = time.time()
            message = json.loads(line)
            if "start" in message:
                current = message["start"]
            else:
                results[message["case"]], current = message["complaints"], None
                start = message["case"] + 1
        code = process.wait()
        drain.join(1)
        if code == 0:
            break
        restarts += 1
        if current is not None:
            results[current] = ["hangs" if hung else f"the process died ({code}): {''.join(said)[-300:]}"]
            start = current + 1
        elif not results:
            sys.exit("".join(said))
        if restarts > 200:
            sys.exit("too many cases break the context")
    failed = {names[i]: complaints for i, complaints in sorted(results.items()) if complaints}
    for name, complaints in list(failed.items())[:SHOWN]:
        print(f"{name}: {'; '.join(complaints)}")
    if len(failed) > SHOWN:
        print(f"… and {len(failed) - SHOWN} more")
    passed = len(results) - len(failed)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"target": manifest["target"], "passed": passed, "failed": failed, "not_compiled": manifest["failures"]}, file, indent=1)
    print(f"conformance on {manifest['target']}: {passed} passed, {len(failed)} failed, {len(manifest['failures'])} kernels not compiled, {time.time() - began:.1f} s")
    return 1 if failed or manifest["failures"] or not results else 0


if __name__ == "__main__":
    sys.exit(main())
