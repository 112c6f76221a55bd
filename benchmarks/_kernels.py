"""Triton kernels as a user would write them, with configurations to choose from.

A norm and a matrix multiplication with an activation; their gradients are plain PyTorch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton


@triton.autotune(
    configs=[triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8)], key=["columns"]
)
@triton.jit
def norm_kernel(x_ptr, scale_ptr, y_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """One row a program: y = x / rms(x) · scale."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0)
    root = tl.sqrt(tl.sum(x * x, axis=0) / columns + 1e-6)
    scale = tl.load(scale_ptr + at, mask=at < columns, other=0.0)
    tl.store(y_ptr + row * columns + at, x / root * scale, mask=at < columns)


@triton.autotune(
    configs=[
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn in ((64, 64), (64, 128), (128, 64), (128, 128))
        for bk in (32, 64)
        for warps, stages in ((4, 3), (8, 3), (4, 4))
    ],
    key=["m", "n", "k"],
)
@triton.jit
def linear_swish_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    y_ptr,
    m,
    n,
    k,
    BM: tl.constexpr,  # noqa: N803
    BN: tl.constexpr,  # noqa: N803
    BK: tl.constexpr,  # noqa: N803
):
    """One tile a program: y = swish(x · w)."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in range(0, k, BK):
        x = tl.load(x_ptr + rows[:, None] * k + begin + inner[None, :])
        w = tl.load(w_ptr + (begin + inner[:, None]) * n + columns[None, :])
        total += tl.dot(x, w)
    y = total / (1 + tl.exp(-total))
    tl.store(y_ptr + rows[:, None] * n + columns[None, :], y)


@triton_op("ett_bench::norm", mutates_args={})
def norm(x: Tensor, scale: Tensor) -> Tensor:
    """x over the root of its mean square, scaled."""
    y = torch.empty_like(x)
    columns = x.shape[-1]
    block = triton.next_power_of_2(columns)
    wrap_triton(norm_kernel)[(x.numel() // columns,)](x, scale, y, columns, BLOCK=block)
    return y


@triton_op("ett_bench::linear_swish", mutates_args={})
def linear_swish(x: Tensor, weight: Tensor) -> Tensor:
    """swish(x @ weight), for shapes that the tiles divide."""
    m, k = x.shape
    n = weight.shape[1]
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))

    wrap_triton(linear_swish_kernel)[grid](x, weight, y, m, n, k)
    return y


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _norm_back(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, scale = ctx.saved_tensors
    root = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    scaled = grad * scale
    mean = (scaled * x).mean(-1, keepdim=True)
    return scaled / root - x * mean / root**3, (grad * x / root).sum(0)


def _linear_swish_back(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    z = x @ weight
    gate = torch.sigmoid(z)
    inner = grad * gate * (1 + z * (1 - gate))
    return inner @ weight.T, x.T @ inner


norm.register_autograd(_norm_back, setup_context=_keep)
linear_swish.register_autograd(_linear_swish_back, setup_context=_keep)
