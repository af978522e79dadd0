"""Actor-critic: two small networks learn to keep a pole upright on a cart, many carts at once.

A step is one update: each cart moves `unroll` times by the actor's choice, the critic estimates the value of the final
state, and both learn from the difference to the expected value (Mnih et al., 2016, with one process for all carts).
The carts are simulated on the CPU, so a fast GPU gains little, which is typical of such jobs.

    python actor_critic.py --steps 500
    python actor_critic.py --steps 20000 --full --device cuda     # 256 carts, networks of 256
"""

from __future__ import annotations

import math
import sys

import torch
from choices import Sizes
from shuffled import Turns
from torch import Tensor, nn
from training import Batch, Training, main

SMALL = Sizes(batch_size=16, width=32, unroll=8)
FULL = Sizes(batch_size=256, width=256, unroll=16)
DISCOUNT = 0.97


class Carts:
    """Carts with poles, simulated one step at a time.

    The equations are those of Barto, Sutton and Anderson (1983), with a time step of 20 ms. An episode ends when the
    pole leans more than 12 degrees, when the cart leaves its track, or after EPISODE_STEPS.
    """

    EPISODE_STEPS = 200
    STEP_S, GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N = 0.02, 9.8, 1.0, 0.1, 0.5, 10.0
    ANGLE_MAX, PLACE_MAX = math.radians(12), 2.4

    def __init__(self, carts: int, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.state = self._start(carts)  # (carts, 4): place, speed, angle, turn
        self.age = torch.zeros(carts, dtype=torch.int64)

    def move(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """Pushes each cart; returns which have fallen and which reached the end, (carts,) each, and restarts both."""
        _, speed, angle, turn = self.state.unbind(1)
        force = torch.where(right, self.FORCE_N, -self.FORCE_N)
        mass, lever = self.CART_KG + self.POLE_KG, self.POLE_KG * self.HALF_POLE_M
        sine, cosine = angle.sin(), angle.cos()
        push = (force + lever * turn**2 * sine) / mass
        inertia = self.HALF_POLE_M * (4 / 3 - self.POLE_KG * cosine**2 / mass)
        turning = (self.GRAVITY * sine - cosine * push) / inertia
        gaining = push - lever * turning * cosine / mass
        moved = torch.stack([speed, gaining, turn, turning], dim=1)
        self.state = self.state + self.STEP_S * moved
        self.age = self.age + 1

        fallen = (self.state[:, 0].abs() > self.PLACE_MAX) | (self.state[:, 2].abs() > self.ANGLE_MAX)
        reached = ~fallen & (self.age >= self.EPISODE_STEPS)
        over = fallen | reached
        self.state = torch.where(over[:, None], self._start(len(over)), self.state)
        self.age = self.age.masked_fill(over, 0)
        return fallen, reached

    def state_dict(self) -> dict[str, Tensor]:
        return {"state": self.state, "age": self.age, "draw": self.draw.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state, self.age = state["state"], state["age"]
        self.draw.set_state(state["draw"])

    def _start(self, carts: int) -> Tensor:
        return 0.1 * torch.rand(carts, 4, generator=self.draw) - 0.05


class ActorCritic(nn.Module):
    """Maps carts' states (N, 4) to the advantage of right over left and the value of the state: (N, 2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        self.critic = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, state: Tensor) -> Tensor:
        return torch.cat([self.actor(state), self.critic(state)], dim=1)


class Balancing(Training):
    """Adam on advantage actor-critic with an entropy bonus."""

    job_type = "A2C"
    small, full = SMALL, FULL

    def build(self) -> None:
        sizes = self.sizes
        self.plain = ActorCritic(sizes["width"])  # used between updates, when no rank waits for another
        self.model = self.network("model", self.plain)
        self.optimizer = self.kept("optimizer", torch.optim.Adam(self.model.parameters(), lr=3e-3))
        self.carts = self.kept_by_rank("carts", Carts(sizes["batch_size"], self.choices.seed + self.ranks.rank))
        self.life = self.kept_by_rank("life", Life())
        self.batches = Turns()

    def step(self, _: Batch) -> Tensor:
        states, rights, falls, ends = self.play()
        scores, values = self.model(states.flatten(0, 1)).reshape(*states.shape[:2], 2).unbind(2)
        with torch.no_grad():
            worth = self.plain(self.seen())[:, 1]
            returns = torch.empty_like(values)
            for turn in reversed(range(len(values))):  # an episode that is cut off keeps its estimated value
                worth = torch.where(ends[turn], values[turn], 1.0 + DISCOUNT * worth * ~falls[turn])
                returns[turn] = worth
        gain = returns - values
        chosen = torch.distributions.Bernoulli(logits=scores)
        actor = -(chosen.log_prob(rights.float()) * gain.detach()).mean()
        loss: Tensor = actor + 0.5 * gain.square().mean() - 0.01 * chosen.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def play(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States, choices, falls and ends of the next turns: (unroll, carts, ...)."""
        played: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for _ in range(self.sizes["unroll"]):
            state = self.seen()
            right = torch.rand(len(state), device=self.device) < torch.sigmoid(self.plain(state)[:, 0])
            age = self.carts.age + 1
            fallen, reached = self.carts.move(right.cpu())
            self.life.count(age[fallen | reached])
            played.append((state, right, fallen.to(self.device), reached.to(self.device)))
        states, rights, falls, ends = (torch.stack(column) for column in zip(*played, strict=True))
        return states, rights, falls, ends

    def seen(self) -> Tensor:
        """The carts' states, scaled to magnitudes of about one."""
        return (self.carts.state * torch.tensor([1.0, 1.0, 10.0, 1.0])).to(self.device)

    def figures(self) -> dict[str, float]:
        return {"episode_steps": self.life.steps}


class Life:
    """Average time that poles stay up: a moving average over about the last 100 episodes."""

    def __init__(self) -> None:
        self.steps = 0.0

    def count(self, ages: Tensor) -> None:
        for age in ages.tolist():
            self.steps += (age - self.steps) / 100 if self.steps else age

    def state_dict(self) -> dict[str, float]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.steps = state["steps"]


if __name__ == "__main__":
    sys.exit(main(Balancing))
