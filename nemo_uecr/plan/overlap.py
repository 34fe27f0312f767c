"""Rollouts while training goes on: a simulation of NeMo-RL's asynchronous loop, event by event.

Batch k trains the policy from k to k + 1 updates. Its groups may begin when the policy has k - age updates, ``age``
batches of groups run at once at most, and a refit stops the engines while weights arrive; where weights do not change
in mid-response, it first waits for every response that is under way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean

from nemo_uecr.plan.contents import CACHE_SHARE, FORWARD_SHARE, WEIGHTS_SHARE, Device

STEPS, WARM_UP = 16, 6  # simulated, and the first of them, which are not counted


@dataclass(frozen=True)
class Pace:
    """A decoding step of an engine: it reads the weights and the cache of the running responses, or computes."""

    device: Device
    weights: Callable[[int], float]  # bytes that so many running responses read
    cached: int  # bytes of a token's keys and values
    flops: float  # of a token
    more: float  # seconds besides
    prompt: int  # tokens before each response
    prefill: float  # seconds of a group's prompt
    at_once: int  # responses whose keys and values fit

    def rates(self, running: int, context: float) -> tuple[float, float]:
        """Seconds of the next decoding step, and by how much each later one takes longer, as its responses grow."""
        bandwidth = self.device.bandwidth
        cached = self.cached / (bandwidth * CACHE_SHARE)
        read = self.weights(running) / (bandwidth * WEIGHTS_SHARE) + cached * context
        compute = running * self.flops / (self.device.flops * FORWARD_SHARE)
        return (read + self.more, cached * running) if read > compute else (compute + self.more, 0.0)


Group = tuple[int, int]  # its batch, and its place there


class _Engine:
    """A vLLM engine: its running responses, and those that wait for a place in its cache."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.clock = self.decoded = self.context = self.busy = 0.0
        self.ends = math.inf  # when the next response ends
        self.running: list[tuple[float, float, int, Group]] = []  # decoded at its end, length, policy at its start
        self.waiting: deque[tuple[float, Group]] = deque()

    def advance(self, now: float) -> None:
        """Decode until ``now``, before which no response ends."""
        seconds = now - self.clock
        if seconds <= 0:
            return
        if self.running:
            first, growth = self.pace.rates(len(self.running), self.context)
            root = math.sqrt(first * first + 2 * growth * seconds)
            steps = (root - first) / growth if growth else seconds / first
            self.decoded += steps
            self.context += steps * len(self.running)
            self.busy += seconds
        self.clock = now

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self.ends += seconds

    def add(self, length: float, policy: int, group: Group) -> None:
        """Begin a response, or let it wait for a place."""
        if len(self.running) < self.pace.at_once:
            heappush(self.running, (self.decoded + length, length, policy, group))
            self.context += self.pace.prompt
        else:
            self.waiting.append((length, group))
        self._look_ahead()

    def finish(self, policy: int) -> tuple[int, Group]:
        """End the next response; returns the policy at its start, and its group."""
        self.advance(self.ends)
        self.decoded, length, begun, group = heappop(self.running)
        self.context -= self.pace.prompt + length
        if self.waiting:
            self.add(*(self.waiting[0][0], policy, self.waiting.popleft()[1]))
        self._look_ahead()
        return begun, group

    def _look_ahead(self) -> None:
        self.ends = math.inf
        if self.running:
            first, growth = self.pace.rates(len(self.running), self.context)
            steps = self.running[0][0] - self.decoded
            self.ends = self.clock + steps * first + growth * steps * steps / 2


@dataclass(frozen=True)
class Overlap:
    """A step of the asynchronous loop, in its steady state."""

    seconds: float  # of a step
    training: float  # of them, those in which the training GPUs score, update and send weights; then they wait
    idle: float  # share of the time in which an engine has no response
    policies: float  # that a response comes from, on average
    most_policies: int


class _Loop:
    """The loop's state between two events."""

    def __init__(
        self, pace: Pace, batch: Callable[[int], Sequence[Sequence[float]]], engines: int, age: int, refit: float
    ) -> None:
        self.fleet = [_Engine(pace) for _ in range(engines)]
        self.batches = [batch(step) for step in range(STEPS + age + 1)]
        self.left = {
            (step, place): len(own) for step, all_ in enumerate(self.batches) for place, own in enumerate(all_)
        }
        self.missing = [len(groups) for groups in self.batches]  # groups that are not whole
        self.age, self.refit, self.slots = age, refit, age * self.missing[0]
        self.due: deque[Group] = deque()  # groups that may begin
        self.now = 0.0
        self.allowed = self.policy = self.dealt = 0  # batches that may begin, updates, responses that have begun
        self.spans: list[int] = []

    def begin(self) -> None:
        """Begin the groups that may."""
        while self.allowed <= min(self.policy + self.age, len(self.batches) - 1):
            self.due.extend((self.allowed, place) for place in range(len(self.batches[self.allowed])))
            self.allowed += 1
        while self.due and self.slots:
            step, place = group = self.due.popleft()
            self.slots -= 1
            for number, length in enumerate(self.batches[step][place]):
                engine = self.fleet[self.dealt % len(self.fleet)]
                self.dealt += 1
                engine.advance(self.now)
                if number == 0:  # vLLM's prefix cache serves the others
                    engine.pause(engine.pace.prefill)
                engine.add(length, self.policy, group)

    def finish(self, engine: _Engine) -> None:
        """End an engine's next response; a group that is whole makes room for another."""
        self.now = engine.ends
        begun, group = engine.finish(self.policy)
        self.spans.append(self.policy - begun + 1)
        self.left[group] -= 1
        if not self.left[group]:
            self.missing[group[0]] -= 1
            self.slots += 1

    def update(self) -> None:
        """New weights reach the engines."""
        for engine in self.fleet:
            engine.advance(self.now)
            engine.pause(self.refit)
        self.now += self.refit
        self.policy += 1


def overlapped(
    pace: Pace, batch: Callable[[int], Sequence[Sequence[float]]], *,
    engines: int, age: int, in_flight: bool, training: float, refit: float,
) -> Overlap:  # fmt: skip
    """Simulate the loop; ``batch`` has the response lengths of a step by group.

    ``training`` are the seconds from a whole batch to new weights, ``refit`` those in which they are sent.
    """
    loop = _Loop(pace, batch, engines, age, refit)
    trained, ends = math.inf, list[float]()  # the end of the training under way; of each step
    busy = 0.0
    loop.begin()
    while len(ends) < STEPS:
        engine = min(loop.fleet, key=lambda each: each.ends)
        if trained <= engine.ends and (in_flight or engine.ends == math.inf):
            loop.now = max(loop.now, trained)
            loop.update()
            trained = math.inf
            ends.append(loop.now)
            if len(ends) == WARM_UP:
                busy, loop.spans = sum(each.busy for each in loop.fleet), []
        else:
            loop.finish(engine)
        if in_flight or loop.now < trained:  # else the refit waits for what is under way
            loop.begin()
        if trained == math.inf and len(ends) < STEPS and not loop.missing[len(ends)]:
            trained = loop.now + training
    span = ends[-1] - ends[WARM_UP - 1]
    worked = (sum(each.busy for each in loop.fleet) - busy) / (engines * span)
    seconds = span / (STEPS - WARM_UP)
    return Overlap(seconds, training + refit, max(0.0, 1.0 - worked), fmean(loop.spans), max(loop.spans))
