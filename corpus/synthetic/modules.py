"""Statistics of the modules of a synthetic transformer, as PyTorch's tools write them. Invariant: the same arguments
give the same bytes.

Every layer has 15 modules. A container's figures are sums over what it contains; parameters, activations and times are
those of width 1024, 8 sequences of 1024 tokens, 32-bit numbers, on a processor that takes 100 TFLOP/s and 2 TB/s. With
--vary each leaf's activations and time are its own, within a tenth.
"""

import argparse
import json
import random
from pathlib import Path

WIDTH, TOKENS, BYTES = 1024, 8 * 1024, 4
HIDDEN = TOKENS * WIDTH * BYTES
FLOPS, BANDWIDTH = 100e12, 2e12


def linear(wide_in, wide_out):
    """Parameters, saved bytes, bytes out, milliseconds."""
    return (wide_in * wide_out * BYTES, TOKENS * wide_in * BYTES, TOKENS * wide_out * BYTES,
            2e3 * TOKENS * wide_in * wide_out / FLOPS)


def elementwise(wide, saved=1.0, parameters=0):
    size = TOKENS * wide * BYTES
    return (parameters, int(saved * size), size, 2e3 * size / BANDWIDTH)


LAYER = {
    "attention_norm": elementwise(WIDTH, 1.0, 2 * WIDTH * BYTES),
    "attention": {
        "wq": linear(WIDTH, WIDTH), "wk": linear(WIDTH, WIDTH), "wv": linear(WIDTH, WIDTH),
        "core": elementwise(4 * WIDTH, 1.0), "wo": linear(WIDTH, WIDTH), "dropout": elementwise(WIDTH, 0.25),
    },
    "ffn_norm": elementwise(WIDTH, 1.0, 2 * WIDTH * BYTES),
    "feed_forward": {
        "w1": linear(WIDTH, 4 * WIDTH), "gelu": elementwise(4 * WIDTH, 1.0),
        "w2": linear(4 * WIDTH, WIDTH), "dropout": elementwise(WIDTH, 0.25),
    },
}


def figures(layers, vary):
    """Forward pre- and post-order, and the figures of each module by name."""
    chance = random.Random(layers)
    tree = {f"layers.{layer}": LAYER for layer in range(layers)}
    tree = {"embedding": elementwise(WIDTH, 0.0, 32_000 * WIDTH * BYTES), **tree,
            "norm": elementwise(WIDTH, 1.0, 2 * WIDTH * BYTES), "output": linear(WIDTH, 4 * WIDTH)}
    pre, post, stats = [], [], {}
    reached = 0

    def visit(name, node):
        nonlocal reached
        pre.append(name)
        if isinstance(node, dict):
            parts = [visit(f"{name}.{child}", inner) for child, inner in node.items()]
            found = [sum(part[0] for part in parts), sum(part[1] for part in parts),
                     max(part[2] for part in parts), sum(part[3] for part in parts)]
        else:
            found = list(node)
            if vary:
                found[1] = int(found[1] * chance.uniform(0.9, 1.1))
                found[3] *= chance.uniform(0.9, 1.1)
            reached += found[1]
        post.append(name)
        parameters, saved, out, time = found
        stats[name] = {
            "fqn": name, "param_per_module": parameters, "grad_per_module": parameters, "act_fw_per_module": saved,
            "act_bw_per_module": saved, "act_grad_per_module": 2 * out, "act_total": reached, "input_per_module": HIDDEN,
            "output_per_module": out, "fw_runtime_per_module": time, "bw_runtime_per_module": 2 * time,
            "is_leaf": not isinstance(node, dict), "sac_runtime": time, "sac_memory": int(1.6 * saved), "n_segments": 2,
            # Cheap operators first: two fifths of the bytes for a tenth of the time.
            "slopes": [0.25, 1.5], "intercepts": [0.0, -0.5], "breakpoints": [0.0, 0.4, 1.0], "tradeoff_curve": [],
        }
        return found

    visit("Model", tree)
    later = stats["Model"]["param_per_module"]
    for name in post:
        # Whatever ends after a module has its gradients when the module's backward pass begins.
        if stats[name]["is_leaf"]:
            later -= stats[name]["param_per_module"]
        stats[name]["grad_total"] = later
    return pre, post, stats


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--layers", type=int, default=24)
    arguments.add_argument("--vary", action="store_true", help="leaves differ from layer to layer")
    arguments.add_argument("out", type=Path)
    given = arguments.parse_args()
    pre, post, stats = figures(given.layers, given.vary)
    order = {"fw_pre_order": pre, "bw_pre_order": post[::-1], "fw_post_order": post, "bw_post_order": pre[::-1]}
    info = {"mod_order": order, "mod_stats": [stats[name] for name in pre]}
    given.out.write_text(json.dumps(info, indent=None, separators=(",", ":")) + "\n")
    print(f"{given.out}: {len(pre)} modules")


if __name__ == "__main__":
    main()
