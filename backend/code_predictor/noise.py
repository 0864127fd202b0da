"""Random numbers that depend on nothing but (seed, frame, group, code).

Philox4x32 with 7 rounds, the fewest that pass every test of BigCrush (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011, table 2). Being a function of a counter, the noise of
a code is the same in a graph and outside, alone and in any batch, on any kernel that computes it.
Key: the two halves of the seed. Counter: (code // 4, group, frame, 0); output word code % 4.
"""

import torch
from torch import Tensor

ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words of 32 bits for each counter; int64 tensors that broadcast, values below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The products wrap around in 64 bits, signed or not: the bits are the same.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _LOW) ^ c1 ^ k0,
            second & _LOW,
            ((first >> 32) & _LOW) ^ c3 ^ k1,
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seed: Tensor, frame: Tensor, group: int, codes: int) -> Tensor:
    """Uniform float32 in (0, 1), [batch, codes], for int64 `seed` and integer `frame`, each [batch].

    23 random bits and a half: neither 0 nor 1 can come out, so that log(-log(u)) is finite.
    """
    blocks = torch.arange((codes + 3) // 4, device=seed.device)
    seed, frame = seed.long()[:, None], frame.long()[:, None] & _LOW
    zero = torch.zeros_like(blocks)
    words = philox((blocks, zero + group, zero + frame, zero), (seed & _LOW, (seed >> 32) & _LOW))
    bits = torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(-2)[:, :codes]
    return ((bits >> 9).float() + 0.5) * 2.0**-23


def gumbel(seed: Tensor, frame: Tensor, group: int, codes: int) -> Tensor:
    """Standard Gumbel noise, [batch, codes]: adding it to logits makes their argmax a draw of the softmax."""
    return -torch.log(-torch.log(uniforms(seed, frame, group, codes)))
