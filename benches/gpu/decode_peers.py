"""Attention decode beside PyTorch: runs `gpu-bench --decode` and torch's scaled_dot_product_attention in turn, and prints a table.

    python3 decode_peers.py [--bench gpu-bench] [--rounds 3] [--cache "bf16"] [--most-mib 2048] [--json decode.json]

Of each shape and contender the median over the rounds counts. Same shapes, same kind of data, and timed the same way: graphs of several calls, which read other caches from call to
call. Peers have the layout that suits them best, [batch, KV heads, keys, dim], and both forms of a group: `enable_gqa`, and heads of a group as so many queries.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM = 32, 8, 128
ROTATED_BYTES, ROUND_MS, MOST_CALLS, GRAPHS = 240 << 20, 2.0, 200, 5


def gqa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def folded(q, k, v):
    return F.scaled_dot_product_attention(q.view(-1, KV_HEADS, HEADS // KV_HEADS, DIM), k, v)


PEERS = {
    "cuDNN": (SDPBackend.CUDNN_ATTENTION, gqa),
    "cuDNN folded": (SDPBackend.CUDNN_ATTENTION, folded),
    "FA2": (SDPBackend.FLASH_ATTENTION, gqa),
    "FA2 folded": (SDPBackend.FLASH_ATTENTION, folded),
}


def elapsed(call):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def time(call, sets):
    """Microseconds of a call with one of the sets."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            call(*sets[i % len(sets)])
        torch.cuda.synchronize()
        once = elapsed(lambda: call(*sets[0]))
        calls = min(MOST_CALLS, max(2, math.ceil(ROUND_MS / once)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(*sets[i % len(sets)])
        elapsed(graph.replay)
        return statistics.median(elapsed(graph.replay) for _ in range(GRAPHS)) * 1e3 / calls


def peers(batch, keys, names):
    """Microseconds of these peers; without those that do not take the shape."""
    bytes_of_set = 2 * batch * keys * KV_HEADS * DIM * 2
    count = max(1, math.ceil(ROTATED_BYTES / bytes_of_set))
    make = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    cache = lambda: make(batch, KV_HEADS, keys, DIM)
    sets = [(make(batch, HEADS, 1, DIM), cache(), cache()) for _ in range(count)]
    found = {}
    for name in names:
        backend, call = PEERS[name]
        try:
            with sdpa_kernel(backend), torch.no_grad():
                found[name] = time(call, sets)
        except RuntimeError as error:
            print(f"  {name}, {batch}x{keys}: {str(error).splitlines()[0][:100]}")
    return found


def ours(options):
    """The rows of one run of the program."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        command = [options.bench, "--decode", "--json", path]
        command += ["--decode-cache", options.cache] if options.cache else []
        command += ["--decode-most-mib", str(options.most_mib)] if options.most_mib else []
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if not os.path.exists(path):
            raise SystemExit(f"{options.bench} ended with {done.returncode} and wrote nothing")
        with open(path) as file:
            return json.load(file)


def report(times, failures, options, final):
    """Prints a line a shape and writes the file; of what there is until now."""
    rows = []
    for (batch, keys), found in times.items():
        us = {name: statistics.median(each) for name, each in found.items()}
        timed = [name for name in us if name in PEERS]
        if not timed:
            continue
        best = min(timed, key=us.get)
        rate = lambda name: 2 * batch * keys * KV_HEADS * DIM * (1 if name.startswith("f8") else 2) / us[name] / 1e3
        rows.append({"batch": batch, "keys": keys, "us": {n: round(t, 2) for n, t in us.items()}, "best peer": best})
        own = "  ".join(f"{n} {us[n]:.1f} us {rate(n):.0f} GB/s ({us[best] / us[n]:.2f}x)" for n in us if n not in PEERS)
        if final:
            print(f"{batch}x{keys}: {best} {us[best]:.1f} us {rate(best):.0f} GB/s; {own}", flush=True)
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        with open(options.json, "w") as file:
            json.dump({**about, "rounds": options.rounds, "failures": failures, "rows": rows}, file, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", default="gpu-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache")
    parser.add_argument("--most-mib", type=int, help="only shapes whose keys and values, in bf16, take so many MiB at most")
    parser.add_argument("--json")
    options = parser.parse_args()
    times, failures = {}, 0
    for round_number in range(options.rounds):
        own = ours(options)
        failures += own["failures"]
        for row in own["rows"]:
            times.setdefault((row["batch"], row["keys"]), {}).setdefault(row["cache"], []).append(row["us"])
        for shape, found in times.items():
            # After the first round only those that may be the best.
            timed = {name: min(found[name]) for name in PEERS if name in found}
            names = [name for name in timed if timed[name] < 1.15 * min(timed.values())] or list(PEERS)
            for name, us in peers(*shape, names).items():
                found.setdefault(name, []).append(us)
            report(times, failures, options, False)
    report(times, failures, options, True)
    raise SystemExit(f"{failures} cases failed" if failures else 0)


main()
