"""The numbers that PyTorch draws on a GPU, without one: Philox4x32-10, of which thread i of a launch has subsequence i."""
import numpy as np
import torch

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
#: Each thread takes one number of the four that a step gives where there are as many threads as numbers: 256 of them to a block, and
#: eight blocks to a multiprocessor, of which the GPUs that are meant have 132.
_MOST = 256 * 8 * 132


def philox(seed, step, count):
    """The first two words, [count] each, of `step` of the subsequences from 0."""
    zeros = np.zeros(count, np.uint64)
    a, b, c, d = zeros + np.uint64(step), zeros, np.arange(count, dtype=np.uint64), zeros
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (second >> _HALF) ^ b ^ np.uint64(key[0]), second & _LOW, (first >> _HALF) ^ d ^ np.uint64(key[1]), first & _LOW
        key = [(k + w) & 0xFFFFFFFF for k, w in zip(key, _WEYL)]
    return a.astype(np.float64), b.astype(np.float64)


class CudaRandom:
    """PyTorch, but `randn` and `rand` are those of a GPU whose generator began at `seed`. GPUs take fast sines and logarithms: normal
    numbers agree to some units in the last place of f32, so now and then one of 16 bits is its neighbour."""

    def __init__(self, seed):
        self.seed, self.step = seed, 0

    def __getattr__(self, name):
        return getattr(torch, name)

    def _words(self, shape):
        count = int(np.prod(shape))
        assert count <= _MOST, f"expected at most {_MOST} numbers in a draw, but got {count}"
        self.step += 1
        return philox(self.seed, self.step - 1, count)

    def randn(self, shape, generator=None, device=None, dtype=torch.float32):
        a, b = self._words(shape)
        radius = np.sqrt(-2 * np.log(((a + 0.5) * 2.0**-32).astype(np.float32).astype(np.float64)))
        angle = ((b + 0.5) * (2 * np.pi * 2.0**-32)).astype(np.float32).astype(np.float64)
        return torch.from_numpy((np.sin(angle) * radius).reshape(shape)).to(dtype)

    def rand(self, shape, generator=None, device=None):
        a, _ = self._words(shape)
        numbers = ((a + 0.5) * 2.0**-32).astype(np.float32)
        numbers[numbers == 1] = 0
        return torch.from_numpy(numbers.reshape(shape))
