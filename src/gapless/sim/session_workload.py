"""Who subscribes over connections? Programs of all habits, that come and go, roam, and are killed."""

from __future__ import annotations

from functools import partial
from random import Random

from gapless.model.ids import BrokerId
from gapless.sim.observer import Wish
from gapless.sim.reading import Habits, SubscriberProgram
from gapless.sim.workload import CLIENTS_PER_EDGE_MAX, QUICK_US, Workload
from gapless.sim.world import SECOND_US

#: The odds of a run that programs change their minds.
CHANGING_ODDS = 0.5


class SessionWorkload(Workload):
    """All publishers and subscribers of a run in which subscribers come over connections."""

    #: The programs that subscribe, in the order in which they came.
    programs: list[SubscriberProgram]

    #: Draws changes of conditions; None leaves them as they are. It is apart, so that the other runs stay as
    #: they were.
    changes: Random | None = None

    def start_clients(self) -> None:
        """A few programs, within the first half second; in some runs they change their minds."""
        self.programs = []
        for edge in self.clients:
            for _ in range(self._random.choice((0, 1, 1, 2, 3))):
                self._world.after(self._random.randrange(SECOND_US // 2), partial(self.join, edge))

        if self.changes is not None and self.changes.random() < CHANGING_ODDS:
            interval_us = self.changes.choice((50_000, 300_000, 1_000_000))
            self._change_someone(self.changes, interval_us, ready=False)

    def _change_someone(self, tastes: Random, interval_us: int, *, ready: bool = True) -> None:
        """Some program wants other events from now on; after a while another one does."""
        if ready and not self._publishing:
            return
        if ready and self.programs:
            tastes.choice(self.programs).change(self._changed_mind(tastes))
        delay = round(tastes.expovariate(1.0) * interval_us)
        self._world.after(delay, partial(self._change_someone, tastes, interval_us))

    def join(self, edge: str, since: int | None = None) -> None:
        """A new program subscribes, from this tick on if there is one."""
        if len(self.programs) >= CLIENTS_PER_EDGE_MAX * len(self.clients):
            return
        self._subscriptions += 1
        topic = self._random.choice(self._world.topics_at(BrokerId(edge)))
        wish = Wish(
            subscription=f"{edge}-{self._subscriptions}",
            edge=edge,
            topic=topic,
            condition=self._tasted(self._random_condition()),
            total=self._random.random() < 0.3,
            wanted=since,
        )
        for observer in self._world.observers:
            observer.subscribed(wish)
        habits = self._habits(self._random, edge)
        self.programs.append(SubscriberProgram(self._world, self._random, wish, habits))

    def _habits(self, random: Random, edge: str) -> Habits:
        is_named = random.random() < 0.3
        everywhere = tuple(BrokerId(each) for each in self.clients)
        return Habits(
            edges=everywhere if not is_named and random.random() < 0.6 else (BrokerId(edge),),
            ack=random.choice(("auto", "auto", "manual")),
            credit_rows=random.choice((4, 20, 1_000)),
            take_us_max=random.choice((1_000, 20_000, 200_000)),
            is_named=is_named,
        )

    def churn(self) -> None:
        """Somebody comes, or somebody goes."""
        # A name stays until it is forgotten, and nobody can be told to forget it while its edge is away.
        unnamed = [each for each in self.programs if not each.habits.is_named]
        if self._random.random() < 0.5 and unnamed:
            program = self._random.choice(unnamed)
            self.programs.remove(program)
            program.leave()
        else:
            self.join(self._random.choice(list(self.clients)))

    def kill_subscriber(self) -> bool:
        """A program with a name dies, and is started again without a memory."""
        named = [each for each in self.programs if each.habits.is_named]
        if not named:
            return False
        return self._random.choice(named).kill()

    def slow_subscriber(self, delay_us: int) -> bool:
        """A program takes nothing for a while."""
        if not self.programs:
            return False
        program = self._random.choice(self.programs)
        program.pause(True)
        self._world.after(delay_us, partial(program.pause, False))
        return True

    def read_quickly(self) -> None:
        """From now on every program comes back to its rows at once."""
        for program in self.programs:
            program.quicken(QUICK_US)

    def restarted(self, broker: str) -> None:
        """Programs dial again by themselves."""
