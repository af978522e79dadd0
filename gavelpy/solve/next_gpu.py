"""Prices at a kink: what the next GPU of each type earns, not the last one.

Where all users of a type run all the time, its price may be anything from what the last GPU earns to what the next one
would: the users' budgets take the difference. An interior point ends between the two. Here such prices are lowered as
far as the answer stays an optimum: until a job would come from elsewhere, or a price is zero.

A price is fixed by a job on that type that also idles, or that also runs on a type whose price is fixed. Types that
share users who run all the time move together.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Bools, Floats

_USES = 1e-6  # of a job's time: an interior point leaves traces everywhere
_FREE = 1e-9  # of what the best rates are worth a GPU: prices below are zero


def lowered(price: Floats, worth: Floats, gpus: Floats, share: Floats) -> Floats:
    """The least prices (T,) that explain `share` (K, T) as well as `price` (T,) does.

    `worth` (K, T) is what a job's time on each type earns before its GPUs are paid, 0 where it cannot run; `gpus` (K,).
    """
    most = float((worth / gpus[:, None]).max(initial=0.0))
    uses = share > _USES
    idles = share.sum(axis=1) < 1.0 - _USES
    price = np.where(price > _FREE * most, price, 0.0)
    fixed = np.asarray(price <= 0)
    for _ in price:  # each step fixes a type at least
        fixed = _fixed(fixed, uses, idles)
        if fixed.all():
            break
        steps = _steps(price, worth, gpus, uses, fixed)
        step = max(float(steps.min()), 0.0)
        price = np.where(fixed, price, np.maximum(price - step, 0.0))
        fixed = np.asarray(fixed | (steps <= step))
    return price


def _fixed(fixed: Bools, uses: Bools, idles: Bools) -> Bools:
    """Types whose price is zero, blocked or fixed by a user, (T,)."""
    fixed = np.asarray(fixed | (uses & idles[:, None]).any(axis=0))
    while True:
        linked: Bools = np.asarray(fixed | (uses & np.any(uses & fixed, axis=1, keepdims=True)).any(axis=0))
        if np.array_equal(linked, fixed):
            return fixed
        fixed = linked


def _steps(price: Floats, worth: Floats, gpus: Floats, uses: Bools, fixed: Bools) -> Floats:
    """How much cheaper each type may become before it is free or a job would come to it, (T,); infinite where fixed."""
    gain = worth - gpus[:, None] * price
    reward = np.where(worth > 0, gain, 0.0).max(axis=1, initial=0.0)
    comes = (worth > 0) & ~np.any(uses & ~fixed, axis=1, keepdims=True)
    room = np.where(comes, (reward[:, None] - gain) / gpus[:, None], np.inf)
    return np.where(fixed, np.inf, np.minimum(price, room.min(axis=0, initial=np.inf)))
