"""GPT-2 and Llama in PyTorch with `torch.compile` and its SDPA: one process that times their step.

`benchmarks.gpu` starts it as a script, with any Python that has PyTorch, so nothing of meshdsl is
imported here. The first argument is a JSON object of sizes. For every line on its standard input it
runs that many seconds of steps, and answers by a line of JSON: the seconds of each step, the last
loss and the most memory in use. A first line says the versions, once the step is compiled.
"""

from __future__ import annotations

import json
import sys
import time

# PyTorch is none of meshdsl's dependencies.
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportMissingImports]

CHUNK = 5  # steps between two looks at the clock


class Layer(nn.Module):
    """Attention and a feed-forward layer, as GPT-2 or as Llama has them."""

    def __init__(self, sizes: dict):
        super().__init__()
        d, self.head_dim = sizes["d_model"], sizes["head_dim"]
        self.heads, self.kv_heads = sizes["heads"], sizes["kv_heads"]
        self.gpt2 = bias = sizes["style"] == "gpt2"
        norm = nn.LayerNorm if bias else nn.RMSNorm
        kv = self.kv_heads * self.head_dim
        self.attention_norm, self.mlp_norm = (norm(d, eps=sizes["epsilon"]) for _ in range(2))
        self.query = nn.Linear(d, self.heads * self.head_dim, bias=bias)
        self.key, self.value = (nn.Linear(d, kv, bias=bias) for _ in range(2))
        self.out = nn.Linear(self.heads * self.head_dim, d, bias=bias)
        self.gate = None if bias else nn.Linear(d, sizes["d_ff"], bias=False)
        self.up, self.down = (
            nn.Linear(d, sizes["d_ff"], bias=bias),
            nn.Linear(sizes["d_ff"], d, bias=bias),
        )

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        h = self.attention_norm(x)
        query, key, value = (
            made(h).view(batch, length, heads, self.head_dim).transpose(1, 2)
            for made, heads in (
                (self.query, self.heads),
                (self.key, self.kv_heads),
                (self.value, self.kv_heads),
            )
        )
        if not self.gpt2:
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        grouped = self.heads != self.kv_heads
        found = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=grouped
        )
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, -1))
        h = self.mlp_norm(x)
        if self.gate is None:
            return x + self.down(F.gelu(self.up(h), approximate="tanh"))
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Model(nn.Module):
    """The whole model; called with tokens and targets, it gives the loss."""

    def __init__(self, sizes: dict):
        super().__init__()
        d, length = sizes["d_model"], sizes["length"]
        gpt2 = sizes["style"] == "gpt2"
        self.remat = sizes["remat"]
        self.embedding = nn.Embedding(sizes["vocab"], d)
        self.positions = nn.Embedding(length, d) if gpt2 else None
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes["layers"]))
        self.norm = (nn.LayerNorm if gpt2 else nn.RMSNorm)(d, eps=sizes["epsilon"])
        self.head = nn.Linear(d, sizes["vocab"], bias=False)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
        if gpt2:
            self.head.weight = self.embedding.weight
        half = sizes["head_dim"] // 2
        frequency = sizes["rotary_base"] ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * frequency
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        x = x.to(torch.bfloat16)
        for layer in self.layers:
            if self.remat:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main() -> None:
    sizes = json.loads(sys.argv[1])
    device = torch.device(sizes["device"])
    on_gpu = device.type == "cuda"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    model = Model(sizes).to(device)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": sizes["weight_decay"]},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=on_gpu)
    compiled = torch.compile(model) if on_gpu else model
    shape = sizes["rows"], sizes["length"] + 1
    tokens = torch.randint(0, sizes["vocab"], shape, device=device)
    tokens, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = compiled(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def synchronize():
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(2):
        step()
    synchronize()
    answer({"torch": torch.__version__, "cuda": torch.version.cuda})
    for line in sys.stdin:
        seconds, begin = [], time.perf_counter()
        while not seconds or time.perf_counter() - begin < float(line):
            start = time.perf_counter()
            for _ in range(CHUNK):
                loss = step()
            synchronize()
            seconds.append((time.perf_counter() - start) / CHUNK)
        memory = torch.cuda.max_memory_allocated() if on_gpu else None
        answer({"seconds": seconds, "loss": float(loss.detach()), "memory": memory})


def answer(found: dict) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
