"""The verdict on a final state: does it equal one of the accepted states, canonically, and were the task's
other criteria met?

Only what changed is compared. ``Grader`` reduces each accepted state of a task to its delta against the
initial state once; a final state comes as the delta that its ``State`` kept. Records made in the episode
are matched up to renaming of their keys: colours refined by content and by who refers to whom, then by
trying the ties (``matching``). Any other difference is a failure, also a side effect elsewhere; the verdict
names the nearest accepted state and the fields that differ (``explain``). Answers and trace constraints are
judged on the transcript (``criteria``).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from envgen.errors import TaskError
from envgen.runtime.canonical import rules_of
from envgen.runtime.criteria import answer_differences, check_criteria, violations
from envgen.runtime.explain import explain
from envgen.runtime.sides import delta_of, outline_of, rule_of, same_side, side_of
from envgen.runtime.state import Delta
from envgen.types import Message, StateData, StateSchema, Task, Verdict


class Grader:
    """Judges final states of one task. Accepted states are reduced once, at construction.

    Raises TaskError for criteria that are empty or cannot be judged: no accepted state, or one that is the
    initial state while no answer is asked for (doing nothing would pass).
    """

    def __init__(self, task: Task, schema: StateSchema) -> None:
        if not task.accepted_states:
            raise TaskError(
                f"task {task.id!r} accepts no end state; a task without criteria cannot be graded"
            )
        check_criteria(task)
        self.schema = schema
        self._answers = task.answers
        self._constraints = task.constraints
        self._base = task.initial_state
        self._rules = rules_of(schema)
        for name in (*self._base, *(n for s in task.accepted_states for n in s)):
            if name not in self._rules:
                raise TaskError(
                    f"task {task.id!r}: its states have a collection {name!r} that the schema does not know"
                )
        deltas = [delta_of(self._base, state) for state in task.accepted_states]
        self._accepted = [side_of(delta, self._base, self._rules) for delta in deltas]
        self._outlines = [outline_of(delta, self._rules) for delta in deltas]
        if not self._answers and any(side.empty for side in self._accepted):
            raise TaskError(
                f"task {task.id!r} accepts its initial state and asks for no answer, so that doing nothing "
                "would pass; give it an answer slot, or a goal that is not yet true"
            )

    def judge(self, delta: Delta, transcript: Sequence[Message] = ()) -> Verdict:
        """The verdict on the state that differs from the task's initial state by ``delta``, reached in the
        conversation ``transcript`` (read only by tasks with answers or constraints)."""
        got = side_of(delta, self._base, self._rules)
        answers = answer_differences(self._answers, transcript)
        broken = violations(self._constraints, transcript)
        equal = next((i for i, wanted in enumerate(self._accepted) if same_side(got, wanted)), None)
        if equal is not None and not answers and not broken:
            return Verdict(success=True, nearest=equal, partial_credit=1.0)
        wrong, slots = len(answers), len(self._answers)
        if equal is not None:
            reached = explain(got, self._accepted[equal], self._base, self._rules)
            return Verdict(
                success=False,
                nearest=equal,
                differences=tuple(answers),
                violations=broken,
                partial_credit=reached.credit(slots, wrong, len(broken)),
            )
        found = [explain(got, wanted, self._base, self._rules) for wanted in self._accepted]
        nearest = min(range(len(found)), key=lambda i: len(found[i].differences))
        return Verdict(
            success=False,
            nearest=nearest,
            differences=(*found[nearest].differences, *answers),
            violations=broken,
            partial_credit=max(e.credit(slots, wrong, len(broken)) for e in found),
        )

    def accepts(self, delta: Delta, transcript: Sequence[Message] = ()) -> bool:
        """``judge(delta, transcript).success`` without the explanation: most wrong states are told apart by
        how many records they add and which they delete, before any record is made canonical."""
        for name in delta.updated:
            rule_of(self._rules, name)
        outline = outline_of(delta, self._rules)
        alike = [i for i, known in enumerate(self._outlines) if known == outline]
        if not alike:
            return False
        got = side_of(delta, self._base, self._rules)
        return (
            any(same_side(got, self._accepted[i]) for i in alike)
            and not answer_differences(self._answers, transcript)
            and not violations(self._constraints, transcript)
        )

    def judge_state(self, state: StateData, transcript: Sequence[Message] = ()) -> Verdict:
        """The verdict on plain state data; compares every record once."""
        return self.judge(delta_of(self._base, state), transcript)


# ---------------------------------------------------------------- cache
_graders: dict[int, tuple[weakref.ref[Task], Grader]] = {}


def grader_of(task: Task, schema: StateSchema) -> Grader:
    """The grader of a task, made once and dropped with the task."""
    key = id(task)
    known = _graders.get(key)
    if known is not None and known[0]() is task and known[1].schema is schema:
        return known[1]
    grader = Grader(task, schema)
    _graders[key] = (weakref.ref(task, lambda _: _graders.pop(key, None)), grader)
    return grader


def grade(state: StateData, task: Task, schema: StateSchema, transcript: Sequence[Message] = ()) -> Verdict:
    """Does ``state`` equal one of the task's accepted states? Raises TaskError when the task accepts none.

    Compares plain data; inside an episode ``Env.verdict`` uses the delta and does not look at what was not
    touched.
    """
    return grader_of(task, schema).judge_state(state, transcript)


def accepted_any(states: Iterable[StateData], task: Task, schema: StateSchema) -> bool:
    """True when at least one of the states is accepted (for certificate gates that try many)."""
    return any(grade(state, task, schema).success for state in states)
