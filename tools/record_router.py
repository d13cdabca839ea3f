#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what the router of a fixture's model chooses when Transformers computes it in float64.

    python3 tools/record_router.py FIXTURE OUT.safetensors

For fixtures whose float32 answers are themselves too far from the truth to hold anybody to (qwen3_5-moe: the float32 run scans the delta rule in chunks). OUT holds `router.L.ids` and
`router.L.weights` as expected.safetensors does, for the first prompt with its recorded continuation: weights in float64, rounded once to float32. Models cast to float32 in places
whatever their dtype, so while it runs the word float32 means float64. Prints how far the recorded float32 weights are from it. Needs PyTorch, Transformers and safetensors.
"""
import json
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main():
    fixture, out = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(fixture, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    prompt = json.load(open(f"{fixture}/expected.json"))["prompts"][0]
    found = {}

    def hook(layer):
        def take(_, args, kwargs):
            given = [x for x in [*args[1:], *kwargs.values()] if torch.is_tensor(x)]
            ids = next(x for x in given if not x.is_floating_point())
            weights = next(x for x in given if x.is_floating_point() and x.shape == ids.shape)
            found[layer] = (ids, weights)
        return take

    for name, module in model.named_modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(hook(next(x for x in name.split(".") if x.isdigit())), with_kwargs=True)
    float32, to_float = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    model(torch.tensor([prompt["ids"] + prompt["greedy"][:-1]]), use_cache=False)
    torch.float32 = torch.float = float32
    torch.Tensor.float = to_float
    recorded, tensors, worst = load_file(f"{fixture}/expected.safetensors"), {}, 0.0
    for layer, (ids, weights) in found.items():
        assert weights.dtype == torch.float64, f"layer {layer}: the weights were rounded to {weights.dtype} on the way"
        k = ids.shape[-1]
        tensors[f"router.{layer}.ids"] = ids.reshape(-1, k).to(torch.int32).contiguous()
        tensors[f"router.{layer}.weights"] = weights.reshape(-1, k).float().contiguous()
        a, b = ids.reshape(-1, k).long().argsort(-1), recorded[f"router.{layer}.ids"].long().argsort(-1)
        far = (weights.reshape(-1, k).gather(-1, a) - recorded[f"router.{layer}.weights"].double().gather(-1, b)).abs()
        worst = max(worst, float(far.max()))
        print(f"layer {layer}: {tuple(ids.shape)}, the float32 run is at most {float(far.max()):.2g} away ({int((far > 1e-5).sum())} of {far.numel()} by more than 1e-5)")
    save_file(tensors, out)
    print(f"{len(found)} layers, at most {worst:.2g}")


if __name__ == "__main__":
    main()
