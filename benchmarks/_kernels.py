"""A Triton kernel as a user would write one, with configurations to choose from."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (256, 512, 1024, 2048)
        for warps in (2, 4, 8)
    ],
    key=["n"],
)
@triton.jit
def swish_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x / (1 + tl.exp(-x)), mask=at < n)


@triton_op("ett_bench::swish", mutates_args={})
def swish(x: Tensor) -> Tensor:
    """x · sigmoid(x)."""
    y, n = torch.empty_like(x), x.numel()
    wrap_triton(swish_kernel)[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    return y


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
    gate = torch.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


swish.register_autograd(_back, setup_context=_keep)
