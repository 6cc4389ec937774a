"""The arithmetic of the comparison, and its bars."""

from __future__ import annotations

import pytest

from benchmarks.bars import Bars
from benchmarks.engine_bars import bars_table, memory_verdict, speed_verdicts
from benchmarks.peers.protocol import Run
from benchmarks.rounds import GENERATION, PREFILL, Measurements, Sample, Workload

SMALL = Workload(batch=2, prompt_tokens=8, output_tokens=3)


def sample(tokens_per_s: float) -> Sample:
    return Sample(0.1, 1.0, tokens_per_s, tokens_per_s, [[1]])


def measured(**rates: list[float]) -> Measurements:
    """Each engine at the same rates at every workload, one value a round."""
    names = {name.replace("__", ".").replace("_", " "): values for name, values in rates.items()}
    return Measurements(
        samples={
            name: {workload: [sample(rate) for rate in values] for workload in (*GENERATION, PREFILL)}
            for name, values in names.items()
        },
        bandwidth=[1000.0] * 3,
    )


def test_a_sample_counts_what_came_after_every_first_token() -> None:
    run = Run([[1, 2, 3], [4, 5, 6]], [[1.0, 1.5, 2.0], [1.5, 2.0, 2.5]])

    found = Sample.of(run, SMALL)

    assert found.ttft_s == 1.5
    assert found.total_s == 2.5
    assert found.tokens_per_s == pytest.approx(6 / 2.5)
    assert found.decode_per_s == pytest.approx(3 / 1.0)


def test_a_prefill_counts_prompt_tokens() -> None:
    found = Sample.of(Run([[1]], [[0.5]]), PREFILL)

    assert found.tokens_per_s == pytest.approx(2048)


def test_an_engine_that_did_less_work_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for 2 x 3 tokens, got"):
        Sample.of(Run([[1, 2, 3], [4, 5]], [[1.0, 1.5, 2.0], [1.5, 2.0]]), SMALL)


def test_a_ratio_is_taken_within_rounds() -> None:
    # The machine slowed down by half; the ratio did not change.
    found = measured(a=[100.0, 50.0, 50.0], b=[50.0, 25.0, 25.0])

    ratio = found.ratio("a", "b", PREFILL)

    assert (ratio.median, ratio.least, ratio.greatest) == (2.0, 2.0, 2.0)


def test_agreement_ends_at_the_first_difference() -> None:
    def answers(*token_ids: list[int]) -> list[Sample]:
        return [Sample(0.1, 1.0, 1.0, 1.0, list(token_ids))]

    found = Measurements(
        samples={"a": {SMALL: answers([1, 2, 3], [4, 5, 6])}, "b": {SMALL: answers([1, 9, 3], [4, 5, 6])}}
    )

    assert found.agreement("a", "b", SMALL) == pytest.approx(4 / 6)


def test_the_better_peer_counts() -> None:
    found = measured(
        kvrelay_fp32=[100.0, 99.0, 101.0], vllm_fp32=[110.0, 110.0, 110.0], llama__cpp_F32=[90.0, 90.0, 90.0]
    )

    fp32 = [verdict for verdict in speed_verdicts(found) if verdict.statement.startswith("fp32")]

    assert [verdict.holds for verdict in fp32] == [False] * 3
    assert all("vllm fp32" in verdict.measured for verdict in fp32)


def test_a_bar_without_its_peer_is_not_measured_and_not_missed() -> None:
    bars = Bars()

    verdicts = speed_verdicts(measured(kvrelay_fp32=[100.0], vllm_fp32=[110.0], kvrelay_int8=[1.0]))
    bars_table(verdicts, bars)

    assert {verdict.holds for verdict in verdicts} == {None}
    assert bars.missed == []


def test_a_missed_bar_is_noted() -> None:
    bars = Bars()

    verdicts = speed_verdicts(measured(kvrelay_int8=[99.0], openvino_int8=[100.0]))
    bars_table(verdicts, bars)

    assert len(bars.missed) == 4
    assert all("0.99" in missed for missed in bars.missed)


@pytest.mark.parametrize(("rate", "holds"), [(7.6, True), (7.4, False)])
def test_the_share_of_the_memory_limit(rate: float, holds: bool) -> None:
    # 1,000 bytes a second and 100 bytes a token: 10 tokens a second at most.
    assert memory_verdict(measured(kvrelay_fp32=[rate] * 3), weight_bytes=100).holds is holds
