"""Combinations of levers and the trials that they are."""

import functools
from collections.abc import Mapping

from scalescope.analysis.tuning.search import Option
from scalescope.analysis.tuning.step_model import LeverEffect
from scalescope.analysis.tuning.tuned_launches import BASELINE, Combination
from scalescope.catalog.setting import Lever, Need
from scalescope.errors import ScalescopeError
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.studies.refusal import refuse_too_large
from scalescope.studies.tuning.levers import Candidate, Levers, settings_of_trial, shown, with_values


class Combinations:
    """The candidates of a search that train the same job, alone and together."""

    def __init__(self, experiment: Experiment, machine: Machine, levers: Levers) -> None:
        self._experiment = experiment
        self._machine = machine
        self.baseline = levers.baseline
        self.candidates = {
            candidate.text: candidate for candidate in levers.candidates if candidate.changes != "the job"
        }
        self._settings = settings_of_trial(levers.baseline)
        self._by_trial: dict[str, Combination | None] = {self.baseline.trial_id: BASELINE}
        self.trial_with = functools.cache(self._trial_with)

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(self._option(text, candidate) for text, candidate in self.candidates.items())

    def _option(self, text: str, candidate: Candidate) -> Option:
        lever = self._settings[candidate.name].lever
        return Option(
            name=text,
            setting=candidate.name,
            asked=candidate.asked,
            in_bundle=lever is not None and candidate.value in lever.in_bundle,
            needs_promise=lever is not None and lever.bundled_if_promising,
            sets_processes=lever is not None and lever.sets_processes,
            compiles=lever is not None and lever.starts_slowly,
            switchable=self._is_switchable(candidate, lever),
        )

    def _is_switchable(self, candidate: Candidate, lever: Lever | None) -> bool:
        """Whether a running process can be moved from what the baseline has to the candidate."""
        if lever is None or isinstance(candidate.value, Mapping):
            return False
        now = self.baseline.settings[candidate.name]
        is_known = now in lever.switches or (now is None and self.baseline.is_command)  # the script's own
        return is_known and candidate.value in lever.switches

    def without_use(self, absent: Mapping[Need, str]) -> dict[str, str]:
        """Candidates that need what is absent and no other brings about, by name, with the reason; not those
        that were asked for."""
        brought = {"workers"} if any(map(self._sets_processes, self.candidates)) else set()
        return {
            text: absent[need]
            for text, candidate in self.candidates.items()
            if not candidate.asked
            for need in self._needs(text)
            if need in absent and need not in brought
        }

    def lacks(self, levers: Combination, absent: Mapping[Need, str]) -> bool:
        """Whether levers need loader processes, and neither the job nor the others have them."""
        needed = any("workers" in self._needs(text) for text in levers)
        return needed and "workers" in absent and not any(map(self._sets_processes, levers))

    def _needs(self, text: str) -> tuple[Need, ...]:
        lever = self._settings[self.candidates[text].name].lever
        return () if lever is None else lever.needs

    def _sets_processes(self, text: str) -> bool:
        lever = self._settings[self.candidates[text].name].lever
        return lever is not None and lever.sets_processes

    def experiment_with(self, levers: Combination) -> Experiment:
        """The request with these levers."""
        chosen = [self.candidates[text] for text in sorted(levers)]
        return with_values(self._experiment, {candidate.name: candidate.value for candidate in chosen})

    def _trial_with(self, levers: Combination) -> Trial | None:
        """The trial with all these levers; None where it cannot be run, or two move the same setting."""
        if len({self.candidates[text].name for text in levers}) < len(levers):
            return None
        try:
            (trial,) = expand(self.experiment_with(levers), self._machine).trials
            if not self._experiment.measuring.allow_oom:
                refuse_too_large((trial,), self._machine)
        except ScalescopeError:
            return None
        return trial

    def can_run(self, levers: Combination) -> bool:
        trial = self.trial_with(levers)
        return trial is not None and (not levers or trial.trial_id != self.baseline.trial_id)

    def of_trial(self, trial: Trial) -> Combination | None:
        """The levers of a trial; None where it is not one of the combinations."""
        if trial.trial_id not in self._by_trial:
            levers = frozenset(
                text
                for text, candidate in self.candidates.items()
                if trial.settings.get(candidate.name, self) == candidate.value
                and self.baseline.settings.get(candidate.name, self) != candidate.value
            )
            same = self.trial_with(levers)
            matches = same is not None and same.trial_id == trial.trial_id
            self._by_trial[trial.trial_id] = levers if matches else None
        return self._by_trial[trial.trial_id]

    def program(self, levers: Combination) -> Combination | None:
        """The levers that decide what is compiled; None where nothing is."""
        values = {
            **self.baseline.settings,
            **{self.candidates[t].name: self.candidates[t].value for t in levers},
        }
        compiles = any(
            setting.lever is not None
            and setting.lever.starts_slowly
            and values.get(name, setting.default) != setting.default
            for name, setting in self._settings.items()
        )
        if not compiles:
            return None
        return frozenset(text for text in levers if self._is_compiled_in(self.candidates[text]))

    def _is_compiled_in(self, candidate: Candidate) -> bool:
        lever = self._settings[candidate.name].lever
        return lever is not None and (lever.starts_slowly or lever.is_compiled_in)

    def usual_cause(self, candidate: Candidate) -> str | None:
        """Why a lever fails where it does, as its card knows."""
        lever = self._settings[candidate.name].lever
        if lever is None or isinstance(candidate.value, Mapping):
            return None
        return lever.fails_where.get(candidate.value)

    def effects(self) -> Mapping[str, LeverEffect]:
        """What each candidate usually does to the parts of a step, as far as its card knows."""
        effects = {}
        for text, candidate in self.candidates.items():
            lever = self._settings[candidate.name].lever
            value = candidate.value if not isinstance(candidate.value, Mapping) else None
            if lever is not None and lever.sets_processes and value is not None:
                effects[text] = LeverEffect(processes=int(value))
                continue
            expected = None if lever is None else lever.expected(value, self.baseline.device)
            if expected is None:
                continue
            name, values = expected.company or ("", ())
            effects[text] = LeverEffect(
                factors=expected.factors,
                company=frozenset(shown(name, value) for value in values),
                together=expected.together,
            )
        return effects
