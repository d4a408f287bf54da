"""Attention forward of a bundle beside PyTorch's, in one process: attention.py LIBRARY BUNDLE JSON [--only d128] [--flash] [--fp8].

The bundle's index (`tegula bundle list --json`) is read from BUNDLE.json. B*S = 16k, bf16, random data; the contestants' rounds are interleaved, a round is a graph of several
launches that takes 2 ms, and a figure is the median of 9. Operands (256 MB) do not fit the L2 cache. Results are compared with f32 attention on two heads. With --fp8 the kernels on FP8 are timed beside those on bf16, on the same numbers with scales of 1.
"""

import json
import math
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tegula_rt import Library, f32, i32, out, view

ROUNDS, ROUND_MS, TOKENS = 9, 2.0, 16384
SIZES = [512, 1024, 2048, 4096, 8192, 16384]
SHAPES = [(128, 16, 16), (64, 32, 32), (256, 8, 8), (128, 32, 8)]


def graph_of(launch, stream):
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
        stream.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        for _ in range(3):
            launch()
        end.record(stream)
        stream.synchronize()
        calls = max(2, min(64, round(ROUND_MS / (begin.elapsed_time(end) / 3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                launch()
    return graph, calls


def times(contestants, stream):
    """Median microseconds of each."""
    graphs = {}
    for name, launch in contestants.items():
        try:
            graphs[name] = graph_of(launch, stream)
        except RuntimeError as error:
            print(f"  {name}: {error}", file=sys.stderr)
    found = {name: [] for name in graphs}
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for name, (graph, calls) in graphs.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(stream)
                graph.replay()
                end.record(stream)
                stream.synchronize()
                found[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return {name: statistics.median(v) for name, v in found.items()}


def reference(q, k, v, causal):
    q, k, v = (x.float() for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def ours(kernels, stream, q, k, v, scales, o, lse, causal):
    """Every config of the bundle that takes these heads, with the ways of dealing blocks out that it has. Scales: of queries, keys and values in FP8, or none."""
    d, (b, s, h, _) = q.shape[-1], q.shape
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for config, launch in kernels:
        if f"head_dim: {d}, value_dim: {d}," not in config or f"causal: {str(causal).lower()}," not in config or "lse: true" not in config:
            continue
        block_q = int(config.split("block_q: ")[1].split(",")[0])
        label = "q{} kv{} w{}".format(block_q, *(config.split(f"{n}: ")[1].split(",")[0] for n in ("block_kv", "num_warps")))
        blocks, sequences = -(-s // block_q), b * h
        # How blocks are dealt out: as the kernel takes it (1: in pairs, and twice the sequences whose blocks are dealt out singly), and by how many programs.
        ways = {"stay": (0, min(blocks * sequences, sms))}
        if causal:
            pairs = -(-blocks // 2) * sequences
            ways = {"one each": (0, blocks * sequences), "pairs": (1, pairs), "pairs stay": (1, min(pairs, sms))}
            portions = -(-blocks // 2)
            singly = 0 if blocks < 20 else -(-sms * (4 if blocks < 64 else 7) // (4 * portions))
            if 0 < singly < sequences:
                ways["last singly"] = (1 | singly << 1, min(portions * (sequences - singly), sms) + singly * blocks)
        for way, (dealt, grid) in ways.items():
            arguments = (view(q), view(k), view(v), *map(view, scales), out(o), out(lse), f32(1 / math.sqrt(d)), i32(dealt))
            yield f"{label} {way}", launch(stream, grid, *arguments)


def main():
    library_path, bundle_path, json_path, *flags = sys.argv[1:]
    only = flags[flags.index("--only") + 1] if "--only" in flags else ""
    library = Library(library_path)
    bundle = library.bundle(bundle_path)
    index = json.load(open(bundle_path + ".json"))

    def kernels_of(name, types):
        called = (call for k in index["kernels"] for call in k["called"])
        found = (call["config"] for call in called if (call["name"], call["types"]) == (name, types))
        return [(config, library.kernel(bundle, name, types, config)) for config in found]

    kernels = kernels_of("attention_forward_hopper", "bf16")
    on_fp8 = kernels_of("attention_forward_hopper_fp8", "bf16, f8e4m3") if "--fp8" in flags else []
    torch_stream = torch.cuda.Stream()
    stream = library.stream(torch_stream)
    results = []
    for d, h, kv in SHAPES:
        if only and only not in f"d{d}h{h}":
            continue
        for causal in (False, True):
            for s in SIZES if h == kv else [4096, 8192]:
                b = TOKENS // s
                q = torch.randn(b, s, h, d, device="cuda").bfloat16()
                k, v = (torch.randn(b, s, kv, d, device="cuda").bfloat16() for _ in range(2))
                o = torch.full_like(q, math.nan)
                lse = torch.full((b, h, s), math.nan, device="cuda")
                contestants, errors = {}, {}
                heads = slice(0, 2)
                want = reference(q[:1, :, heads], k[:1, :, :1].expand(-1, -1, 2, -1) if kv < h else k[:1, :, heads], v[:1, :, :1].expand(-1, -1, 2, -1) if kv < h else v[:1, :, heads], causal)
                launches = list(ours(kernels, stream, q, k, v, [], o, lse, causal))
                eights = [x.to(torch.float8_e4m3fn) for x in (q, k, v)] if on_fp8 else []
                scales = [torch.ones(b, kv, device="cuda") for _ in eights]
                if on_fp8:
                    launches += [("fp8 " + name, launch) for name, launch in ours(on_fp8, stream, *eights, scales, o, lse, causal)]
                for name, launch in launches:
                    o.fill_(math.nan)
                    torch.cuda.synchronize()
                    launch()
                    torch.cuda.synchronize()
                    errors[name] = (o[:1, :, heads].float() - want).abs().max().item() / want.abs().max().item()
                    if o.isnan().any() or errors[name] > (0.12 if name.startswith("fp8") else 0.02):
                        print(f"  wrong: {name} at d{d} s{s} causal {causal}: {errors[name]}", file=sys.stderr)
                    contestants[name] = launch
                qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
                backends = {"cudnn": SDPBackend.CUDNN_ATTENTION} | ({"flash2": SDPBackend.FLASH_ATTENTION} if "--flash" in flags else {})
                for name, backend in backends.items():
                    def launch(backend=backend):
                        with sdpa_kernel(backend):
                            scaled_dot_product_attention(qt, kt, vt, is_causal=causal, enable_gqa=h != kv)

                    contestants[name] = launch
                if "--cute" in flags:
                    from flash_attn.cute.interface import flash_attn_func

                    contestants["cute"] = lambda: flash_attn_func(q, k, v, causal=causal)
                micros = times(contestants, torch_stream)
                flops = 4 * b * h * s * s * d / (2 if causal else 1)
                row = {"head_dim": d, "heads": h, "kv_heads": kv, "seq": s, "causal": causal, "errors": errors}
                row["tflops"] = {name: round(flops / us / 1e6, 1) for name, us in micros.items()}
                results.append(row)
                cudnn = row["tflops"].get("cudnn")
                shown = "  ".join(f"{n} {t:.0f} ({t / cudnn:.2f})" if cudnn else f"{n} {t:.0f}" for n, t in row["tflops"].items())
                print(f"d{d} {h}/{kv} {'causal' if causal else 'full  '} {s:6}: {shown}", flush=True)
                json.dump(results, open(json_path, "w"), indent=1)


if __name__ == "__main__":
    main()
