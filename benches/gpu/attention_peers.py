"""Attention beside PyTorch: runs `gpu-bench --attention` and torch's scaled_dot_product_attention in turn, and prints a table.

    python3 attention_peers.py [--bench gpu-bench] [--rounds 3] [--head-dim 128] [--sequence 4096] [--json attention.json]

Of each shape and contender the median over the rounds counts. Same shapes, same kind of data: bf16, standard normal, [batch, sequence, heads, head_dim].
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

PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA2": SDPBackend.FLASH_ATTENTION}
TOKENS, HEADS = 16384, 16
ROUND_MS, LEAST_CALLS = 6.0, 3


def time(call):
    """Milliseconds of a call."""
    def once(calls):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / calls
    once(2)
    calls = min(200, max(LEAST_CALLS, math.ceil(ROUND_MS / once(LEAST_CALLS))))
    return statistics.median(once(calls) for _ in range(5))


def peers(head_dim, sequence, causal):
    """Milliseconds of forward and backward of each peer; without those that do not take the shape."""
    shape = (TOKENS // sequence, sequence, HEADS, head_dim)
    make = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    q, k, v = (make().requires_grad_() for _ in range(3))
    d_out = make()
    found = {}
    for name, backend in PEERS.items():
        try:
            with sdpa_kernel(backend):
                attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                out = attend()
                with torch.no_grad():
                    forward = time(attend)
                backward = time(lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True))
            found[name] = (forward, backward)
        except RuntimeError as error:
            print(f"  {name}, d{head_dim} S={sequence}: {str(error).splitlines()[0][:100]}")
    return found


def ours(options):
    """The rows of one run of the program."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        command = [options.bench, "--attention", "--json", path, "--attention-rounds", "5"]
        for name, value in (("--head-dim", options.head_dim), ("--sequence", options.sequence)):
            command += [name, str(value)] if value else []
        done = subprocess.run(command)
        if not os.path.exists(path):
            raise SystemExit(f"{options.bench} ended with {done.returncode} and wrote nothing")
        with open(path) as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", default="gpu-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--head-dim", type=int)
    parser.add_argument("--sequence", type=int)
    parser.add_argument("--json")
    options = parser.parse_args()
    times, errors = {}, {}
    for _ in range(options.rounds):
        report = ours(options)
        for row in report["rows"]:
            shape = (row["head_dim"], row["sequence"], row["causal"])
            errors[shape] = (row["forward_error"], row["backward_error"])
            times.setdefault((shape, "tegula"), []).append((row["forward_ms"], row["backward_ms"]))
            for name, pair in peers(*shape).items():
                times.setdefault((shape, name), []).append(pair)
    rows = []
    for shape in errors:
        head_dim, sequence, causal = shape
        flops = 4.0 * TOKENS * HEADS * head_dim * sequence * (0.5 if causal else 1.0)
        row = {"head_dim": head_dim, "sequence": sequence, "causal": causal, "errors": errors[shape]}
        for i, (direction, amount) in enumerate((("forward", flops), ("backward", 2.5 * flops))):
            rates = {}
            for name in ("tegula", *PEERS):
                if (shape, name) in times:
                    ms = statistics.median(pair[i] for pair in times[shape, name])
                    rates[name] = round(amount / ms / 1e9, 1)
            row[direction] = rates
        rows.append(row)
        cells = []
        for direction in ("forward", "backward"):
            rates = row[direction]
            ratios = " ".join(f"{n} {r:.0f} ({rates['tegula'] / r:.2f}x)" for n, r in rates.items() if n != "tegula")
            cells.append(f"{direction} {rates['tegula']:.0f} TFLOP/s, {ratios}")
        print(f"d{head_dim} S={sequence} {'causal' if causal else 'full':<6} {'; '.join(cells)}")
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        with open(options.json, "w") as file:
            json.dump({**about, "rounds": options.rounds, "rows": rows}, file, indent=1)


main()
