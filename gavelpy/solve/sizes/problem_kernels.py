"""From a problem's arrays to the modes of its jobs, and from times in the modes to certified shares, in numba."""

from __future__ import annotations

import numpy as np

from gavelpy.solve.compiled import njit

NONE = -1  # also a mode: idle


@njit(cache=True, nogil=True, error_model="numpy")
def members_of_jobs(member_job, jobs, member):  # type: ignore[no-untyped-def]
    """Sets the memberships of every job, (J, S), in their order; NONE where a job has fewer sizes."""
    member[:] = NONE
    sizes = np.zeros(jobs, np.int64)
    for i in range(len(member_job)):
        j = member_job[i]
        member[j, sizes[j]] = i
        sizes[j] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def modes_of_jobs(  # type: ignore[no-untyped-def]
    member, configuration, member_rate, fits, occupied, amount, rate, load, best
):
    """Sets rates in units of a job's best one, (J, M), loads in parts of a row, (J, M, R), and best rates (J,)."""
    (J, S), T, R = member.shape, fits.shape[1], occupied.shape[1]
    part = np.where(amount > 0.0, 1.0 / amount, 1.0)
    for j in range(J):
        best[j] = 0.0
        for s in range(S):
            i = member[j, s]
            if i == NONE:
                for m in range(s * T, s * T + T):
                    rate[j, m] = 0.0
                    for r in range(R):
                        load[j, m, r] = 0.0
                continue
            c = configuration[i]
            for t in range(T):
                rate[j, s * T + t] = member_rate[i, t] if fits[c, t] else 0.0
                best[j] = max(best[j], rate[j, s * T + t])
                for r in range(R):
                    load[j, s * T + t, r] = occupied[c, r] * part[r * T + t]
        if best[j] > 0.0:
            for m in range(S * T):
                rate[j, m] /= best[j]


@njit(cache=True, nogil=True, error_model="numpy")
def shares_of(  # type: ignore[no-untyped-def]
    member, configuration, occupied, amount, of_class, low, high, time_high, row_of, of_rows, noise, share
):
    """Sets the shares (C, T) within every job's time and every row: the search exceeds them by rounding.

    A class has the times (M,) of its row of `of_rows`; without one, it is in the mode `high` for the time `time_high`,
    and for the rest in `low`.
    """
    (J, S), T, R = member.shape, share.shape[1], occupied.shape[1]
    share[:] = 0.0
    used, times, modes = np.zeros(len(amount)), np.empty(S * T), np.empty(S * T, np.int64)
    for j in range(J):
        k = of_class[j]
        if k == NONE:
            continue
        n, total = 0, 0.0
        if row_of[k] == NONE:
            modes[0], times[0], n = high[k], time_high[k], 1
            if low[k] != NONE:
                modes[1], times[1], n = low[k], 1.0 - time_high[k], 2
        else:
            for m in range(S * T):
                modes[m], times[m] = m, of_rows[row_of[k], m]
            n = S * T
        for i in range(n):
            total += times[i] if times[i] > noise else 0.0
        for i in range(n):
            if times[i] > noise:
                s, t = modes[i] // T, modes[i] % T
                c = configuration[member[j, s]]
                share[c, t] = times[i] / max(total, 1.0)
                for r in range(R):
                    used[r * T + t] += occupied[c, r] * share[c, t]
    for t in range(T):
        part = 1.0
        for r in range(R):
            q = r * T + t
            if used[q] > amount[q]:
                part = min(part, amount[q] / used[q])
        if part < 1.0:
            share[:, t] *= part


@njit(cache=True, nogil=True, error_model="numpy")
def proof_of(  # type: ignore[no-untyped-def]
    member, configuration, member_rate, fits, occupied, amount, share, price, worth, rates, budget
):
    """Sets rates and least budgets (J,) at these prices (P,) and values of a rate, `worth` (J,).

    Returns the rows used, (P,), and the longest time of a job.
    """
    (J, S), T, R = member.shape, share.shape[1], occupied.shape[1]
    used, longest = np.zeros(len(amount)), 0.0
    for j in range(J):
        rates[j], budget[j], total = 0.0, 0.0, 0.0
        for s in range(S):
            i = member[j, s]
            if i == NONE:
                continue
            c = configuration[i]
            for t in range(T):
                x = share[c, t]
                total += x
                rates[j] += member_rate[i, t] * x
                cost = 0.0
                for r in range(R):
                    used[r * T + t] += occupied[c, r] * x
                    cost += occupied[c, r] * price[r * T + t]
                if fits[c, t]:
                    budget[j] = max(budget[j], worth[j] * member_rate[i, t] - cost)
        longest = max(longest, total)
    return used, longest
