"""What examples/images.py works out of its photographs: NumPy and SciPy, or CuPy under the same names, and no Dask.

The photographs are files of the wheel of scikit-image, which are read without a network.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.ndimage
import skimage.data

PHOTOGRAPHS = ["hubble_deep_field", "retina", "astronaut"]
TILE = 256
"""Height and width of a tile in pixels; the last of a row or column is smaller."""
REACH, PATCH, NOISE = 7, 2, 0.03
"""Pixels at most REACH away are likened to each other by the patches of PATCH pixels around them."""
RADIUS = 15
"""What is narrower than a disc of this radius is no background."""
FAINTEST, SMALLEST = 0.02, 5
"""What is less bright above the background, or has fewer pixels, is not worth a region."""


def array_library(cupy: bool) -> Any:
    """Give NumPy, or CuPy if it is asked for; leave with one line where that or a device is missing."""
    if not cupy:
        return np
    try:
        import cupy as xp

        devices = xp.cuda.runtime.getDeviceCount()
    except ImportError as error:
        sys.exit(f"--cupy needs CuPy ({error}). Install cupy-cuda12x or cupy-cuda13x, or leave --cupy out.")
    except RuntimeError as error:
        sys.exit(f"--cupy needs a GPU, and CuPy finds none ({error}). Look at nvidia-smi, or leave --cupy out.")
    if devices == 0:
        sys.exit("--cupy needs a GPU, and CuPy finds none. Look at nvidia-smi, or leave --cupy out.")
    return xp


def libraries(array: Any) -> tuple[Any, Any]:
    """Give NumPy and SciPy for an array on the host, CuPy and what it has of SciPy for one on a device."""
    if isinstance(array, np.ndarray):
        return np, scipy.ndimage
    import cupy
    import cupyx.scipy.ndimage

    return cupy, cupyx.scipy.ndimage


def photograph(name: str) -> Any:
    """Read a photograph and give how bright each pixel is, from 0 to 1."""
    colours = getattr(skimage.data, name)()
    return (colours @ np.array([0.2125, 0.7154, 0.0721]) / 255).astype(np.float32)


def denoise(tile: Any) -> Any:
    """Make each pixel the mean of those near it whose surroundings look alike (non-local means)."""
    xp, ndi = libraries(tile)
    total, weights = xp.zeros_like(tile), xp.zeros_like(tile)
    steps = range(-REACH, REACH + 1)
    for shift in [(down, right) for down in steps for right in steps]:
        moved = xp.roll(tile, shift, axis=(0, 1))
        alike = xp.exp(-ndi.uniform_filter((tile - moved) ** 2, 2 * PATCH + 1) / NOISE**2)
        total += alike * moved
        weights += alike
    return total / weights


def lift(tile: Any) -> Any:
    """Take away the background, which is all that a disc fits into (a white top-hat)."""
    xp, ndi = libraries(tile)
    along = xp.arange(-RADIUS, RADIUS + 1)
    disc = along[:, None] ** 2 + along**2 <= RADIUS**2
    return ndi.white_tophat(tile, footprint=disc)


def threshold(values: Any) -> Any:
    """Give the brightness that parts values best into two classes (Otsu's method)."""
    xp, _ = libraries(values)
    counts, edges = xp.histogram(values, bins=256)
    middles = (edges[1:] + edges[:-1]) / 2
    below, light = xp.cumsum(counts), xp.cumsum(counts * middles)
    above = below[-1] - below
    apart = light / xp.maximum(below, 1) - (light[-1] - light) / xp.maximum(above, 1)
    return middles[xp.argmax(below * above * apart**2)]


def measure(lifted: Any, denoised: Any) -> Any:
    """Find the bright regions of a tile; give their number, their pixels, and the brightness of all these, summed."""
    xp, ndi = libraries(lifted)
    labels, _ = ndi.label(lifted > xp.maximum(threshold(lifted), FAINTEST))
    pixels = xp.bincount(labels.ravel())[1:]
    light = xp.bincount(labels.ravel(), weights=denoised.ravel())[1:]
    regions = pixels >= SMALLEST
    sums = regions.sum(), pixels[regions].sum(), light[regions].sum()
    return np.array([float(value) for value in sums]).reshape(1, 1, 3)  # numbers, so back on the host


DEPTH: dict[Callable[[Any], Any], int] = {denoise: REACH + PATCH, lift: 2 * RADIUS}
"""How many pixels beyond its tile a function looks; tiles overlap by so many."""


def corners(image: Any) -> Iterator[tuple[int, int]]:
    """Give the upper left corner of each tile."""
    height, width = image.shape
    return ((top, left) for top in range(0, height, TILE) for left in range(0, width, TILE))


def by_hand(function: Callable[[Any], Any], image: Any) -> Any:
    """Apply a function to tiles that overlap, as Dask does, with slices of one padded array."""
    xp, _ = libraries(image)
    depth = DEPTH[function]
    padded, result = xp.pad(image, depth, mode="symmetric"), xp.empty_like(image)
    for top, left in corners(image):
        tile = padded[top : top + TILE + 2 * depth, left : left + TILE + 2 * depth]
        result[top : top + TILE, left : left + TILE] = function(tile)[depth:-depth, depth:-depth]
    return result


def without_dask(name: str, xp: Any) -> Any:
    """Work out the same of one photograph without Dask: three numbers for each tile."""
    denoised = by_hand(denoise, xp.asarray(photograph(name)))
    lifted = by_hand(lift, denoised)
    tiles = [np.s_[top : top + TILE, left : left + TILE] for top, left in corners(denoised)]
    return np.concatenate([measure(lifted[tile], denoised[tile])[0] for tile in tiles])
